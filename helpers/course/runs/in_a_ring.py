"""Lesson 03's collectives in ranks: contents whose digits tell whose they are, bytes that leave a rank, bugs
in a ring, and tests that notice them at some world sizes only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.runs.catching import try_all, worst
from helpers.course.runs.slow import SlowLink
from helpers.tools.launcher.jobs import launch
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from helpers.course.plots.distances import Catches

AllReduce = Callable[[torch.Tensor, Callable], None]  # (tensor, exchange), as a learner writes it
ODD = 1_001  # elements, which divide neither by 2 nor by 3
NEAR = 0.0  # what a test allows: whole numbers, and counts
RING = "the ring itself"  # beside the faults


def digits() -> torch.Tensor:
    """Join the ranks; 1, 2, 3, ... in units of 10^rank, as many numbers as there are ranks."""
    import deepspeed

    deepspeed.init_distributed()
    return torch.arange(1, dist.get_world_size() + 1) * 10 ** dist.get_rank()


def at_its_place(part: torch.Tensor, place: int | None = None) -> list[int | None]:
    """A part in a row of as many numbers as there are ranks, at this rank's place or another; None
    elsewhere."""
    row, first = [None] * dist.get_world_size(), len(part) * (dist.get_rank() if place is None else place)
    row[first : first + len(part)] = part.tolist()
    return row


def seen(job: Callable[[], Mapping[str, Sequence]], ranks: int = 4) -> dict[str, list[Sequence]]:
    """{moment: what each rank holds}, as `tapes` takes it, of a job that returns {moment: what it holds}."""
    reports = launch(job, ranks=ranks, device="cpu")
    return {moment: [report[moment] for report in reports] for moment in reports[0]}


def three_more() -> dict[str, list[int]]:
    """{collective: what this rank holds after it}, of three that are no half of an all-reduce; after a reduce
    nothing on other ranks than its own, where gloo leaves partial sums."""
    import deepspeed.comm as comm

    mine, copy, other = digits(), digits(), digits()
    comm.broadcast(copy, src=0)
    comm.all_to_all_single(other, mine)
    comm.reduce(mine, dst=0)
    total = mine.tolist() if comm.get_rank() == 0 else [None] * len(mine)
    return {
        "broadcast from rank 0": copy.tolist(),
        "all-to-all": other.tolist(),
        "reduce to rank 0": total,
    }


# --- bytes


def sent_by(traffic: Traffic) -> float:
    """Bytes that left this rank through its sockets; what an ideal algorithm sends where these cannot be
    counted."""
    return sum(traffic.ideal.values()) if traffic.sent is None else traffic.sent


def sent_in(call: Callable[[], object]) -> float:
    """`sent_by` a call, which runs before, too: that opens the connections."""
    import deepspeed.comm as comm

    call()
    comm.barrier()
    with Traffic() as traffic:
        call()
    return sent_by(traffic)


def sent_by_gloo(tensor_bytes: int, ranks: int = 4) -> dict[str, float]:
    """{collective: bytes that each rank sends on average}, of a full tensor of so many bytes."""
    reports = launch(gloo_in_a_rank, ranks=ranks, arguments={"elements": tensor_bytes // 4}, device="cpu")
    return {name: sum(report[name] for report in reports) / ranks for name in reports[0]}


def gloo_in_a_rank(elements: int) -> dict[str, float]:
    """{collective: bytes that this rank sends}; it joins the others first."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    whole, other = torch.ones(elements), torch.ones(elements)
    part = torch.ones(elements // comm.get_world_size())
    calls = {
        "broadcast": lambda: comm.broadcast(whole, 0),
        "all_gather": lambda: comm.all_gather_into_tensor(whole, part),
        "all_to_all": lambda: comm.all_to_all_single(other, whole),
        "all_reduce": lambda: comm.all_reduce(whole),
        "reduce_scatter": lambda: comm.reduce_scatter_tensor(part, whole),
        "reduce": lambda: comm.reduce(whole, 0),
    }
    return {name: sent_in(call) for name, call in calls.items()}


def sent_in_a_ring(all_reduce: AllReduce, exchange: Callable, tensor_bytes: int, ranks: int) -> float:
    """Bytes that each rank sends on average in a learner's all-reduce of so many bytes."""
    arguments = {"all_reduce": all_reduce, "exchange": exchange, "elements": tensor_bytes // 4}
    return sum(launch(ring_in_a_rank, ranks=ranks, arguments=arguments, device="cpu")) / ranks


def ring_in_a_rank(all_reduce: AllReduce, exchange: Callable, elements: int) -> float:
    digits()
    return sent_in(lambda: all_reduce(torch.ones(elements), exchange))


# --- other ways to a sum, and a slow link


def tree_all_reduce(tensor: torch.Tensor, link: object = dist) -> None:
    """Replace a tensor, in place, by its sum over all ranks, up and down a tree: 2 log2 N messages of all of
    it, one after another.

    Args:
        tensor: of the same shape on all N ranks; N is a power of two.
        link: what sends and receives.

    Source: Thakur et al., Optimization of collective communication operations in MPICH (2005), section 4.
    """
    rank, gap, incoming = dist.get_rank(), 1, torch.empty_like(tensor)
    while gap < dist.get_world_size():  # up: one of each pair hands over its sum
        if rank % (2 * gap) == gap:
            link.send(tensor, rank - gap)
        elif rank % (2 * gap) == 0:
            link.recv(incoming, rank + gap)
            tensor += incoming
        gap *= 2
    while gap > 1:  # down, the same way
        gap //= 2
        if rank % (2 * gap) == 0:
            link.send(tensor, rank + gap)
        elif rank % (2 * gap) == gap:
            link.recv(tensor, rank - gap)


def naive_all_reduce(tensor: torch.Tensor, link: object = dist) -> None:
    """The same through rank 0, which receives all tensors one after another, and sends N - 1 sums."""
    others, incoming = range(1, dist.get_world_size()), torch.empty_like(tensor)
    if dist.get_rank():
        link.send(tensor, 0)
        link.recv(tensor, 0)
        return
    for other in others:
        link.recv(incoming, other)
        tensor += incoming
    for other in others:
        link.send(tensor, other)


def seconds_on_a_slow_link(
    all_reduce: AllReduce, exchange: Callable, sizes: Sequence[int], link: tuple[float, float], ranks: int = 4
) -> dict[tuple[str, int], float]:
    """{(way, bytes): seconds} of all-reduces "naive", by "tree" and by the learner's "ring", over links of
    (seconds a message, bytes per second)."""
    arguments = {"all_reduce": all_reduce, "exchange": exchange, "sizes": sizes, "link": link}
    reports = launch(slowly_in_a_rank, ranks=ranks, arguments=arguments, device="cpu")
    return {case: max(report[case] for report in reports) for case in reports[0]}


def slowly_in_a_rank(
    all_reduce: AllReduce, exchange: Callable, sizes: Sequence[int], link: tuple[float, float]
) -> dict[tuple[str, int], float]:
    digits()
    slow, found = SlowLink(*link), {}
    ways = {
        "naive": lambda tensor: naive_all_reduce(tensor, slow),
        "tree": lambda tensor: tree_all_reduce(tensor, slow),
        "ring": lambda tensor: all_reduce(tensor, slow.slowed(exchange)),
    }
    for size in sizes:
        for way, call in ways.items():
            dist.barrier()
            started = time.perf_counter()
            call(torch.ones(size // 4))
            found[way, size] = time.perf_counter() - started
    return found


# --- bugs


def without_remainder(all_reduce: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """An all-reduce of as many elements as divide by the ranks; the last ones keep what they were."""

    def faulty(tensor: torch.Tensor) -> None:
        ranks = dist.get_world_size()
        all_reduce(tensor[: len(tensor) // ranks * ranks])

    return faulty


def one_too_many(tensor: torch.Tensor, exchange: Callable) -> None:
    """The all-gather of a ring, with an exchange after the last one: each rank's own part comes back."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)
    for step in range(ranks):
        exchange(parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks])


def whole_tensors(tensor: torch.Tensor, exchange: Callable) -> None:
    """An all-reduce that is no ring of parts: every rank's full tensor goes round."""
    passing = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(passing)
        exchange(passing, incoming)
        tensor += incoming
        passing = incoming


# --- tests


def caught_at(worlds: Sequence[int], right: Callable, faults: Mapping[str, Callable], title: str) -> Catches:
    """Which faults two tests notice at several world sizes, by answers that no ring has computed: the sums of
    whole numbers, and 2 (N - 1) S bytes in all messages together.

    Args:
        worlds: numbers of ranks.
        right, faults: functions of a tensor, which must become its sum over all ranks; its size divides by
            no number of ranks.
    """
    from helpers.course.plots.distances import catches

    tried, tests = {RING: right, **faults}, {"values": summed, "bytes": handed_over}
    found = {name: {} for name in tried}
    for ranks in worlds:
        due = {"values": sum(map(numbers_of, range(ranks))), "bytes": 2.0 * (ranks - 1) * 4 * ODD}
        arguments = {"right": right, "tried": tried, "tests": tests, "due": due}
        reports = launch(try_all, ranks=ranks, arguments=arguments, device="cpu")
        for name, apart in found.items():
            apart |= {f"{test}, {ranks} ranks": worst([one[name][test] for one in reports]) for test in tests}
    control = found.pop(RING)
    return catches(found, dict.fromkeys(control, NEAR), title, control, right=RING)


def numbers_of(rank: int) -> torch.Tensor:
    """A rank's random digits, 1 to 4 in units of 10^rank; sums of them are exact."""
    random = torch.Generator().manual_seed(rank)
    return 10.0**rank * torch.randint(1, 5, (ODD,), generator=random)


def summed(function: Callable) -> torch.Tensor:
    """What becomes of a rank's numbers."""
    digits()
    tensor = numbers_of(dist.get_rank())
    function(tensor)
    return tensor


def handed_over(function: Callable) -> float:
    """Bytes of all messages that all ranks send meanwhile; the log counts both ends of each."""
    with Traffic() as traffic:
        summed(function)
    total = torch.tensor(sum(traffic.logged.values()) / 2, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()
