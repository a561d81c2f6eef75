"""A block of which each rank of a tensor-parallel group holds a part: the layers of lesson 05, for groups of
some of the ranks.

Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3, figure 3) calls its two operators f and g.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.models.gpt import Block, GPTSize

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx
    from torch.distributed import ProcessGroup

AUTOTP_RULES = {  # DeepSpeed's `partition_config` of the course's GPT, built up in lesson 05
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*\.qkv\.weight$"], "partition_type": "column", "shape": [3, -1], "partition_dim": 0},
        {"patterns": [r".*\.up\.weight$"], "partition_type": "column"},
        {"patterns": [r".*\.out\.weight$", r".*\.down\.weight$"], "partition_type": "row"},
    ],
}


class CopyToGroup(torch.autograd.Function):
    """f: the same x for every rank's part; backward the sum of their gradients, an all-reduce within the
    group."""

    @staticmethod
    def forward(context: FunctionCtx, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _summed(gradient, context.group), None


class SumOverGroup(torch.autograd.Function):
    """g: the sum of the ranks' parts, an all-reduce within the group; backward nothing is sent."""

    @staticmethod
    def forward(context: FunctionCtx, part: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        return _summed(part, group)

    @staticmethod
    def backward(context: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _summed(tensor, group):
    import deepspeed.comm as comm

    total = tensor.contiguous().clone()
    comm.all_reduce(total, group=group)
    return total


class ColumnParallel(nn.Module):
    """This rank's outputs of a linear layer: `weight` is of shape (outputs / t, inputs), `bias` of
    (outputs / t,)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, group: ProcessGroup) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(part.detach().clone()) for part in (weight, bias))
        self.group = group

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        return F.linear(CopyToGroup.apply(x_bsh, self.group), self.weight, self.bias)


class RowParallel(ColumnParallel):
    """A linear layer of which this rank has some inputs: `weight` is of shape (outputs, inputs / t), and the
    replicated bias is added once."""

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        return SumOverGroup.apply(F.linear(x_bsh, self.weight), self.group) + self.bias


def tensor_part(name: str, tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """What rank `rank` of t holds of a complete parameter of a `Block`, such as "attention.qkv.weight": its
    heads of q, k and v, its columns of `up`, its rows of `out` and `down`; else all."""
    if "qkv" in name:
        return tensor.unflatten(0, (3, ranks, -1))[:, rank].flatten(0, 1)
    if "feed_forward.up" in name:
        return tensor.chunk(ranks)[rank]
    if name.endswith(("out.weight", "down.weight")):
        return tensor.chunk(ranks, dim=1)[rank]
    return tensor


class TensorBlock(Block):
    """A `Block` made complete, of which this rank keeps its part of four linear layers; six of its twelve
    parameters are sharded.

    Args:
        rank, ranks: this rank's place in its tensor-parallel group, and t, which divides the heads.
        marked: set `model_parallel` on each sharded parameter, by which DeepSpeed knows it from a replicated
            one when it computes a norm.
    """

    def __init__(
        self, size: GPTSize, rank: int, ranks: int, group: ProcessGroup, marked: bool = True
    ) -> None:
        super().__init__(size)
        if ranks < 1 or size.heads % ranks:
            raise ValueError(f"{ranks!r} ranks cannot share {size.heads} heads: use a divisor")
        linear = [(name, layer) for name, layer in self.named_modules() if isinstance(layer, nn.Linear)]
        for name, layer in linear:
            by_rows = name.endswith(("out", "down"))
            weight, bias = (
                tensor_part(f"{name}.{part}", getattr(layer, part), rank, ranks)
                for part in ("weight", "bias")
            )
            sharded = (RowParallel if by_rows else ColumnParallel)(weight, bias, group)
            if marked:
                sharded.weight.model_parallel = True
            if marked and not by_rows:
                sharded.bias.model_parallel = True
            self.set_submodule(name, sharded)
