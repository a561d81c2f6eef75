"""Fine-tuning in little memory: the experiment `finetune`, and its model, which `longest_sequence` shares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import deepspeed
import torch
from helpers.course import models
from helpers.course.recording.experiment import LIMIT, one_micro_batch
from helpers.course.recording.in_ranks import device, engine_of, limit_memory, noted, on_gpu, rows, seconds_of
from helpers.tools.measure.ledger import Ledger

if TYPE_CHECKING:
    from transformers import GlmConfig


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """A way to fine-tune in little memory, a case of the experiment `finetune`.

    Attributes:
        stage: of ZeRO; 0 runs on one rank, others on two.
        fits: it needs no more than the limit; others also run without one, so that their bytes are known.
        checkpointing: of every block.
        chunks: parts of the tokens whose logits exist at once.
        offload: the optimizer's states, into the host's memory.
        fp32_adapters: peft's own choice (below stage 3 DeepSpeed makes them bf16 all the same).
        memory_efficient_linear: DeepSpeed's own choice, at stage 3.
    """

    stage: int
    fits: bool
    checkpointing: bool = False
    chunks: int = 1
    offload: bool = False
    fp32_adapters: bool = True
    memory_efficient_linear: bool = True


FINE_TUNING = {
    "no ZeRO": FineTuning(stage=0, fits=False),
    "no ZeRO, checkpointing": FineTuning(stage=0, fits=True, checkpointing=True),
    "no ZeRO, checkpointing, chunked loss": FineTuning(stage=0, fits=True, checkpointing=True, chunks=8),
    "ZeRO-2": FineTuning(stage=2, fits=False),
    "ZeRO-2, offload": FineTuning(stage=2, fits=False, offload=True),
    "ZeRO-2, checkpointing": FineTuning(stage=2, fits=True, checkpointing=True),
    "ZeRO-3": FineTuning(stage=3, fits=False),
    "ZeRO-3, bf16 adapters": FineTuning(stage=3, fits=False, fp32_adapters=False),
    "ZeRO-3, bf16 adapters, plain linear": FineTuning(
        stage=3, fits=False, fp32_adapters=False, memory_efficient_linear=False
    ),
    "ZeRO-3, checkpointing": FineTuning(stage=3, fits=True, checkpointing=True),
}
# what is tried on a CPU
TINY_FINE_TUNING = ("no ZeRO, checkpointing, chunked loss", "ZeRO-2, offload", "ZeRO-3, bf16 adapters")


def configuration(ranks: int, case: str, **others: object) -> dict:
    """With the keys of article D."""
    way = FINE_TUNING[case]
    if not way.stage:
        return one_micro_batch(stage=0)
    keys = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 10**9,
        "reduce_bucket_size": 500_000_000,
    }
    if way.offload:
        keys["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if way.stage == 3:
        keys["memory_efficient_linear"] = way.memory_efficient_linear
    return one_micro_batch(stage=way.stage, **keys)


def runs() -> list[tuple[int, dict]]:
    cases = [("6.2B", case, LIMIT) for case in FINE_TUNING]
    cases += [("6.2B", case, None) for case, way in FINE_TUNING.items() if not way.fits]
    cases += [("tiny", case, None) for case in TINY_FINE_TUNING]
    return [
        (2 if FINE_TUNING[case].stage else 1, {"shape": shape, "case": case, "limit": limit})
        for shape, case, limit in cases
    ]


def adapted(
    glm: GlmConfig, config: dict, fp32_adapters: bool = False, checkpointing: bool = False, chunks: int = 1
) -> models.WithLoss:
    """ChatGLM with adapters and its loss, made on this rank's device; under stage 3 in parts."""
    partitioned = config["zero_optimization"]["stage"] == 3
    with nullcontext() if partitioned else torch.device(device()):
        model = models.build_transformers(glm, config if partitioned else None)
        model = models.with_adapters(model, in_fp32=fp32_adapters)
    if checkpointing:
        models.checkpointed(model)
    return models.WithLoss(model, chunks).train()


def finetune(
    shape: tuple[dict, int], case: FineTuning, limit: int | None, config: dict
) -> dict[str, dict | list[float]]:
    """Two steps of LoRA on one long sequence under the ledger, the second one noted; then three more by the
    clock where every rank has a GPU.

    Args:
        shape: (keys of transformers' GlmConfig, tokens of a sequence).
        limit: bytes that torch's allocator may have on a GPU, or None for all.

    Returns:
        {"held": {moment: bytes as `noted`}, "host": {category: bytes} in the host's memory after the step,
        where the optimizer is offloaded from a GPU, "seconds": [of each step]}.

    Raises:
        torch.OutOfMemoryError: saying in which pass and which layer.
    """
    deepspeed.init_distributed()
    limit_memory(limit)
    held, host, doing = {}, {}, {"pass": "while it was built", "layer": ""}
    host_ledger = Ledger("cpu") if case.offload and on_gpu() else nullcontext()

    def one_step(step, note):
        batch = rows(step, shape[1])
        doing["pass"] = "in the forward pass"
        loss = engine(*batch)
        note("after forward")
        doing.update({"pass": "in the backward pass", "layer": ""})
        engine.backward(loss)
        del loss
        note("after backward")
        doing.update({"pass": "in the optimizer's step", "layer": ""})
        engine.step()
        note("after step")

    with _naming_the_place(doing), Ledger() as ledger, host_ledger as on_host:
        glm = models.chatglm(shape[0])
        model = adapted(glm, config, case.fp32_adapters, case.checkpointing, case.chunks)
        for name, layer in model.named_modules():
            layer.register_forward_pre_hook(lambda *_, name=name: doing.update(layer=name))
        engine = engine_of(model, config)
        ledger.watch(engine)
        if on_host:
            on_host.watch(engine)
        for step in range(2):
            one_step(step, lambda moment: held.update({moment: noted(ledger.snapshot(moment))}))
        if on_host:
            host = on_host.categories()
    shared = on_gpu() and int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count()
    timed = range(0 if shared else 3)
    seconds = [seconds_of(one_step, step, lambda moment: None) for step in timed]
    return {"held": held, "host": host, "seconds": seconds}


@contextmanager
def _naming_the_place(doing: dict[str, str]) -> Iterator[None]:
    """An error of memory in here says what was being done: `doing["pass"]`, `doing["layer"]`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        place = " ".join(filter(None, (doing["pass"], doing["layer"])))
        raise torch.OutOfMemoryError(f"CUDA out of memory {place}: {error}") from None
