"""Answers of lesson 03: a ring all-reduce, what communication costs, and the mistakes that people make
there."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import distributed as dist
from helpers.course.exercises.builds import RankExercise
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.in_ranks import helped, own_group
from helpers.course.exercises.solutions import collectives as solutions
from helpers.course.exercises.trials import build, formula, randn_of_rank
from helpers.tools.measure.internals import replaced


def _digits(seed, elements):
    """This rank's own random numbers: 1 to 4 in units of 10^rank, so that the digits of a sum say whose
    number is missing or was added twice."""
    random = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return 10.0 ** dist.get_rank() * torch.randint(1, 5, (elements,), generator=random)


def _swap(outgoing, incoming, to=None, source=None):
    """Send to a rank, the right neighbour if none is named, and receive from another at once; these are the
    check's own messages."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), own_group()
    to, source = ((rank + 1) % ranks, (rank - 1) % ranks) if to is None else (to, source)
    send = dist.P2POp(dist.isend, outgoing, to, group)
    receive = dist.P2POp(dist.irecv, incoming, source, group)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()


def _exchanged(function, seed):
    """A small message and one of a megabyte, which no buffer holds.

    `P2POp` with a rank that does not exist fails, with words; by itself it ends the process or waits for
    ever.
    """
    values, real, ranks = {}, dist.P2POp, dist.get_world_size()

    def checked(op, tensor, peer=None, *more, **named):
        if peer is not None and not 0 <= peer < ranks:
            circle = f"in the circle, rank 0 is the right neighbour of rank {ranks - 1}"
            raise ValueError(f"there is no rank {peer}: ranks are 0 to {ranks - 1}; {circle}")
        return real(op, tensor, peer, *more, **named)

    for elements in (5 + seed % 5, 250_000 + seed % 100):
        outgoing, incoming = randn_of_rank(seed, elements), torch.zeros(elements)
        with ExitStack() as stack:
            stack.callback(replaced(dist, "P2POp", checked))
            function(outgoing, incoming)
        values |= {f"incoming, {elements:,} elements": incoming, f"outgoing, {elements:,} elements": outgoing}
    return values


