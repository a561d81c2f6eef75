"""What trials share: random numbers of a rank, sums over ranks, and a word where a function returns
something else."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from helpers.course.exercises.seeing import returned

if TYPE_CHECKING:
    from torch import Tensor


def seed_of_rank(seed: int) -> int:
    """A seed that differs from rank to rank."""
    import torch.distributed as dist

    return 1000 * (seed % 10**6) + dist.get_rank()


def random_of_rank(seed: int) -> random.Random:
    """Random numbers that differ from rank to rank, and are the same for the same seed."""
    return random.Random(seed_of_rank(seed))


def randn_of_rank(seed: int, *shape: int) -> Tensor:
    """The same, as a tensor."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed_of_rank(seed)))


def summed(tensor: Tensor) -> Tensor:
    """A new tensor: the sum over the ranks."""
    import torch.distributed as dist

    total = tensor.contiguous().clone()
    dist.all_reduce(total)
    return total


def complete(answer: object, names: tuple[str, ...], what: str = "") -> dict[str, object]:
    """A dict that a learner's function has returned; a KeyError says which of the names are missing."""
    returned(answer, dict, f"{what}return a dict with {', '.join(names)}")
    if missing := [name for name in names if name not in answer]:
        raise KeyError(f"{what}{', '.join(missing)} is missing")
    return answer
