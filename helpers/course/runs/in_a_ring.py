"""Lesson 03's collectives in ranks: contents whose digits tell whose they are, bytes that leave a rank, bugs
in a ring, and tests that notice them at some world sizes only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.exercises.collectives_trials import at_its_place as at_its_place
from helpers.course.exercises.collectives_trials import counting
from helpers.course.exercises.in_ranks import run_patiently
from helpers.course.runs.catching import distance
from helpers.tools.launch.failures import RankError
from helpers.tools.launch.jobs import launch
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from helpers.course.plots.distances import Catches, Found

AllReduce = Callable[[torch.Tensor, Callable], None]  # (tensor, exchange), as a learner writes it
MANY = 1_000_000  # elements: what is not waited for has not arrived
PATIENCE = 4.0  # seconds until a ring counts as hung


def digits() -> torch.Tensor:
    """Join the ranks; 1, 2, 3, ... in units of 10^rank, as many numbers as there are ranks."""
    import deepspeed

    deepspeed.init_distributed()
    return counting()


def seen(job: Callable[[], Mapping[str, Sequence]], ranks: int = 4) -> dict[str, list[Sequence]]:
    """{moment: what each rank holds}, as `tapes` takes it, of a job that returns {moment: what it holds}."""
    reports = launch(job, ranks=ranks, device="cpu")
    return {moment: [report[moment] for report in reports] for moment in reports[0]}


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


# --- a tree


def tree_all_reduce(tensor: torch.Tensor) -> None:
    """Replace a tensor, in place, by its sum over all ranks, up and down a tree: 2 log2 N messages of all of
    it, one after another.

    Args:
        tensor: of the same shape on all N ranks; N is a power of two.

    Source: Thakur et al., Optimization of collective communication operations in MPICH (2005), section 4.
    """
    rank, gap, incoming = dist.get_rank(), 1, torch.empty_like(tensor)
    while gap < dist.get_world_size():  # up: one of each pair hands over its sum
        if rank % (2 * gap) == gap:
            dist.send(tensor, rank - gap)
        elif rank % (2 * gap) == 0:
            dist.recv(incoming, rank + gap)
            tensor += incoming
        gap *= 2
    while gap > 1:  # down, the same way
        gap //= 2
        if rank % (2 * gap) == 0:
            dist.send(tensor, rank + gap)
        elif rank % (2 * gap) == gap:
            dist.recv(tensor, rank - gap)


# --- bugs


def from_the_right(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """`exchange` with a bug: it sends to the right neighbour, and waits for a message from the right."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ends = [(dist.isend, outgoing, (rank + 1) % ranks), (dist.irecv, incoming, (rank + 1) % ranks)]
    for request in dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]):
        request.wait()


def not_waiting(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """`exchange` with a bug: it returns before the messages have arrived."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    ends = [(dist.isend, outgoing, (rank + 1) % ranks), (dist.irecv, incoming, (rank - 1) % ranks)]
    under_way.append(dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]))


under_way = []  # requests that nobody waits for; without them a message would be dropped


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
    """Which faults two tests notice at several world sizes: the sums, and the bytes of all messages.

    Args:
        worlds: numbers of ranks.
        right, faults: functions of a tensor, which must become its sum over all ranks.
    """
    from helpers.course.plots.distances import catches

    found = {name: {} for name in ("", *faults)}
    for ranks in worlds:
        due = outcome(right, ranks)
        for name, function in {"": right, **faults}.items():
            found[name] |= distances_at(outcome(function, ranks), due, ranks)
    control = found.pop("")
    return catches(found, dict.fromkeys(control, 1e-5), title, control)


def outcome(function: Callable, ranks: int) -> list[dict] | str:
    """What each rank finds, or how the job failed."""
    try:
        return list(run_patiently(tested, ranks, {"function": function}, PATIENCE))
    except RankError as error:
        if "hung" not in str(error).partition("\n")[0]:
            raise
        return f"hung: {error}"


def distances_at(reports: list[dict] | str, due: list[dict], ranks: int) -> dict[str, Found]:
    """{test: the worst rank's distance from what is due, or the error}."""
    names = {look: f"{look}, {ranks} ranks" for look in due[0]}
    if isinstance(reports, str):
        return dict.fromkeys(names.values(), reports)
    pairs = list(zip(reports, due, strict=True))
    return {
        name: max(distance(one[look], other[look]) for one, other in pairs) for look, name in names.items()
    }


def tested(function: Callable) -> dict[str, object]:
    """{"values": the sum of large tensors of random digits, "bytes": of all messages}, in a rank."""
    import deepspeed

    deepspeed.init_distributed()
    random = torch.Generator().manual_seed(dist.get_rank())
    tensor = 10.0 ** dist.get_rank() * torch.randint(1, 5, (MANY,), generator=random)
    with Traffic() as traffic:
        function(tensor)
        summed = tensor.clone()
    return {"values": summed, "bytes": float(sum(traffic.logged.values()))}
