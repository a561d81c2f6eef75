"""Lesson 03: the rungs of a ring all-reduce, a bug to plant, what messages cost, and other ways to a sum."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.meeting import agreed, own_group
from helpers.course.exercises.stubs import Stubs
from helpers.tools.measure.internals import stand_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from helpers.course.exercises.seeing import See

stubs = Stubs("collectives")


# --- messages of the check's own


def digits(see: See, elements: int) -> torch.Tensor:
    """This rank's own random numbers: 1 to 4 in units of 10^rank, so that the digits of a sum say whose
    number is missing or was added twice."""
    return 10.0**see.rank * torch.tensor(see.random().choices(range(1, 5), k=elements))


def swapped(outgoing: torch.Tensor, incoming: torch.Tensor, to: int, source: int) -> None:
    """Send to a rank and receive from one at once."""
    ends = (dist.isend, outgoing, to), (dist.irecv, incoming, source)
    for request in dist.batch_isend_irecv([dist.P2POp(*end, own_group()) for end in ends]):
        request.wait()


class Misfit(Exception):
    """What arrives has another size than the tensor in which it is received."""


class Exchange:
    """An `exchange` for a learner's ring that notes how many elements each call carries.

    What arrives must fit exactly into what it is received in: gloo does not always say so.
    """

    def __init__(self, see: See) -> None:
        self.right, self.left = (see.rank + 1) % see.ranks, (see.rank - 1) % see.ranks
        self.sizes: list[int] = []

    def __call__(self, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        self.sizes.append(outgoing.numel())
        arriving = torch.zeros(1, dtype=torch.int64)
        swapped(torch.tensor([outgoing.numel()]), arriving, self.right, self.left)
        fits = incoming.numel() == arriving.item()
        if not agreed(fits):  # then no rank goes on
            wrong = f"{arriving.item()} elements, to be received in a tensor of {incoming.numel()}"
            here = "on another rank what arrives does not fit" if fits else wrong
            advice = "the size must be that of the part that arrives, the one that its sender must send"
            raise Misfit(f"exchange {len(self.sizes)}: {here}; {advice}")
        swapped(outgoing, incoming, self.right, self.left)


# --- pictures: {moment: this rank's elements}, rank r with its numbers in units of 10^r


def what_arrived(see: See, answer: Callable) -> None:
    """Each rank's number goes out, and one comes in."""
    outgoing, incoming = torch.tensor([10**see.rank]), torch.tensor([0])
    answer(outgoing, incoming)
    see("outgoing", outgoing.item())
    see("incoming", incoming.item())


