"""Which ranks hold most and least, by the arithmetic of ZeRO's partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

ALIGNMENT = 2  # stages 1 and 2 pad a partition to a multiple of so many elements


def held(sizes: Sequence[int], stage: int, ranks: int, in_turn: bool = False) -> numpy.ndarray:
    """Elements that each rank handles.

    A rank of stages 1 and 2 handles whole every gradient that touches its partition; one of stage 3 has its
    part of every parameter, and padding where a parameter ends before.

    Args:
        sizes: elements of each parameter, in the optimizer's order.
        in_turn: whether ranks take the parameters in turn ("round_robin_gradients").
    """
    rank = numpy.arange(ranks)
    if stage == 0 or not sizes:
        return numpy.zeros(ranks, dtype=numpy.int64)
    if stage == 3:
        parts = numpy.zeros(ranks, dtype=numpy.int64)
        for size in sizes:
            part = -(-size // ranks)
            parts += numpy.clip(size - rank * part, 0, part)
        return parts
    order = [size for first in range(ranks) for size in sizes[first::ranks]] if in_turn else sizes
    ends = numpy.cumsum(order)
    part = -(-int(ends[-1]) // (ALIGNMENT * ranks)) * ALIGNMENT
    first = numpy.searchsorted(ends, rank * part, side="right")
    last = numpy.searchsorted(ends, (rank + 1) * part, side="left").clip(max=len(order) - 1)
    starts = numpy.concatenate([[0], ends])
    return numpy.where(first < len(order), ends[last] - starts[first.clip(max=len(order) - 1)], 0)


def most_different(sizes: Sequence[int], stage: int, ranks: int, in_turn: bool = False) -> list[int]:
    """The first rank, the one that holds most and the one that holds least, as `held` has it."""
    parts = held(sizes, stage, ranks, in_turn)
    return sorted({0, int(parts.argmax()), int(parts.argmin())})
