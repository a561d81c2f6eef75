"""What the experiments share in a rank: its device, its text, the model, the engine, what is noted of
memory, and from a profile how much of a step a GPU works."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext

import deepspeed
import deepspeed.comm as comm
import torch
from deepspeed.accelerator import get_accelerator
from torch.profiler import ProfilerActivity, profile
from helpers.course import corpus, models
from helpers.tools.measure.internals import clear_workspaces
from helpers.tools.measure.ledger import Snapshot

PROFILED = 2  # steps


def device() -> str:
    return get_accelerator().current_device_name()


def on_gpu() -> bool:
    return get_accelerator().device_name() == "cuda"


def seconds_of(work: Callable, *arguments: object) -> float:
    """How long a call takes until the device has finished it."""
    get_accelerator().synchronize()
    started = time.perf_counter()
    work(*arguments)
    get_accelerator().synchronize()
    return time.perf_counter() - started


def highest(number: float) -> float:
    """The largest of all ranks' numbers: all go on with the same."""
    numbers = [None] * comm.get_world_size()
    comm.all_gather_object(numbers, number)
    return max(numbers)


def rows(number: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's sequence of a batch that has one for each rank."""
    ranks = comm.get_world_size()
    return corpus.batch(number, ranks, length, comm.get_rank(), ranks, device())


def built(size: models.GPTSize, config: dict, checkpointing: bool = True) -> models.GPT:
    """The course's GPT in bf16, made on this rank's device; under stage 3 in parts."""
    whole = config["zero_optimization"]["stage"] != 3
    torch.set_default_dtype(torch.bfloat16 if whole else torch.float32)
    with torch.device(device()) if whole else nullcontext():
        model = models.build(models.GPT, size, checkpointing=checkpointing, config=config)
    torch.set_default_dtype(torch.float32)
    return model


def engine_of(model: torch.nn.Module, config: dict) -> deepspeed.DeepSpeedEngine:
    """DeepSpeed's engine, which trains what is not frozen."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return deepspeed.initialize(model=model, model_parameters=trained, config=config)[0]


def three_steps(engine: deepspeed.DeepSpeedEngine, length: int, losses: list[float]) -> None:
    """Three steps of one micro-batch, whose losses are appended."""
    for step in range(3):
        loss = engine(*rows(step, length))
        engine.backward(loss)
        losses.append(loss.item())
        del loss
        engine.step()


def limit_memory(limit: int | None) -> None:
    """Let torch's allocator have no more than so many bytes of this rank's GPU."""
    if limit is not None and on_gpu():
        whole = torch.cuda.get_device_properties(device()).total_memory
        torch.cuda.set_per_process_memory_fraction(limit / whole, device())


def noted(snapshot: Snapshot) -> dict:
    """A snapshot of the ledger; on a GPU also what torch's allocator and the driver say, in bytes.  Gives
    workspaces back, and begins a new peak.

    `requested` is what was asked for, `workspaces` what matrix products hold of it for themselves.  Blocks
    are larger: `rounding` to whole 512 bytes, `unsplit` where the rest of a block was too small to be split
    off (`largest_unsplit`: of one block); together they are `allocated`.  `reserved` is what the allocator
    keeps, `used` what the GPU has given to all its processes.
    """
    ledger = {"categories": snapshot.categories, "peak": snapshot.peak, "settled": snapshot.settled}
    if not on_gpu():
        return ledger
    statistics = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
    active = [block for block in blocks if block["state"] == "active_allocated"]
    rounded = [-(-block["requested_size"] // 512) * 512 for block in active]
    unsplit = [block["size"] - size for block, size in zip(active, rounded)]
    clear_workspaces()
    requested = statistics["requested_bytes.all.current"]
    allocator = {
        "requested": requested,
        "requested_peak": statistics["requested_bytes.all.peak"],
        "rounding": sum(rounded) - sum(block["requested_size"] for block in active),
        "unsplit": sum(unsplit),
        "largest_unsplit": max(unsplit),
        "allocated": statistics["allocated_bytes.all.current"],
        "reserved": statistics["reserved_bytes.all.current"],
        "used": total - free,
        "workspaces": requested - torch.cuda.memory_stats()["requested_bytes.all.current"],
    }
    torch.cuda.reset_peak_memory_stats()
    return ledger | allocator


def busy(step: Callable[[], object]) -> dict[str, float] | None:
    """Of one call of `step`: {"kernels": how many, "gpu": seconds in which any ran, "messages": in which one
    of NCCL's ran, "exposed": in which none but NCCL's ran}; None on a CPU.  A profile slows the issuing of
    kernels, and hardly the kernels themselves."""
    if not on_gpu():
        return None
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    ran = [event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    messages = _covered(event for event in ran if "nccl" in event.name.lower())
    work = _covered(event for event in ran if "nccl" not in event.name.lower())
    gpu = _covered(ran)
    seconds = {"gpu": gpu, "messages": messages, "exposed": gpu - work}
    return {
        "kernels": len(ran) // PROFILED,
        **{name: round(1e-6 * length / PROFILED, 6) for name, length in seconds.items()},
    }


def _covered(events):
    """Length of the union of their times."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
