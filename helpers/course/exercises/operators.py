"""Operators of autograd out of two functions of a tensor, and such functions: of them answers, right and
mistaken, are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def operator(
    forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> type[torch.autograd.Function]:
    """An operator of autograd that does one thing forward and another backward."""

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            changed = forward(x)
            return changed.view_as(changed) if changed is x else changed

        @staticmethod
        def backward(context, gradient):
            return backward(gradient)

    return Operator


def identity(tensor: Tensor) -> Tensor:
    return tensor


def summed(tensor: Tensor) -> Tensor:
    """A new tensor: the sum over the ranks."""
    import deepspeed.comm as comm

    total = tensor.contiguous().clone()
    comm.all_reduce(total)
    return total


def rank_count() -> int:
    import deepspeed.comm as comm

    return comm.get_world_size()


def seed_by_rank(seed: int) -> None:
    """Let torch's own random numbers differ from rank to rank."""
    import deepspeed.comm as comm

    torch.manual_seed(1000 * (seed % 10**6) + comm.get_rank())


def randn_of_rank(seed: int, *shape: int) -> Tensor:
    """Random numbers that differ from rank to rank, and are the same for the same seed."""
    import deepspeed.comm as comm

    seed = 1000 * (seed % 10**6) + comm.get_rank()
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
