"""What trials share: random numbers of a rank, sums over ranks, and a word where a dict is not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.course.exercises.seeing import randn_of_rank as randn_of_rank
from helpers.course.exercises.seeing import random_of_rank as random_of_rank
from helpers.course.exercises.seeing import returned
from helpers.course.exercises.seeing import seed_of_rank as seed_of_rank

if TYPE_CHECKING:
    from torch import Tensor


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