EXCHANGE = """
correct: every rank sent and received at once, so none waited for a rank that was waiting too

that went to the left and came from the right: the right neighbour has the next higher rank
    outgoing, (rank + 1) -> outgoing, (rank - 1)
    incoming, (rank - 1) -> incoming, (rank + 1)
that is this rank's own tensor: the left neighbour's must be received
    request.wait() -> request.wait()
        incoming.copy_(outgoing)
nothing has arrived in `incoming`: receive into that very tensor, and wait
    dist.irecv, incoming -> dist.irecv, torch.empty_like(incoming)
"""
exchange = build(solutions.exchange_solution, _exchanged, EXCHANGE, together=True)


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
    values, ranks = {}, dist.get_world_size()
    for elements in (ranks * (2 + seed % 7), ranks * (20 + seed % 50) + 1 + seed % (ranks - 1 or 1), 9):
        sizes, mine = [], _digits(seed, elements)

        def counted(outgoing, incoming, sizes=sizes):
            sizes.append(outgoing.numel())
            arriving = torch.zeros(1, dtype=torch.int64)
            _swap(torch.tensor([outgoing.numel()]), arriving)
            if incoming.numel() != arriving.item():
                wrong = f"{arriving.item()} elements, to be received in a tensor of {incoming.numel()}"
                advice = "parts differ in size; the size must be that of the part that arrives"
                raise ValueError(f"the left neighbour sends {wrong}: {advice}")
            _swap(outgoing, incoming)

        with helped(HINTS):
            function(mine, counted)
        largest, most = max(sizes, default=0), -(-elements // ranks)
        values[f"the number of exchanges, {elements} elements"] = len(sizes)
        values[f"no exchange carries more than 1/{ranks}, rounded up, {elements} elements"] = largest <= most
        values[f"the tensor, {elements} elements"] = mine
    return values


RING_ALL_REDUCE = """
correct: each rank sent every part but one, twice, and never waited for more than its neighbour

that is the first half: each rank has one finished part of the sum, and now the finished parts must go round
    range(ranks - 1):  # all- -> range(0):  # all-
in the second half the parts that arrive are finished sums: copy them, do not add them
    parts[(rank - step) % ranks]) -> incoming := torch.empty_like(parts[(rank - step) % ranks]))
            parts[(rank - step) % ranks].add_(incoming)
the sum is right, but whole tensors went round: send one part of the tensor per exchange
    parts = tensor.tensor_split(ranks) -> parts = [tensor.clone() for _ in range(ranks)]
    arriving += incoming -> tensor += incoming
            parts[(rank - step - 1) % ranks].copy_(incoming)
    range(ranks - 1):  # all- -> range(0):  # all-
the last elements were left out: the size need not divide by the number of ranks
    parts = tensor.tensor_split -> parts = tensor[: len(tensor) // ranks * ranks].tensor_split
that is the mean; an all-reduce sums
    parts[(rank - step) % ranks]) -> parts[(rank - step) % ranks])
        tensor /= ranks
the sum must stand in `tensor` itself, not in a new one
    tensor.tensor_split -> tensor.clone().tensor_split
that always sends the rank's own part: pass on the part that you have just added to
    arriving = parts -> step = 0
            arriving = parts
each half needs one exchange less than there are ranks, which are not always two
    range(ranks - 1):  # reduce- -> range(1):  # reduce-
    range(ranks - 1):  # all- -> range(1):  # all-
the second half must begin with the part that a rank has finished, r + 1, not with its own, r
    (rank + 1 - step) % ranks], parts[(rank - step) -> (rank - step) % ranks], parts[(rank - step - 1)
`parts[k] = parts[k] + ...` makes a new tensor and leaves `tensor` as it was: add in place
    parts = tensor.tensor_split(ranks) -> parts = list(tensor.tensor_split(ranks))
    arriving += incoming -> parts[(rank - step - 1) % ranks] = arriving + incoming
"""
ring_all_reduce = build(solutions.ring_all_reduce_solution, _summed_in_a_ring, RING_ALL_REDUCE, together=True)


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


def _summed_in_halves(function, seed):
    """A size that divides by the ranks; how many exchanges, and how many elements were sent in them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent, mine = [], _digits(seed, ranks * (2 + seed % 7))

    def swap(partner, outgoing, incoming):
        if not 0 <= partner < ranks or partner == rank:
            raise ValueError(f"rank {rank} of {ranks} cannot exchange with rank {partner}")
        sent.append(outgoing.numel())
        _swap(outgoing, incoming, to=partner, source=partner)

    function(mine, swap)
    return {"the tensor": mine, "the elements sent": sum(sent), "the number of exchanges": len(sent)}


HALVE_AND_DOUBLE = """
correct: you sent as many bytes as the ring does, in 2 log2 N exchanges

that is the way down: each rank has a finished part, and now the parts must come together again
    in reversed(way) -> in []
the sum is right, but whole tensors were exchanged: each exchange of the first half carries half of the one
before
    low, high = mine.chunk(2) -> low = high = mine
    swap(rank ^ gap, given, incoming) -> swap(rank ^ gap, given.clone(), incoming)
    in reversed(way) -> in []
"""
halve_and_double = build(
    solutions.halve_and_double_solution, _summed_in_halves, HALVE_AND_DOUBLE, together=True
)


BUS_BANDWIDTH = """
correct: this is what a rank's link carries, so you can compare it with the link's own speed at any
number of ranks

that is the algorithm bandwidth: the tensor's bytes over the time
    2 * (ranks - 1) / ranks * size -> size
an all-reduce is a reduce-scatter and an all-gather: each sends (N - 1) / N of the tensor
    2 * ->
2 S is the limit for very many ranks; a rank sends each part but one, twice
    (ranks - 1) / ranks * size -> size
that is what all ranks send together
    / ranks ->
"""
bus_bandwidth = formula(
    solutions.bus_bandwidth_solution, [(1e9, 8, 0.01), (1e9, 2, 0.01), (4e6, 64, 1e-3)], BUS_BANDWIDTH
)


TWO_LEVEL_SECONDS = """
correct: the slow links carry only the part that each GPU is left with after the sum within its host

between the hosts a GPU sends only its part: the reduce-scatter has left it 1 / gpus of the tensor
    size / gpus -> size
at the end the parts must be gathered again within each host
    2 * within -> within
within a host a reduce-scatter is enough, and later an all-gather: half an all-reduce each
    "reduce_scatter" -> "all_reduce"
`wire_bytes` takes the bytes of the full tensor: for an all-gather that is the result, as large as before the
reduce-scatter
    2 * within -> within + theory.wire_bytes("all_gather", size / gpus, gpus) / inside
the reduce-scatter leaves each GPU 1 / gpus of the tensor, whatever the number of hosts
    size / gpus -> size / hosts
the three go one after another, so their times add up
    2 * within + -> max(2 * within,
    / across -> / across)
in the all-reduce across, a GPU meets the one GPU of each other host that holds the same part: `hosts` ranks
    gpus, hosts) -> gpus, hosts * gpus)
`inside` is the speed within a host, `across` the one between hosts
    / across -> / other
    / inside -> / across
    / other -> / inside
"""
two_level_seconds = formula(
    solutions.two_level_seconds_solution,
    [(8e9, 2, 8, 400e9, 50e9), (26e9, 16, 4, 100e9, 12.5e9)],
    TWO_LEVEL_SECONDS,
)


all_numbers = RankExercise(
    lambda ranks, random: [{"number": number} for number in random.sample(range(10, 100), ranks)],
    lambda rank, given: [own["number"] for own in given],
    mistakes={
        "that is one number over and over: each broadcast needs a source of its own, and a fresh tensor": (
            lambda rank, given: [given[0]["number"]] * len(given)
        )
    },
    solution=solutions.gather_by_broadcast_solution,
    praise="every rank has all numbers in order. A real all-gather sends the same bytes, "
    "but all ranks send at once",
)