def before_each_exchange(see: See, answer: Callable, mine: torch.Tensor) -> None:
    """What this rank holds before each exchange, and in the end; None where that is 0."""
    held, exchange = [], Exchange(see)

    def noted(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        held.append(mine.tolist())
        exchange(outgoing, incoming)

    answer(mine, noted)
    for moment, numbers in zip(("before", "after 1 exchange", "after 2", "after 3"), [*held, mine.tolist()]):
        see(moment, [number or None for number in numbers])


def sums_that_grow(see: See, answer: Callable) -> None:
    """Each rank begins with 1, 2, 3, ... in its units."""
    before_each_exchange(see, answer, torch.arange(1, see.ranks + 1) * 10**see.rank)


def sums_that_go_round(see: See, answer: Callable) -> None:
    """Rank r begins with part r of the sum, and 0 elsewhere."""
    mine = torch.zeros(see.ranks, dtype=torch.int64)
    mine[see.rank] = (see.rank + 1) * (10**see.ranks - 1) // 9
    before_each_exchange(see, answer, mine)


# --- the lesson's

must_send = stubs.formula(
    "must_send",
    [
        ("all_reduce", 1e6, 4),
        ("reduce_scatter", 1e6, 4),
        ("all_gather", 16e9, 8),
        ("all_reduce", 1e9, 64),
        ("all_to_all", 1e6, 2),
        ("broadcast", 1e6, 8),
        ("reduce", 1e6, 5),
        ("send", 1e6, 4),
    ],
)


def between_ranks(operator: str, arguments: dict[str, object], send: Callable[[], object]) -> object:
    """Says in words that there is no such rank; torch ends the process then, or waits for ever."""
    peer, ranks = arguments["dst" if operator == "send" else "src"], dist.get_world_size()
    if not 0 <= peer < ranks:
        circle = f"in the circle, rank 0 is the right neighbour of rank {ranks - 1}"
        raise ValueError(f"there is no rank {peer}: ranks are 0 to {ranks - 1}; {circle}")
    return send()


@stubs.in_ranks(together=True, example=what_arrived)
def exchange(see: See, answer: Callable) -> None:
    """A small message and one of a megabyte, which no buffer holds."""
    sizes = 5 + see.seed % 5, 250_000 + see.seed % 100
    for elements in see.each({f", {size:,} elements": size for size in sizes}):
        outgoing, incoming = see.randn(elements), torch.zeros(elements)
        with ExitStack() as stack:
            stack.callback(stand_before("c10d", ("send", "recv_"), between_ranks))
            answer(outgoing, incoming)
        see("incoming", incoming)
        see("outgoing", outgoing)


def in_a_ring(see: See, answer: Callable) -> Iterator[torch.Tensor]:
    """What a function of (tensor, exchange) makes of tensors of three sizes: one that divides by the ranks,
    one that does not, and one of which `chunk` makes fewer parts than there are ranks."""
    ranks, seed = see.ranks, see.seed
    sizes = ranks * (2 + seed % 7), ranks * (20 + seed % 50) + 1 + seed % (ranks - 1), 9
    for elements in see.each({f", {size} elements": size for size in sizes}):
        mine, exchange = digits(see, elements), Exchange(see)
        try:
            see.call(answer, mine, exchange)
        except Misfit as misfit:
            see("what arrives", str(misfit))
            return
        see("what arrives", "what fits")
        see("the number of exchanges", len(exchange.sizes))
        small = max(exchange.sizes, default=0) <= -(-elements // ranks)
        see(f"no exchange carries more than 1/{ranks}, rounded up", small)
        yield mine
        see("the tensor was changed in place", not mine.equal(digits(see, elements)))


@stubs.in_ranks(together=True, example=sums_that_grow)
def ring_reduce_scatter(see: See, answer: Callable) -> None:
    """A sum whose part r is finished on rank r; what the other parts hold then is not judged."""
    for mine in in_a_ring(see, answer):
        see("part r of rank r", mine.tensor_split(see.ranks)[see.rank])


@stubs.in_ranks(together=True, example=sums_that_go_round)
def ring_all_gather(see: See, answer: Callable) -> None:
    """Each rank's own part goes to all, in the place of what stands there."""
    for mine in in_a_ring(see, answer):
        see("the tensor", mine)


passes_raw = stubs.fault("passes_raw", ring_reduce_scatter, worlds=(3, 4), rungs=())

fit = stubs.formula(
    "fit",
    [
        ([sent for sent in sizes], [start + sent / bandwidth for sent in sizes])
        for sizes, start, bandwidth in (
            ((1e4, 1e5, 1e6), 1e-5, 1e9),
            ((1e6, 4e6, 1.6e7, 6.4e7), 5e-5, 3e11),
            ((2e5, 5e5), 3e-4, 2.5e9),
        )
    ],
    near=1e-6,
)

all_reduce_seconds = stubs.formula(
    "all_reduce_seconds",
    [
        (way, size, ranks, 1e-5, 5e10)
        for size, ranks in ((1e9, 4), (1e3, 64), (16e9, 1024))
        for way in ("naive", "tree", "two trees", "ring")
    ],
)

exposed = stubs.formula("exposed", [(8, 0.1, 0.4), (100, 0.01, 5.0), (1, 0.4, 2.0), (1000, 0.004, 0.8)])


# --- the companion's


@stubs.in_ranks(together=True)
def halve_and_double(see: See, answer: Callable) -> None:
    """A size that divides by the ranks; how many exchanges, and how many elements were sent in them."""
    sent, mine = [], digits(see, see.ranks * (2 + see.seed % 7))

    def swap(partner: int, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        if not 0 <= partner < see.ranks or partner == see.rank:
            raise ValueError(f"rank {see.rank} of {see.ranks} cannot exchange with rank {partner}")
        sent.append(outgoing.numel())
        swapped(outgoing, incoming, to=partner, source=partner)

    answer(mine, swap)
    see("the tensor", mine)
    see("the elements sent", sum(sent))
    see("the number of exchanges", len(sent))


two_level_seconds = stubs.formula(
    "two_level_seconds", [(8e9, 2, 8, 400e9, 50e9), (26e9, 16, 4, 100e9, 12.5e9)]
)


@stubs.in_ranks()
def all_numbers(see: See, answer: Callable) -> None:
    """A number of each rank's own."""
    numbers = see.call(answer, 10 + see.seed % 40 + 7 * see.rank, returns=list, due="return a list")
    see("what this rank returned", [one.item() if torch.is_tensor(one) else one for one in numbers])
