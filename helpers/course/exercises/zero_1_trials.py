"""What the checks of lesson 07 look at, in every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from helpers.course.exercises.calls import Calls
from helpers.course.exercises.in_ranks import helped
from helpers.course.exercises.solutions.zero_1 import (  # noqa: F401  mistakes call the rungs by these names
    clip_shard,
    flatten_solution,
    reduce_to_owner,
    step_and_gather,
)
from helpers.course.exercises.trials import randn_of_rank, returned
from helpers.tools.measure.traffic import Traffic

if TYPE_CHECKING:
    from helpers.course.exercises.calls import Call
    from helpers.course.exercises.in_ranks import Values

ADVICE = {  # {what torch says of a slip: what to do}
    "attempting to assign a gradient": "the master is fp32, and so is its gradient: cast this rank's shard, "
    "`mine.float()`",
    "for /: 'NoneType'": "a collective writes into the tensor that it is given and returns nothing of use",
    "'NoneType' object": "the master has no gradient until you assign one: `master.grad = ...`",
}


def shapes_of(seed: int, ranks: int, even: bool = False) -> list[tuple[int, ...]]:
    """Shapes of five parameters.  The ranks divide the elements of none of the first four.  They divide all
    elements if `even`; else `ranks - 1` elements are missing, so that -len % ranks is not len % ranks."""
    shapes = [(5, 1 + ranks * (1 + seed % 3)), (1 + ranks,), (3, 1 + ranks), (1 + ranks * (1 + seed % 2),)]
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    return [*shapes, ((0 if even else 1) + ranks + -elements % ranks,)]


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of this rank's part of a tensor."""
    return tensor.chunk(dist.get_world_size())[dist.get_rank()].clone()


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


def flattened(function: Callable, seed: int) -> Values:
    """A total that is no multiple of the ranks, in fp32, and one that is, in bf16; what lives in it."""
    ranks, values = dist.get_world_size(), {}
    for case, dtype in (("", torch.float32), (", where nothing is to pad, in bf16", torch.bfloat16)):
        shapes = shapes_of(seed, ranks, even=bool(case))
        parameters = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        flat = returned(function(list(parameters), ranks), torch.Tensor, "flatten must return one tensor")
        values |= {
            f"the flat tensor{case}": flat.detach().clone(),
            f"the dtype of the flat tensor{case}": str(flat.dtype),
            f"the flat tensor belongs to no graph of autograd{case}": not flat.requires_grad,
            f"the shapes of the parameters{case}": [list(parameter.shape) for parameter in parameters],
        }
        flat.detach().add_(1)
        for index, parameter in enumerate(parameters):
            values[f"the model's parameter {index} after 1 was added to the flat tensor{case}"] = parameter
    return values


def sharded(function: Callable, seed: int) -> Values:
    """A shard of a flat tensor in fp32 and in bf16, and whether it has memory of its own."""
    rank, ranks, values = dist.get_rank(), dist.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        flat = torch.randn(ranks * (3 + seed % 4)).to(dtype)
        master = returned(function(flat, rank, ranks), torch.Tensor, "own_shard must return one tensor")
        before, when = master.detach().clone(), f", of {str(dtype).removeprefix('torch.')}"
        flat += 1
        values |= {
            f"the master{when}": before,
            f"the dtype of the master{when}": str(master.dtype),
            f"the master is an nn.Parameter{when}": isinstance(master, nn.Parameter),
            f"the master stays as it is when flat changes{when}": before.equal(master.detach()),
        }
    return values


