"""Answers of lesson 03: a ring all-reduce, what communication costs, and the mistakes that people make
there."""

from __future__ import annotations

import contextlib

import torch
from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build, Exercise, RankExercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped, own_group


def _own(seed, elements):
    """This rank's own random numbers."""
    import deepspeed.comm as comm

    return torch.randn(elements, generator=torch.Generator().manual_seed(1000 * seed + comm.get_rank()))


def _digits(seed, elements):
    """This rank's own random numbers: 1 to 4 in units of 10^rank, so that the digits of a sum say whose
    number is missing or was added twice."""
    import deepspeed.comm as comm

    rank = comm.get_rank()
    return 10.0**rank * torch.randint(
        1, 5, (elements,), generator=torch.Generator().manual_seed(1000 * seed + rank)
    )


def _swap(outgoing, incoming, to=None, source=None):
    """Send to a rank, the right neighbour if none is named, and receive from another at once; these are the
    check's own messages."""
    import torch.distributed as dist

    rank, ranks, group = dist.get_rank(), dist.get_world_size(), own_group()
    to, source = ((rank + 1) % ranks, (rank - 1) % ranks) if to is None else (to, source)
    send = dist.P2POp(dist.isend, outgoing, to, group)
    receive = dist.P2POp(dist.irecv, incoming, source, group)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()


# --- one exchange


@contextlib.contextmanager
def _existing_ranks():
    """`P2POp` with a rank that does not exist fails, with words; by itself it ends the process or waits for
    ever."""
    import torch.distributed as dist

    real, ranks = dist.P2POp, dist.get_world_size()

    def checked(op, tensor, peer=None, *more, **named):
        if peer is not None and not 0 <= peer < ranks:
            raise ValueError(
                f"there is no rank {peer}: ranks are 0 to {ranks - 1}; in the circle, rank 0 is "
                f"the right neighbour of rank {ranks - 1}"
            )
        return real(op, tensor, peer, *more, **named)

    dist.P2POp = checked
    try:
        yield
    finally:
        dist.P2POp = real


def _exchanged(function, seed):
    """A small message and one of a megabyte, which no buffer holds."""
    found = {}
    for elements in (5 + seed % 5, 250_000 + seed % 100):
        outgoing, incoming = _own(seed, elements), torch.zeros(elements)
        with _existing_ranks():
            function(outgoing, incoming)
        found |= {f"incoming, {elements:,} elements": incoming, f"outgoing, {elements:,} elements": outgoing}
    return found


