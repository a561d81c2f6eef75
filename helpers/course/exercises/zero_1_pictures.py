"""What the pictures of lesson 07 show of a learner's functions, in every rank: {moment: this rank's elements
of the flat tensor}, None where it has none, and "" for padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from helpers.course.exercises.solutions.zero_1 import flatten_solution

if TYPE_CHECKING:
    from helpers.course.exercises.seeing import See

ELEMENTS = 45  # of the model below; four ranks have 48 with the padding
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of this rank's part of a tensor."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].clone()


def two_layers() -> list[nn.Parameter]:
    """The parameters of 3 x 6 and 6 x 3."""
    made = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 3))
    return list(made.parameters())


def at_its_place(elements: list[float]) -> list:
    """A rank's shard where it lies in the flat tensor; the last three elements are padding."""
    rank, size = dist.get_rank(), len(elements)
    row = [None] * rank * size + elements + [None] * (dist.get_world_size() - 1 - rank) * size
    return [None if value is None else value if at < ELEMENTS else "" for at, value in enumerate(row)]


def with_padding(flat: torch.Tensor) -> list:
    """All elements of the flat tensor; the last three are padding."""
    return [*flat[:ELEMENTS].tolist(), *[""] * 3]


def where_each_lies(see: See, answer: Callable) -> None:
    """{parameter: its name where it lies in the flat tensor}, and the padding."""
    parameters = two_layers()
    flat = answer(list(parameters), see.ranks)
    rows = {name: [None] * len(flat) for name in NAMES} | {"padding": [""] * len(flat)}
    for name, parameter in zip(NAMES, parameters):
        first = (parameter.data_ptr() - flat.data_ptr()) // flat.element_size()
        last = first + parameter.numel()
        rows[name][first:last] = [name] * parameter.numel()
        rows["padding"][first:last] = [None] * parameter.numel()
    for name, row in rows.items():
        see(name, row)


def small_updates(see: See, answer: Callable) -> None:
    """Ten updates of 0.001 from 1, of a flat tensor in bf16 and of this rank's master."""
    rank, ranks = see.rank, see.ranks
    flat = flatten_solution(two_layers(), ranks).bfloat16().fill_(1)
    master = answer(flat, rank, ranks).detach()
    for _ in range(10):
        flat += 0.001
        master += 0.001
    see("the bf16 weights, which all ranks hold, after ten updates of 0.001", with_padding(flat))
    see("the masters after the same", at_its_place([round(value, 4) for value in master.tolist()]))


def ranks_numbers_reduced(see: See, answer: Callable) -> None:
    """Each rank comes with gradients of which the tens are the owner's number + 1, the ones its own."""
    rank, parameters = see.rank, two_layers()
    flat = flatten_solution(parameters, see.ranks)
    for owner, part in enumerate(flat.chunk(see.ranks)):
        part.fill_(10 * (owner + 1) + rank + 1)
    for parameter in parameters:
        parameter.grad = parameter.detach().clone()
    see("before: the gradients that each backward pass made", with_padding(flat))
    see("after: what your function returned", at_its_place(answer(parameters, flat).tolist()))


def ranks_numbers_clipped(see: See, answer: Callable) -> None:
    """Each rank has its number + 1 as every gradient of its shard."""
    shard = torch.full((12,), see.rank + 1.0)
    if see.rank == see.ranks - 1:
        shard[9:] = 0  # padding
    before = at_its_place(shard.tolist())
    norm = round(float(answer(shard, 1.0)), 2)
    after = at_its_place([round(value, 3) for value in shard.tolist()])
    see("before", before)
    see(f"after: the norm of the whole was {norm}, and is 1", after)


def ranks_numbers_stepped(see: See, answer: Callable) -> None:
    """All weights are 0; each rank's gradient is minus its number + 1, and the learning rate 1."""
    rank, ranks = see.rank, see.ranks
    flat = flatten_solution(two_layers(), ranks).zero_()
    master = nn.Parameter(own_part(flat))
    before = with_padding(flat)
    answer(flat, master, torch.optim.SGD([master], lr=1.0), torch.full_like(master, -rank - 1.0))
    see("before: the weights", before)
    see("after the update: the masters", at_its_place(master.tolist()))
    see("after the all-gather: the weights", with_padding(flat))
