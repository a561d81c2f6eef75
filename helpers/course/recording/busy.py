"""How much of a step a GPU works, from a profile: a few more steps after those by the clock."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from helpers.course.recording.in_ranks import on_gpu

PROFILED = 2  # steps


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
