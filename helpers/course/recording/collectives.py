"""Seconds of each collective from 1 kB to 16 GB: alone, queued one behind the other, and replayed as a CUDA
graph, which takes no host."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from helpers.course.recording.in_ranks import device, on_gpu, seconds_of
from helpers.course.recording.links import LINKS
from helpers.tools import theory

MESSAGES = {  # bytes of the whole tensor; more over sockets would take minutes
    "NVLink": [2**power for power in range(10, 35, 2)],
    "sockets": [2**power for power in range(10, 29, 2)],
}
ENOUGH, MOST, LEAST = 0.25, 40, 3  # seconds for a size and a way, and how many repetitions that may be
# What the model of latency and bandwidth takes for granted before anything is recorded: (seconds, bytes/s)
ASSUMED = {"NVLink": (6.8e-6, 3.11e11), "sockets": (3e-5, 2.5e9)}
IN_THEORY = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "all-to-all": "all_to_all",
    "point to point": "send",
}


def calls(whole: torch.Tensor) -> dict[str, Callable[[], object]]:
    """{collective: a call that moves a tensor of so many elements}, `whole` of shape (N * S,)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part, result = whole.chunk(ranks)[rank].clone(), torch.empty_like(whole)
    other = (rank + ranks // 2) % ranks

    def point_to_point():
        if rank < ranks // 2:
            dist.send(whole, other)
        else:
            dist.recv(whole, other)

    return {
        "all-reduce": lambda: dist.all_reduce(whole),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all-to-all": lambda: dist.all_to_all_single(result, whole),
        "point to point": point_to_point,
    }


def collectives(link: str) -> dict[str, dict[str, list]]:
    """The collectives over a link, on bf16 tensors of `MESSAGES[link]` bytes.

    Returns:
        {collective: {"bytes": of the whole tensor, "alone": [seconds of each call, which all ranks begin
        together], "issued": [seconds until the host has issued each], "queued": seconds of one in a queue,
        "replayed": seconds of one in a CUDA graph, or None, each for every size}}.
    """
    os.environ.update(LINKS[link])
    deepspeed.init_distributed()
    found = {}
    for size in MESSAGES[link]:
        whole = torch.ones(size // 2, dtype=torch.bfloat16, device=device())
        for name, call in calls(whole).items():
            measured = {"bytes": size, **times(call)}
            for column, value in measured.items():
                found.setdefault(name, {}).setdefault(column, []).append(value)
        del whole, call
        if on_gpu():
            torch.cuda.empty_cache()
    return found


def times(call: Callable[[], object]) -> dict[str, object]:
    """What `collectives` returns of one collective and size."""
    for _ in range(2):
        call()
    longest = torch.tensor(seconds_of(call), device=device())
    dist.all_reduce(longest, dist.ReduceOp.MAX)  # all ranks repeat equally often
    count = int(min(MOST, max(LEAST, ENOUGH / longest.item())))
    alone, issued = [], []
    for _ in range(count):
        dist.barrier()
        started = time.perf_counter()
        call()
        issued.append(time.perf_counter() - started)
        get_accelerator().synchronize()
        alone.append(time.perf_counter() - started)
    queued = seconds_of(lambda: [call() for _ in range(count)]) / count
    return {
        "alone": [round(each, 8) for each in alone],
        "issued": [round(each, 8) for each in issued],
        "queued": queued,
        "replayed": replayed(call, count) if on_gpu() else None,
    }


def replayed(call: Callable[[], object], count: int) -> float:
    """Seconds of one call in a CUDA graph of `count`: the median of five replays."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    graph.replay()
    return statistics.median(seconds_of(graph.replay) for _ in range(5)) / count


def predicted(ranks: int, link: str) -> dict[str, list[float]]:
    """{collective: seconds of each size by latency and bandwidth, as `ASSUMED` before the recording}."""
    latency, bandwidth = ASSUMED[link]
    return {
        name: [theory.collective_seconds(known, size, ranks, latency, bandwidth) for size in MESSAGES[link]]
        for name, known in IN_THEORY.items()
    }
