"""How long a training step takes, by a protocol that bears looking at: nothing else is measured while the
clock runs.

Warm-up steps first, then steps back to back, each timed where the device finishes it, without waiting in
between.  Only afterwards a few more steps run under the profiler, which says how long the GPU was busy at
all.  Two launches show what varies from one to the next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from helpers.course.recording.busy import busy
from helpers.course.recording.experiments import _built, _device, _wait

if TYPE_CHECKING:
    from helpers.course.models import GPTSize

WARM_UP, STEPS = 3, 20


def speed(
    size: GPTSize, sequences: int, micro_batches: int, checkpointing: bool, compiled: bool, config: dict
) -> dict:
    """Optimizer steps by the clock.

    Args:
        size: a GPT's; sequences are as long as its context.
        sequences: of a micro-batch on each rank.
        micro_batches: of a step.
        compiled: every block by `torch.compile`.

    Returns:
        {"seconds": [of each step], "peak": bytes that torch's allocator gave out at most (0 on a CPU),
        "busy": what `busy` returns, None on a CPU}.
    """
    import deepspeed
    import deepspeed.comm as comm
    import torch
    from helpers.course import corpus

    deepspeed.init_distributed()
    model = _built(size, config, checkpointing=checkpointing)
    if compiled:
        for block in model.blocks:
            block.compile()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    ranks, on_gpu = comm.get_world_size(), "cuda" in _device()
    rows = corpus.batch(0, sequences * ranks, size.context, comm.get_rank(), ranks, engine.device)

    def step():
        for _ in range(micro_batches):
            engine.backward(engine(*rows))
            engine.step()

    for _ in range(WARM_UP):
        step()
    comm.barrier()
    _wait()
    marks = [_mark()]
    for _ in range(STEPS):
        step()
        marks.append(_mark())
    _wait()
    seconds = [round(_between(first, second), 6) for first, second in zip(marks, marks[1:])]
    peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {"seconds": seconds, "peak": peak, "busy": busy(step)}


def constants() -> dict:
    """What limits this machine, while all ranks measure it at once: `MachineConstants` as a dict."""
    from helpers.tools.measure.constants import constants as measured

    return measured().to_dict()


def _mark():
    """A moment: on a GPU when it comes to this point of its work, not when this was issued."""
    if "cuda" not in _device():
        return time.perf_counter()
    import torch

    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark


def _between(first, second):
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3
