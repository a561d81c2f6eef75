"""What the checks of lesson 03 look at, in every rank, and what its pictures show of a learner's
functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.exercises.meeting import agreed, own_group
from helpers.course.exercises.seeing import helped, returned
from helpers.course.exercises.trials import randn_of_rank
from helpers.tools.measure.internals import replaced

if TYPE_CHECKING:
    from helpers.course.exercises.in_ranks import Values

HINTS = {  # {errors that say little: what to do}
    "index out of range": "`chunk` may make fewer parts than ranks, `tensor_split` never does",
    "does not support item assignment": "give the part a name before you add to it, or use "
    "`parts[k].add_(incoming)`",
}


def digits(seed: int, elements: int) -> torch.Tensor:
    """This rank's own random numbers: 1 to 4 in units of 10^rank, so that the digits of a sum say whose
    number is missing or was added twice."""
    random = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    return 10.0 ** dist.get_rank() * torch.randint(1, 5, (elements,), generator=random)


def swapped(
    outgoing: torch.Tensor, incoming: torch.Tensor, to: int | None = None, source: int | None = None
) -> None:
    """Send to a rank, the right neighbour if none is named, and receive from another at once; these are the
    check's own messages."""
    rank, ranks, group = dist.get_rank(), dist.get_world_size(), own_group()
    to, source = ((rank + 1) % ranks, (rank - 1) % ranks) if to is None else (to, source)
    send = dist.P2POp(dist.isend, outgoing, to, group)
    receive = dist.P2POp(dist.irecv, incoming, source, group)
    for request in dist.batch_isend_irecv([send, receive]):
        request.wait()


class Misfit(Exception):
    """What arrives has another size than the tensor in which it is received."""


class Counted:
    """An `exchange` for a learner's ring that notes how many elements each call carries.

    What arrives must fit exactly into what it is received in: gloo does not always say so.
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        self.sizes.append(outgoing.numel())
        arriving = torch.zeros(1, dtype=torch.int64)
        swapped(torch.tensor([outgoing.numel()]), arriving)
        fits = incoming.numel() == arriving.item()
        if not agreed(fits):  # then no rank goes on
            wrong = f"{arriving.item()} elements, to be received in a tensor of {incoming.numel()}"
            here = "on another rank what arrives does not fit" if fits else wrong
            advice = "the size must be that of the part that arrives, the one that its sender must send"
            raise Misfit(f"exchange {len(self.sizes)}: {here}; {advice}")
        swapped(outgoing, incoming)


def exchanged(function: Callable, seed: int) -> Values:
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


def in_a_ring(function: Callable, seed: int, shown: str) -> Values:
    """A function of (tensor, exchange) with tensors of three sizes: one that divides by the ranks, one that
    does not, and one of which `chunk` makes fewer parts than there are ranks.

    Args:
        shown: what must be right in the end, "the tensor" or "part r of rank r".
    """
    values, rank, ranks = {}, dist.get_rank(), dist.get_world_size()
    for elements in (ranks * (2 + seed % 7), ranks * (20 + seed % 50) + 1 + seed % (ranks - 1 or 1), 9):
        mine, exchange = digits(seed, elements), Counted()
        before = mine.clone()
        arrives = f"what arrives, {elements} elements"
        try:
            with helped(HINTS):
                function(mine, exchange)
        except Misfit as misfit:
            return values | {arrives: str(misfit)}
        values[arrives] = "what fits"
        small = max(exchange.sizes, default=0) <= -(-elements // ranks)
        values[f"the number of exchanges, {elements} elements"] = len(exchange.sizes)
        values[f"no exchange carries more than 1/{ranks}, rounded up, {elements} elements"] = small
        right = mine if shown == "the tensor" else mine.tensor_split(ranks)[rank]
        values[f"{shown}, {elements} elements"] = right
        values[f"the tensor was changed in place, {elements} elements"] = not mine.equal(before)
    return values


def scattered(function: Callable, seed: int) -> Values:
    """A sum whose part r is finished on rank r; what the other parts hold then is not judged."""
    return in_a_ring(function, seed, "part r of rank r")


def gathered(function: Callable, seed: int) -> Values:
    """Each rank's own part goes to all, in the place of what stands there."""
    return in_a_ring(function, seed, "the tensor")


def summed_in_halves(function: Callable, seed: int) -> Values:
    """A size that divides by the ranks; how many exchanges, and how many elements were sent in them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sent, mine = [], digits(seed, ranks * (2 + seed % 7))

    def swap(partner, outgoing, incoming):
        if not 0 <= partner < ranks or partner == rank:
            raise ValueError(f"rank {rank} of {ranks} cannot exchange with rank {partner}")
        sent.append(outgoing.numel())
        swapped(outgoing, incoming, to=partner, source=partner)

    function(mine, swap)
    return {"the tensor": mine, "the elements sent": sum(sent), "the number of exchanges": len(sent)}


# --- pictures: {moment: this rank's elements}, rank r with its numbers in units of 10^r


def counting() -> torch.Tensor:
    """1, 2, 3, ... in units of 10^rank, as many numbers as there are ranks."""
    return torch.arange(1, dist.get_world_size() + 1) * 10 ** dist.get_rank()


def at_its_place(part: torch.Tensor, place: int | None = None) -> list[int | None]:
    """A part in a row of as many numbers as there are ranks, at this rank's place or another; None
    elsewhere."""
    row, first = [None] * dist.get_world_size(), len(part) * (dist.get_rank() if place is None else place)
    row[first : first + len(part)] = part.tolist()
    return row


def what_arrived(function: Callable, seed: int) -> Values:
    """Each rank's number goes out, and one comes in."""
    outgoing, incoming = torch.tensor([10 ** dist.get_rank()]), torch.tensor([0])
    function(outgoing, incoming)
    return {"outgoing": outgoing.item(), "incoming": incoming.item()}


def before_each_exchange(function: Callable, mine: torch.Tensor) -> Values:
    """What this rank holds before each exchange, and in the end."""
    seen = []

    def exchange(outgoing, incoming):
        seen.append(mine.tolist())
        swapped(outgoing, incoming)

    function(mine, exchange)
    return dict(zip(("before", "after 1 exchange", "after 2", "after 3"), [*seen, mine.tolist()]))


def sums_that_grow(function: Callable, seed: int) -> Values:
    return before_each_exchange(function, counting())


def sums_that_go_round(function: Callable, seed: int) -> Values:
    """Rank r begins with part r of the sum, and 0 elsewhere."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = torch.zeros(ranks, dtype=torch.int64)
    mine[rank] = (rank + 1) * (10**ranks - 1) // 9
    seen = before_each_exchange(function, mine)
    return {moment: [number or None for number in numbers] for moment, numbers in seen.items()}


def each_rank_has_a_number(function: Callable, seed: int) -> Values:
    """A number of each rank's own."""
    numbers = returned(function(10 + seed % 40 + 7 * dist.get_rank()), list, "return a list")
    return {"what this rank returned": numbers}
