"""How long a training step takes: warm-up steps, then steps back to back, each timed where the device
finishes it, with no waiting in between and nothing else measured.

Only afterwards a few more steps run under the profiler, which says how long the GPU was busy at all.  Two
launches show what varies from one to the next.
"""

from __future__ import annotations

import time

import deepspeed
import deepspeed.comm as comm
import torch
from deepspeed.accelerator import get_accelerator
from helpers.course import corpus
from helpers.course.models import GPTSize
from helpers.course.recording.experiment import deepspeed_configuration
from helpers.course.recording.in_ranks import built, busy, engine_of, on_gpu
from helpers.tools.measure import constants as measured

WARM_UP, STEPS = 3, 20
SEQUENCES, OFFLOADED_STEPS = 16, 5  # of the experiment `offload`
# what a case changes in DeepSpeed's configuration; None takes a key away
CHANGES = {
    "": {},
    "unfused": {"optimizer": {"params": {"fused": False}}},
    "unchecked": {"bf16": {"check_grad_overflow": False}},
    "overlap": {"zero_optimization": {"overlap_comm": True}},
    "offload": {
        "optimizer": {"params": {"torch_adam": False, "fused": None}},
        "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
    },
    "compiled": {},  # the model's blocks, not a key
}
_SMALL, _LARGE = "1.5B, padded", "7.5B, padded"
CASES = [  # ranks, size, stage, sequences of a micro-batch, micro-batches, checkpointing, change
    *((ranks, _SMALL, stage, 16, 1, False, "") for ranks in (1, 2, 4) for stage in (0, 1, 2, 3)),
    *((ranks, _SMALL, stage, 16, 4, False, "") for ranks, stage in ((1, 1), (2, 0), (2, 1), (2, 2), (2, 3))),
    *((ranks, _SMALL, stage, 32, 1, False, "") for ranks, stage in ((1, 1), (2, 1), (2, 2), (2, 3))),
    *((ranks, _LARGE, stage, 16, 1, True, "") for ranks in (2, 4) for stage in (2, 3)),
    *((2, _SMALL, 1, 16, 1, False, change) for change in ("unfused", "unchecked", "overlap", "compiled")),
    (2, _SMALL, 2, 16, 1, False, "overlap"),
    (2, _SMALL, 2, 16, 1, False, "offload"),
    (2, _SMALL, 1, 16, 1, True, ""),
    (2, _SMALL, 1, 1, 1, False, ""),
    (2, "1.5B", 1, 16, 1, False, ""),
    (2, "tiny", 3, 2, 2, False, ""),
]


def runs() -> list[tuple[int, dict]]:
    """Two starts of each case."""
    names = ("size", "stage", "sequences", "micro_batches", "checkpointing", "change")
    return [
        (ranks, dict(zip(names, case)) | {"compiled": case[-1] == "compiled", "start": start})
        for ranks, *case in CASES
        for start in (1, 2)
    ]


def configuration(
    ranks: int, stage: int, sequences: int, micro_batches: int, change: str, **others: object
) -> dict:
    """As people run it: DeepSpeed's own buckets and overlap, and torch's fused AdamW; with one change."""
    config = deepspeed_configuration(micro_batches=micro_batches, zero_optimization={"stage": stage})
    config["train_micro_batch_size_per_gpu"] = sequences
    config["optimizer"]["params"]["fused"] = True
    return _merged(config, CHANGES[change])


def _merged(config, change):
    """A configuration with some keys changed, also inside of its sections."""
    merged = config | {
        key: _merged(config.get(key, {}), value) if isinstance(value, dict) else value
        for key, value in change.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def speed(
    size: GPTSize, sequences: int, micro_batches: int, checkpointing: bool, compiled: bool, config: dict
) -> dict:
    """What `steps_of` returns of so many steps as a protocol asks for."""
    return steps_of(size, sequences, micro_batches, checkpointing, compiled, config, WARM_UP, STEPS)


def offload(size: GPTSize, micro_batches: int, config: dict) -> dict:
    """The same with Adam on the host, whose steps take seconds: fewer of them."""
    return steps_of(size, SEQUENCES, micro_batches, False, False, config, WARM_UP, OFFLOADED_STEPS)


def steps_of(
    size: GPTSize,
    sequences: int,
    micro_batches: int,
    checkpointing: bool,
    compiled: bool,
    config: dict,
    warm_up: int,
    count: int,
) -> dict:
    """Optimizer steps by the clock.

    Args:
        sequences: of a micro-batch on each rank, as long as the model's context.
        compiled: every block by `torch.compile`.
        warm_up, count: steps before, and steps by the clock.

    Returns:
        {"seconds": [of each step], "peak": bytes that torch's allocator gave out at most (0 on a CPU),
        "busy": what `busy` returns, None on a CPU}.
    """
    deepspeed.init_distributed()
    model = built(size, config, checkpointing)
    if compiled:
        for block in model.blocks:
            block.compile()
    engine, ranks = engine_of(model, config), comm.get_world_size()
    rows = corpus.batch(0, sequences * ranks, size.context, comm.get_rank(), ranks, engine.device)

    def step():
        for _ in range(micro_batches):
            engine.backward(engine(*rows))
            engine.step()

    for _ in range(warm_up):
        step()
    comm.barrier()
    get_accelerator().synchronize()
    marks = [_mark()]
    for _ in range(count):
        step()
        marks.append(_mark())
    get_accelerator().synchronize()
    seconds = [round(_between(first, second), 6) for first, second in zip(marks, marks[1:])]
    peak = torch.cuda.max_memory_allocated() if on_gpu() else 0
    return {"seconds": seconds, "peak": peak, "busy": busy(step)}


def constants() -> dict:
    """What limits this machine, while all ranks measure it at once: `MachineConstants` as a dict."""
    return measured.constants().to_dict()


def _mark():
    """A moment: on a GPU when it comes to this point of its work, not when this was issued."""
    if not on_gpu():
        return time.perf_counter()
    mark = torch.cuda.Event(enable_timing=True)
    mark.record()
    return mark


def _between(first, second):
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3
