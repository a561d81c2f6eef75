"""The job's model at full depth, built in several ways, each handed to the engine at stage 3."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from helpers.course import job
from helpers.course.job.plans import configuration as of_plan
from helpers.course.recording.in_ranks import highest, seconds_of
from helpers.tools import theory

WAYS = {  # where, in which dtype, and whether in parts
    "host, fp32": ("cpu", torch.float32, False),
    "host, bf16": ("cpu", torch.bfloat16, False),
    "device, bf16": ("cuda", torch.bfloat16, False),
    "in parts, bf16": ("cpu", torch.bfloat16, True),
}


def configuration(ranks: int, how: str) -> dict:
    """Stage 3, and a step of one micro-batch."""
    return of_plan(ranks, stage=3, reduce_bucket_size=50_000_000) | {"gradient_accumulation_steps": 1}


def predicted(ranks: int, how: str) -> dict[str, float]:
    """Bytes: {"host": more of a rank's own memory, "built": of its GPU when the model is there, "peak": at
    most of its GPU by then; a part is made whole in fp32, cast, and cut}."""
    place, dtype, cut = WAYS[how]
    size = theory.LlamaSize.of(job.MODELS["8 B"])
    elements = theory.gpt_parameters(size)
    if cut:
        largest = size.vocabulary * size.width
        kept = 2 * elements / ranks
        return {"host": 0, "built": kept, "peak": kept + 6 * largest}
    whole = dtype.itemsize * elements
    on_gpu = whole if place == "cuda" else 0
    return {"host": whole - on_gpu, "built": on_gpu, "peak": on_gpu}


def building(how: str, config: dict) -> dict[str, dict]:
    """Build, then `deepspeed.initialize`.

    Args:
        how: one of `WAYS`.

    Returns:
        {"build", "initialize": {"seconds": on the slowest rank, "held", "peak": bytes of this rank's GPU, by
        torch's allocator, "host", "host peak": bytes of this rank's own memory, more than before the build}}.
    """
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    deepspeed.init_distributed()
    torch.zeros(1, device="cuda")
    place, dtype, cut = WAYS[how]
    shape, before, made = AutoConfig.for_model(**job.MODELS["8 B"]), own_memory(), []

    def build():
        with in_parts(HfDeepSpeedConfig, config if cut else None), torch.device(place):
            made.append(AutoModelForCausalLM.from_config(shape, dtype=dtype).train())

    def initialize():
        (model,) = made
        made.append(deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config))

    return {"build": noted(build, before), "initialize": noted(initialize, before)}


@contextmanager
def in_parts(known: type, config: dict | None) -> Iterator[None]:
    """transformers builds under `zero.Init` while an object of this class lives."""
    alive = known(config) if config else None
    yield
    del alive


def noted(call: Callable[[], None], before: int) -> dict[str, float]:
    torch.cuda.reset_peak_memory_stats()
    seconds = round(highest(seconds_of(call)), 3)
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": seconds,
        "held": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "host": own_memory() - before,
        "host peak": most - before,
    }


def own_memory() -> int:
    """Bytes of this process that are in the host's memory."""
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmRSS"))
