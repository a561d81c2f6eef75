"""Models of transformers by phase of a training: what torch's allocator requested, allocated and reserved on
each rank, and what the driver counted: the experiment `rehearsed_models`, by which rehearsals are judged."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from helpers.course import job
from helpers.course.models.published import PUBLISHED
from helpers.tools.measure import internals
from helpers.tools.rehearsal.of_transformers import checkpointed

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

COUNTED = ("requested", "allocated", "reserved")
ON_THE_HOST = {"offload_optimizer": {"device": "cpu"}}


@dataclass(frozen=True, kw_only=True)
class Training:
    """A case of the experiment: a model, and how it is trained.

    Attributes:
        model: a name in `PUBLISHED`, or of the course's job.
        ranks, sequence, micro_batch, accumulation: as everywhere.
        zero: keys of "zero_optimization".
        checkpointing: of every block, or of so many, the first.
        steps: of the optimizer.
        outside: whether a model for stage 3 is built outside of `zero.Init`, as scripts do without knowing.
        on_gpu: whether a model that is not divided is built on the GPU, which is faster than on the host.
    """

    model: str
    ranks: int
    zero: dict = field(default_factory=dict)
    sequence: int = 2048
    micro_batch: int = 2
    accumulation: int = 1
    checkpointing: bool | int = False
    steps: int = 3
    outside: bool = False
    on_gpu: bool = False


TRAININGS = {
    "Qwen3, stage 1": Training(model="Qwen3 0.6B", ranks=2, zero={"stage": 1}, accumulation=2),
    "Qwen3, stage 2": Training(model="Qwen3 0.6B", ranks=1, zero={"stage": 2}, sequence=4096),
    "Llama, stage 0": Training(
        model="Llama 3.2 1B", ranks=1, zero={"stage": 0}, micro_batch=1, checkpointing=True
    ),
    "Llama, stage 3": Training(model="Llama 3.2 1B", ranks=2, zero={"stage": 3}),
    "Llama, stage 3, built outside": Training(model="Llama 3.2 1B", ranks=2, zero={"stage": 3}, outside=True),
    "Gemma 2, stage 2": Training(
        model="Gemma 2 2B", ranks=2, zero={"stage": 2}, micro_batch=1, accumulation=2, checkpointing=True
    ),
    "Gemma 2, stage 3": Training(model="Gemma 2 2B", ranks=2, zero={"stage": 3}, checkpointing=True),
    "Phi 3, stage 3, offload": Training(
        model="Phi 3 mini", ranks=2, zero={"stage": 3, **ON_THE_HOST}, checkpointing=True
    ),
    "Mixtral, stage 2": Training(model="Mixtral, 1.2B", ranks=2, zero={"stage": 2}),
    "OLMo 2, stage 3": Training(model="OLMo 2 1B", ranks=2, zero={"stage": 3}, sequence=4096, accumulation=2),
}


def configuration(training: Training) -> dict:
    """DeepSpeed's, in bf16, with its own buckets; torch's Adam, which needs no compiler."""
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch,
        "gradient_accumulation_steps": training.accumulation,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": training.zero,
    }


def runs() -> list[tuple[int, dict]]:
    """Every case on its ranks."""
    return [(case.ranks, {"training": name}) for name, case in TRAININGS.items()]


def configuration_of(ranks: int, training: str) -> dict:
    """DeepSpeed's of a case by its name."""
    return configuration(TRAININGS[training])


def train(training: Training, config: dict, begin: Callable[[str, DeepSpeedEngine | None], None]) -> None:
    """The steps of a rank; `begin(phase, engine)` is called when a phase begins."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    deepspeed.init_distributed()
    begin("building", None)
    is_divided = training.zero["stage"] == 3 and not training.outside
    known = HfDeepSpeedConfig(config) if is_divided else None  # while this object lives
    shape = AutoConfig.for_model(**(PUBLISHED | job.MODELS)[training.model])
    is_there = training.on_gpu and not is_divided
    with torch.device("cuda") if is_there else nullcontext():
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    del known
    if training.checkpointing:
        model = checkpointed(model, training.checkpointing)
    engine, *_ = deepspeed.initialize(model=model.train(), model_parameters=model.parameters(), config=config)
    rows = (training.micro_batch, training.sequence)
    for _ in range(training.steps):
        for _ in range(training.accumulation):
            begin("forward", engine)
            ids = torch.randint(3, 1000, rows, device=engine.device)
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            begin("backward", engine)
            engine.backward(loss)
            del loss
            begin("step", engine)
            engine.step()
    begin("end", engine)


def rehearsed_models(training: Training, config: dict) -> list[dict]:
    """The training on a GPU, as `phases` has it."""
    return phases(partial(train, training, config))


def expandable_models(training: Training, config: dict) -> list[dict]:
    """The same with torch's expandable segments."""
    internals.grow_segments()
    return rehearsed_models(training, config)


def phases(trained: Callable[[Callable[[str, DeepSpeedEngine | None], None]], None]) -> list[dict]:
    """What a GPU's memory and clock say of a training.

    Args:
        trained: trains, and calls what it is given with the name of each phase that begins.

    Returns:
        A list of its phases in order, each {"phase", "peak": {what is `COUNTED`: bytes at most}, "end": {the
        same at its end}, "used": bytes that the driver had given out, "retries": of the allocator so far,
        "seconds": from the moment when all of the phase before was done}.
    """
    import torch

    found, marks = [], []

    def begin(phase, engine):
        torch.cuda.synchronize()
        marks.append(time.perf_counter())
        statistics, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
        if found:
            for moment, name in (("peak", "peak"), ("end", "current")):
                found[-1][moment] = {what: statistics[f"{what}_bytes.all.{name}"] for what in COUNTED}
            found[-1] |= {"used": total - free, "retries": statistics["num_alloc_retries"]}
            found[-1]["seconds"] = round(marks[-1] - marks[-2], 6)
        torch.cuda.reset_peak_memory_stats()
        found.append({"phase": phase})

    trained(begin)
    return found[:-1]
