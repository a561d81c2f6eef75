"""Lesson 07: the rungs of ZeRO-1's step, a bug to plant, what a rank holds, and how many ranks it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises import zero_1_pictures as pictures
from helpers.course.exercises.guesses import guess as guess
from helpers.course.exercises.solutions.zero_1 import (  # noqa: F401  mistakes call the rungs
    flatten_solution,
)
from helpers.course.exercises.stubs import Stubs
from helpers.course.exercises.zero_1_held import held
from helpers.course.exercises.zero_1_pictures import own_part

if TYPE_CHECKING:
    from helpers.course.exercises.calls import Call
    from helpers.course.exercises.seeing import See

stubs = Stubs("zero_1")
DTYPES = torch.float32, torch.bfloat16
TENSOR = torch.Tensor


def shapes_of(seed: int, ranks: int, even: bool = False) -> list[tuple[int, ...]]:
    """Shapes of five parameters.  The ranks divide the elements of none of the first four.  They divide all
    elements if `even`; else `ranks - 1` elements are missing, so that -len % ranks is not len % ranks."""
    shapes = [(5, 1 + ranks * (1 + seed % 3)), (1 + ranks,), (3, 1 + ranks), (1 + ranks * (1 + seed % 2),)]
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    return [*shapes, ((0 if even else 1) + ranks + -elements % ranks,)]


def multiples(shape: Sequence[int], parts: int) -> torch.Tensor:
    """Random multiples of 1 / `parts` up to 1.  Sums of eighths over a few ranks are exact in bf16.  Steps
    with a learning rate of 1/8 are exact in fp32, so that the order of a sum does not matter."""
    return torch.randint(-parts, parts + 1, shape) / parts


def fit(call: Call) -> None:
    """Says in plain words what gloo would refuse in its own, before the call begins."""
    mine, everything, *_ = call.arguments.values()
    advice = "pad the gradients to the length of `flat`"
    if call.name == "all_gather_into_tensor":
        mine, everything, advice = everything, mine, "what is written comes first"
    elif call.name != "reduce_scatter_tensor":
        return
    ranks, problem = dist.get_world_size(), ""
    if torch.is_grad_enabled() and (mine.requires_grad or everything.requires_grad):
        problem = "a message is no part of autograd's graph: hand in `.detach()` of what requires a gradient"
    elif mine.dtype != everything.dtype:
        problem = f"`mine` is {mine.dtype}, `everything` {everything.dtype}; a message has one dtype: "
        problem += "cast one of them with `.to()`"
    elif mine.numel() * ranks != everything.numel():
        problem = f"`mine` has {mine.numel()} elements and `everything` {everything.numel()}, not {ranks} "
        problem += f"times as many; mind the order of the two, and {advice}"
    if problem:
        raise ValueError(f"{call.name}: {problem}")


def with_gradients(
    see: See, dtype: torch.dtype, parameters: list[nn.Parameter] | None = None
) -> tuple[list[nn.Parameter], torch.Tensor]:
    """(parameters with this rank's own gradients, all ranks' mean gradient as a flat tensor, padded)."""
    shapes = shapes_of(see.seed, see.ranks)
    parameters = parameters or [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
    by_rank = [[multiples(shape, 8).to(dtype) for shape in shapes] for _ in range(see.ranks)]
    for parameter, gradient in zip(parameters, by_rank[see.rank]):
        parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
    mean = sum(torch.cat([part.flatten().float() for part in parts]) for parts in by_rank) / see.ranks
    return parameters, F.pad(mean, (0, -len(mean) % see.ranks))


def with_sgd(*tensors: nn.Parameter) -> list[torch.optim.SGD]:
    """Optimizers that hide no wrong size of a gradient, as Adam does."""
    return [torch.optim.SGD([tensor], 1 / 8, momentum=1 / 2) for tensor in tensors]


@stubs.in_ranks(together=True, example=pictures.where_each_lies)
def flatten(see: See, answer: Callable) -> None:
    """A total that is no multiple of the ranks, in fp32, and one that is, in bf16; what lives in it."""
    cases = {"": torch.float32, ", where nothing is to pad, in bf16": torch.bfloat16}
    for dtype in see.each(cases):
        shapes = shapes_of(see.seed, see.ranks, even=dtype == torch.bfloat16)
        parameters = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        flat = see.call(
            answer, list(parameters), see.ranks, returns=TENSOR, due="flatten must return one tensor"
        )
        see("the flat tensor", flat.detach().clone())
        see("the dtype of the flat tensor", str(flat.dtype))
        see("the flat tensor belongs to no graph of autograd", not flat.requires_grad)
        see("the shapes of the parameters", [list(parameter.shape) for parameter in parameters])
        flat.detach().add_(1)
        for index, parameter in enumerate(parameters):
            see(f"the model's parameter {index} after 1 was added to the flat tensor", parameter)


@stubs.in_ranks(example=pictures.small_updates)
def own_shard(see: See, answer: Callable) -> None:
    """A shard of a flat tensor in fp32 and in bf16, and whether it has memory of its own."""
    for dtype in see.dtypes(*DTYPES):
        flat = torch.randn(see.ranks * (3 + see.seed % 4)).to(dtype)
        due = "own_shard must return one tensor"
        given = flat.clone()
        master = see.call(answer, flat, see.rank, see.ranks, returns=TENSOR, due=due)
        see("flat stays as it was", given.equal(flat))
        before = master.detach().clone()
        flat += 1
        see("the master", before)
        see("the dtype of the master", str(master.dtype))
        see("elements in the master's memory", master.untyped_storage().nbytes() // master.element_size())
        see("the master is an nn.Parameter", isinstance(master, nn.Parameter))
        see("the master stays as it is when flat changes", before.equal(master.detach()))


@stubs.in_ranks(together=True, example=pictures.ranks_numbers_reduced)
def reduce_to_owner(see: See, answer: Callable) -> None:
    """The shard of the mean gradient, in fp32 and in bf16, and what was sent for it."""
    for dtype in see.dtypes(*DTYPES):
        parameters, mean = with_gradients(see, dtype)
        flat = flatten_solution(parameters, see.ranks)
        due = "return this rank's shard"
        mine = see.call(answer, list(parameters), flat, returns=TENSOR, due=due, look=fit)
        see("this rank's gradient", mine)
        see("it is the mean over all ranks", mine.float().equal(own_part(mean)))
        see("its dtype", str(mine.dtype))
        most = (see.ranks - 1) * len(flat) // see.ranks * flat.element_size()
        see("every gradient is sent once at most", see.sent <= most)


@stubs.in_ranks(together=True, example=pictures.ranks_numbers_clipped)
def clip_shard(see: See, answer: Callable) -> None:
    """A gradient that is too long, one that is although rank 0's shard is short, or zero,
    and one that is not; and that a few numbers are sent, not a shard."""
    lengths = {
        " of a long gradient": 1 + see.rank,
        " of a gradient that is long on other ranks only": see.rank + 1e-2,
        " of a short gradient": 1e-3 * (1 + see.rank),
        " of a gradient of which rank 0 has zeros": float(see.rank),
    }
    shards = iter(see.randn(4, 40))
    for length in see.each(lengths):
        shard = next(shards) * length
        norm = see.call(answer, shard, 1.0)
        see("the norm", float("nan") if norm is None else float(norm))
        see("the shard", shard)
        see("a few numbers are sent, no shard", see.sent <= shard.nbytes // 2)


@stubs.in_ranks(together=True, example=pictures.ranks_numbers_stepped)
def step_and_gather(see: See, answer: Callable) -> None:
    """Two updates of a master by given gradients, in fp32 and in bf16."""
    for dtype in see.dtypes(*DTYPES):
        full = nn.Parameter(
            multiples((see.ranks * (16 + see.seed % 4),), 4096)
        )  # finer than bf16, which rounds
        flat, master = full.detach().to(dtype, copy=True), nn.Parameter(own_part(full.detach()))
        optimizer, alone = with_sgd(master, full)
        for _ in see.steps(2):
            full.grad = multiples(full.shape, 8)
            see.call(answer, flat, master, optimizer, own_part(full.grad), look=fit)
            alone.step()
            see("this rank's masters", master.detach().clone())
            see("they are those of one process", master.equal(own_part(full)))
            see("the flat tensor", flat.detach().clone())
            see("it is all masters of one process, rounded", flat.equal(full.to(dtype)))
            see("the master has no gradient left", master.grad is None)
            most = (see.ranks - 1) * len(master) * flat.element_size()
            see("every parameter is sent once at most", see.sent <= most)


@stubs.in_ranks(together=True, rungs=(reduce_to_owner, clip_shard, step_and_gather))
def zero_1_step(see: See, answer: Callable) -> None:
    """Three steps on random gradients, the last one clipped, in fp32 and in bf16, beside the same steps in
    one process that has all masters and all gradients."""
    for dtype in see.dtypes(*DTYPES):
        parameters = [
            nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes_of(see.seed, see.ranks)
        ]
        flat = flatten_solution(parameters, see.ranks)
        places = [parameter.data_ptr() for parameter in parameters]
        full = nn.Parameter(multiples(flat.shape, 4096))
        flat.copy_(full.detach())
        master = nn.Parameter(own_part(full.detach()))
        optimizer, alone = with_sgd(master, full)
        for step in see.steps(3):
            limit = 1.0 if step == 3 else float("inf")
            _, full.grad = with_gradients(see, dtype, parameters)
            norm = see.call(answer, list(parameters), flat, master, optimizer, limit, look=fit)
            nn.utils.clip_grad_norm_([full], limit)
            alone.step()
            left = [parameter.grad for parameter in parameters if parameter.grad is not None]
            see("this rank's masters", master.detach().clone())
            see("they are those of one process", master.allclose(own_part(full), atol=1e-5))
            see("the flat tensor", flat.detach().clone())
            see("the norm that was returned", float("nan") if norm is None else float(norm))
            moved = [parameter.data_ptr() for parameter in parameters] != places
            see("the parameters are where they were in it", not moved)
            see("the parameters' gradients that are left", len(left))
            see("those of them that are not zero", sum(bool(gradient.any()) for gradient in left))
            see("the master has no gradient left", master.grad is None)
            most = 2 * (see.ranks - 1) * (len(master) * flat.element_size() + 4)
            see("the gradients and the parameters are sent once", see.sent <= most)


clip_late = stubs.fault("clip_late", zero_1_step, rungs=(reduce_to_owner, clip_shard, step_and_gather))

zero_1_bytes = stubs.build("zero_1_bytes", held, worlds=(2, 3))

zero_1_ranks_needed = stubs.formula("zero_1_ranks_needed", [(7.5e9, 40e9), (1e9, 16e9)])