def exchange_solution(outgoing, incoming):
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    send = dist.P2POp(dist.isend, outgoing, (rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, incoming, (rank - 1) % ranks)
    for request in dist.batch_isend_irecv([send, receive]):  # both are under way before a rank waits: no hang
        request.wait()


_EXCHANGE_MISTAKES = {
    (
        "outgoing, (rank + 1)",
        "outgoing, (rank - 1)",
        "incoming, (rank - 1)",
        "incoming, (rank + 1)",
    ): "that went to the left and came from the right: the right neighbour has the next higher rank",
    (lambda outgoing, incoming: incoming.copy_(outgoing)): "that is this rank's own tensor: the left "
    "neighbour's must be received",
    ("dist.irecv, incoming", "dist.irecv, torch.empty_like(incoming)"): "nothing has arrived in `incoming`: "
    "receive into that very tensor, and wait",
}
exchange = Build(
    "exchange",
    _exchanged,
    mistakes=edits(exchange_solution, _EXCHANGE_MISTAKES),
    praise="every rank sent and received at once, so none waited for a rank that was waiting too",
    together=True,
)


# --- the ring


HINTS = {  # two errors that say little: what to do
    "index out of range": "`chunk` may make fewer parts than ranks, `tensor_split` never does",
    "does not support item assignment": "give the part a name before you add to it, or use "
    "`parts[k].add_(incoming)`",
}


def _summed_in_a_ring(function, seed):
    """Three sizes: one that divides by the ranks, one that does not, and one of which `chunk` makes fewer
    parts than there are ranks.

    What arrives must fit exactly into what it is received in: gloo does not always say so.
    """
    import deepspeed.comm as comm

    found, ranks = {}, comm.get_world_size()
    for elements in (ranks * (2 + seed % 7), ranks * (20 + seed % 50) + 1 + seed % (ranks - 1 or 1), 9):
        sizes, mine = [], _digits(seed, elements)

        def counted(outgoing, incoming, sizes=sizes):
            sizes.append(outgoing.numel())
            arriving = torch.zeros(1, dtype=torch.int64)
            _swap(torch.tensor([outgoing.numel()]), arriving)
            if incoming.numel() != arriving.item():
                raise ValueError(
                    f"the left neighbour sends {arriving.item()} elements, to be received in a "
                    f"tensor of {incoming.numel()}: "
                    "parts differ in size; the size must be that of the part that arrives"
                )
            _swap(outgoing, incoming)

        with helped(HINTS):
            function(mine, counted)
        found[f"the number of exchanges, {elements} elements"] = len(sizes)
        found[f"no exchange carries more than 1/{ranks}, rounded up, {elements} elements"] = max(
            sizes, default=0
        ) <= -(-elements // ranks)
        found[f"the tensor, {elements} elements"] = mine
    return found


def ring_all_reduce_solution(tensor, exchange):
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = tensor.tensor_split(ranks)  # views: what is added to a part is added to the tensor
    for step in range(ranks - 1):  # reduce-scatter: the sums grow while they travel
        arriving = parts[(rank - step - 1) % ranks]
        incoming = torch.empty_like(arriving)
        exchange(parts[(rank - step) % ranks], incoming)
        arriving += incoming
    for step in range(ranks - 1):  # all-gather: finished sums are passed on
        exchange(parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks])


_SPLITS, _ADDS = "parts = tensor.tensor_split(ranks)", "        arriving += incoming"
_FIRST_HALF, _SECOND_HALF = "range(ranks - 1):  # reduce-", "range(ranks - 1):  # all-"
_PASSES_ON = "        exchange(parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks])"


def _whole_tensors(tensor, exchange):
    import torch.distributed as dist

    passed = tensor.clone()
    for _ in range(dist.get_world_size() - 1):
        incoming = torch.empty_like(tensor)
        exchange(passed, incoming)
        tensor += incoming
        passed = incoming


_RING_ALL_REDUCE_MISTAKES = {
    (_SECOND_HALF, "range(0):  # all-"): "that is the first half: each rank has one finished part of the "
    "sum, and now the finished parts must go round",
    (
        _PASSES_ON,
        "        incoming = torch.empty_like(parts[(rank - step) % ranks])\n"
        "        exchange(parts[(rank + 1 - step) % ranks], incoming)\n"
        "        parts[(rank - step) % ranks].add_(incoming)",
    ): "in the second half the parts that arrive are finished sums: copy them, do not add them",
    _whole_tensors: "the sum is right, but whole tensors went round: send one part "
    "of the tensor per exchange",
    (_SPLITS, "parts = tensor[: len(tensor) // ranks * ranks].tensor_split(ranks)"): "the last elements were "
    "left out: the size need not divide by the number of ranks",
    (_PASSES_ON, f"{_PASSES_ON}\n    tensor /= ranks"): "that is the mean; an all-reduce sums",
    (_SPLITS, "parts = tensor.clone().tensor_split(ranks)"): "the sum must stand in `tensor` itself, not in "
    "a new one",
    ("        arriving = parts", "        step = 0\n        arriving = parts"): "that always sends the "
    "rank's own part: pass on the part that you have just added to",
    (_FIRST_HALF, "range(1):  # reduce-", _SECOND_HALF, "range(1):  # all-"): "each half needs one exchange "
    "less than there are ranks, which are not always two",
    (
        _PASSES_ON,
        "        exchange(parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks])",
    ): "the second half must begin with the part that a rank has finished, r + 1, not with its own, r",
    (
        *(_SPLITS, "parts = list(tensor.tensor_split(ranks))"),
        *(_ADDS, "        parts[(rank - step - 1) % ranks] = arriving + incoming"),
    ): "`parts[k] = parts[k] + ...` makes a new tensor and leaves `tensor` as it was: add in place",
}
ring_all_reduce = Build(
    "ring_all_reduce",
    _summed_in_a_ring,
    mistakes=edits(ring_all_reduce_solution, _RING_ALL_REDUCE_MISTAKES),
    praise="each rank sent every part but one, twice, and never waited for more than its neighbour",
    together=True,
)


# --- the tree


def tree_all_reduce(tensor: torch.Tensor) -> None:
    """Replace a tensor, in place, by its sum over all ranks, up and down a tree: 2 log2 N messages of all of
    it, one after another.

    Args:
        tensor: of the same shape on all N ranks; N is a power of two.

    Source: Thakur et al., Optimization of collective communication operations in MPICH (2005), section 4.
    """
    import deepspeed.comm as comm

    rank, gap, incoming = comm.get_rank(), 1, torch.empty_like(tensor)
    while gap < comm.get_world_size():  # up: one of each pair hands over its sum
        if rank % (2 * gap) == gap:
            comm.send(tensor, rank - gap)
        elif rank % (2 * gap) == 0:
            comm.recv(incoming, rank + gap)
            tensor += incoming
        gap *= 2
    while gap > 1:  # down, the same way
        gap //= 2
        if rank % (2 * gap) == 0:
            comm.send(tensor, rank + gap)
        elif rank % (2 * gap) == gap:
            comm.recv(tensor, rank - gap)


# --- halving and doubling


def _summed_in_halves(function, seed):
    """A size that divides by the ranks; how many exchanges, and how many elements were sent in them."""
    import deepspeed.comm as comm

    rank, ranks = comm.get_rank(), comm.get_world_size()
    sent, mine = [], _digits(seed, ranks * (2 + seed % 7))

    def swap(partner, outgoing, incoming):
        if not 0 <= partner < ranks or partner == rank:
            raise ValueError(f"rank {rank} of {ranks} cannot exchange with rank {partner}")
        sent.append(outgoing.numel())
        _swap(outgoing, incoming, to=partner, source=partner)

    function(mine, swap)
    return {"the tensor": mine, "the elements sent": sum(sent), "the number of exchanges": len(sent)}


def halve_and_double_solution(tensor, swap):
    import torch
    import torch.distributed as dist

    rank, gap, mine, way = dist.get_rank(), dist.get_world_size() // 2, tensor, []
    while gap:  # reduce-scatter: keep one half, give the other
        low, high = mine.chunk(2)
        mine, given = (high, low) if rank & gap else (low, high)
        incoming = torch.empty_like(mine)
        swap(rank ^ gap, given, incoming)
        mine += incoming
        way.append((gap, mine, given))
        gap //= 2
    for gap, mine, given in reversed(way):  # all-gather: the same way back
        swap(rank ^ gap, mine, given)


def _doubles_whole_tensors(tensor, swap):
    import torch.distributed as dist

    gap = dist.get_world_size() // 2
    while gap:
        incoming = torch.empty_like(tensor)
        swap(dist.get_rank() ^ gap, tensor.clone(), incoming)
        tensor += incoming
        gap //= 2


_HALVE_AND_DOUBLE_MISTAKES = {
    ("in reversed(way)", "in []"): "that is the way down: each rank has a finished part, and now the parts "
    "must come together again",
    _doubles_whole_tensors: "the sum is right, but whole tensors were exchanged: each exchange of the first "
    "half carries half of the one before",
}
halve_and_double = Build(
    "halve_and_double",
    _summed_in_halves,
    mistakes=edits(halve_and_double_solution, _HALVE_AND_DOUBLE_MISTAKES),
    praise="the ring's bytes in 2 log2 N exchanges",
    together=True,
)


# --- formulas


def bus_bandwidth_solution(size, ranks, seconds):
    return 2 * (ranks - 1) / ranks * size / seconds  # what a rank must send: comparable with a link's speed


_BUS_BANDWIDTH_MISTAKES = {
    ("2 * (ranks - 1) / ranks * ", ""): "that is the algorithm bandwidth: the tensor's bytes over the time",
    ("2 * ", ""): "an all-reduce is a reduce-scatter and an all-gather: each sends (N - 1) / N of the tensor",
    ("(ranks - 1) / ranks * ", ""): "2 S is the limit for very many ranks; a rank sends each part but one, "
    "twice",
    (" / ranks", ""): "that is what all ranks send together",
}
bus_bandwidth = Exercise(
    reference=bus_bandwidth_solution,
    cases=(
        {"size": 1e9, "ranks": 8, "seconds": 0.01},
        {"size": 1e9, "ranks": 2, "seconds": 0.01},
        {"size": 4e6, "ranks": 64, "seconds": 1e-3},
    ),
    mistakes=edits(bus_bandwidth_solution, _BUS_BANDWIDTH_MISTAKES),
    praise="what a rank's link carries, which can be compared with the link's own speed, whatever the "
    "number of ranks",
)


def two_level_seconds_solution(size, hosts, gpus, inside, across):
    from helpers import theory

    within = theory.wire_bytes("reduce_scatter", size, gpus) / inside  # and the all-gather takes as long
    return 2 * within + theory.wire_bytes("all_reduce", size / gpus, hosts) / across  # of a GPU's part


_TWO_LEVEL_SECONDS_MISTAKES = {
    ("size / gpus", "size"): "between the hosts a GPU sends only its part: the reduce-scatter has left it 1 "
    "/ gpus of the tensor",
    ("2 * within", "within"): "at the end the parts must be gathered again within each host",
    ('"reduce_scatter"', '"all_reduce"'): "within a host a reduce-scatter is enough, and later an "
    "all-gather: half an all-reduce each",
    (
        "2 * within",
        'within + theory.wire_bytes("all_gather", size / gpus, gpus) / inside',
    ): "`wire_bytes` takes the bytes of the full tensor: for an all-gather that is the result, as large as "
    "before the reduce-scatter",
    ("size / gpus", "size / hosts"): "the reduce-scatter leaves each GPU 1 / gpus of the tensor, whatever "
    "the number of hosts",
    ("2 * within + ", "max(2 * within, ", "/ across", "/ across)"): "the three go one after another, so "
    "their times add up",
    ("gpus, hosts)", "gpus, hosts * gpus)"): "in the all-reduce across, a GPU meets the one GPU of each "
    "other host that holds the same part: `hosts` ranks",
    ("/ across", "/ other", "/ inside", "/ across", "/ other", "/ inside"): "`inside` is the speed within a "
    "host, `across` the one between hosts",
}
two_level_seconds = Exercise(
    reference=two_level_seconds_solution,
    cases=(
        {"size": 8e9, "hosts": 2, "gpus": 8, "inside": 400e9, "across": 50e9},
        {"size": 26e9, "hosts": 16, "gpus": 4, "inside": 100e9, "across": 12.5e9},
    ),
    mistakes=edits(two_level_seconds_solution, _TWO_LEVEL_SECONDS_MISTAKES),
    praise="the slow links carry only the part that each GPU is left with after the sum within its host",
)
all_numbers = RankExercise(
    inputs=lambda ranks, random: [{"number": number} for number in random.sample(range(10, 100), ranks)],
    expected=lambda rank, given: [own["number"] for own in given],
    mistakes={
        "that is one number over and over: each broadcast needs a source of "
        "its own, and a fresh tensor": lambda rank, given: [given[0]["number"]] * len(given),
    },
    praise="every rank has all numbers in order; a real all-gather sends the same bytes as one "
    "broadcast after another, with all ranks at once",
)