def with_gradients(
    ranks: int, dtype: torch.dtype, seed: int
) -> tuple[list[nn.Parameter], torch.Tensor, torch.Tensor]:
    """(parameters with this rank's own gradients, their flat tensor, all ranks' mean gradient, padded)."""
    shapes = shapes_of(seed, ranks)
    parameters = [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
    by_rank = [[multiples(shape, 8).to(dtype) for shape in shapes] for _ in range(ranks)]
    for parameter, gradient in zip(parameters, by_rank[dist.get_rank()]):
        parameter.grad = gradient.clone()
    flat = flatten_solution(parameters, ranks)
    mean = sum(torch.cat([part.flatten().float() for part in parts]) for parts in by_rank) / ranks
    return parameters, flat, F.pad(mean, (0, len(flat) - len(mean)))


def reduced(function: Callable, seed: int) -> Values:
    """The shard of the mean gradient, in fp32 and in bf16, and what was sent for it."""
    ranks, values = dist.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        parameters, flat, mean = with_gradients(ranks, dtype, seed)
        with Traffic() as traffic, Calls(fit), helped(ADVICE):
            mine = returned(function(list(parameters), flat), torch.Tensor, "return this rank's shard")
        most = (ranks - 1) * len(flat) // ranks * flat.element_size()
        when = f", {str(dtype).removeprefix('torch.')}"
        values |= {
            f"this rank's gradient{when}": mine,
            f"it is the mean over all ranks{when}": mine.float().equal(own_part(mean)),
            f"its dtype{when}": str(mine.dtype),
            f"every gradient is sent once at most{when}": sum(traffic.ideal.values()) <= most,
        }
    return values


def clipped(function: Callable, seed: int) -> Values:
    """A gradient that is too long, one that is although rank 0's shard is short, and one that is not."""
    rank, values = dist.get_rank(), {}
    lengths = {
        "a long gradient": 1 + rank,
        "a gradient that is long on other ranks only": rank + 1e-2,
        "a short gradient": 1e-3 * (1 + rank),
    }
    for (case, length), shard in zip(lengths.items(), randn_of_rank(seed, 3, 40)):
        shard *= length
        norm = function(shard, 1.0)
        values[f"the norm of {case}"] = float("nan") if norm is None else float(norm)
        values[f"the shard of {case}"] = shard
    return values


def gathered(function: Callable, seed: int) -> Values:
    """Two updates of a master by given gradients, in fp32 and in bf16.  With SGD, since Adam hides a gradient
    of the wrong size."""
    ranks, values = dist.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        full = nn.Parameter(multiples((ranks * (3 + seed % 4),), 4096))  # finer than bf16, which rounds them
        flat, master = full.detach().to(dtype, copy=True), nn.Parameter(own_part(full.detach()))
        optimizer, alone = (torch.optim.SGD([tensor], 1 / 8, momentum=1 / 2) for tensor in (master, full))
        most = (ranks - 1) * len(master) * flat.element_size()
        for step in (1, 2):
            full.grad = multiples(full.shape, 8)
            with Traffic() as traffic, Calls(fit), helped(ADVICE):
                function(flat, master, optimizer, own_part(full.grad))
            alone.step()
            when = f", {str(dtype).removeprefix('torch.')}, step {step}"
            values |= {
                f"this rank's masters{when}": master.detach().clone(),
                f"they are those of one process{when}": master.equal(own_part(full)),
                f"the flat tensor{when}": flat.detach().clone(),
                f"it is all masters of one process, rounded{when}": flat.equal(full.to(dtype)),
                f"the master has no gradient left{when}": master.grad is None,
                f"every parameter is sent once at most{when}": sum(traffic.ideal.values()) <= most,
            }
    return values


def stepped(function: Callable, seed: int) -> Values:
    """Three steps on random gradients, the last one clipped, in fp32 and in bf16, beside the same steps in
    one process that has all masters and all gradients.  With SGD, as above."""
    rank, ranks, values = dist.get_rank(), dist.get_world_size(), {}
    for dtype in (torch.float32, torch.bfloat16):
        shapes = shapes_of(seed, ranks)
        parameters = [nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
        flat = flatten_solution(parameters, ranks)
        places = [parameter.data_ptr() for parameter in parameters]
        full = nn.Parameter(multiples(flat.shape, 4096))
        flat.copy_(full.detach())
        master = nn.Parameter(own_part(full.detach()))
        optimizer, alone = (torch.optim.SGD([tensor], 1 / 8, momentum=1 / 2) for tensor in (master, full))
        most = 2 * (ranks - 1) * (len(master) * flat.element_size() + 4)
        for step, limit in ((1, float("inf")), (2, float("inf")), (3, 1.0)):
            by_rank = [[multiples(shape, 8).to(dtype) for shape in shapes] for _ in range(ranks)]
            for parameter, gradient in zip(parameters, by_rank[rank]):
                parameter.grad = gradient.clone() if parameter.grad is None else parameter.grad + gradient
            with Traffic() as traffic, Calls(fit), helped(ADVICE):
                norm = function(list(parameters), flat, master, optimizer, limit)
            mean = sum(torch.cat([part.flatten().float() for part in parts]) for parts in by_rank) / ranks
            full.grad = F.pad(mean, (0, len(flat) - len(mean)))
            nn.utils.clip_grad_norm_([full], limit)
            alone.step()
            left = [parameter.grad for parameter in parameters if parameter.grad is not None]
            when = f", {str(dtype).removeprefix('torch.')}, step {step}"
            values |= {
                f"this rank's masters{when}": master.detach().clone(),
                f"they are those of one process{when}": master.allclose(own_part(full), atol=1e-5),
                f"the flat tensor{when}": flat.detach().clone(),
                f"the norm that was returned{when}": float("nan") if norm is None else float(norm),
                f"the parameters are where they were in it{when}": places
                == [parameter.data_ptr() for parameter in parameters],
                f"the parameters' gradients that are left{when}": len(left),
                f"those of them that are not zero{when}": sum(bool(gradient.any()) for gradient in left),
                f"the master has no gradient left{when}": master.grad is None,
                f"the gradients and the parameters are sent once{when}": sum(traffic.ideal.values()) <= most,
            }
    return values
