"""What each stage of a pipeline does, one action after another, where memory may be short.

An action is (kind, stage, micro), as in `theory.schedules`.  `cap` is how many micro-batches a stage may hold
activations of at once.
"""

from __future__ import annotations

from helpers.tools.theory.schedules import Action


def gpipe(stages: int, stage: int, micro_batches: int, cap: int) -> list[Action]:
    """All forward passes, then all backward passes, `cap` at a time (Huang et al., arXiv 1811.06965)."""
    order = []
    for first in range(0, micro_batches, cap):
        some = range(first, min(first + cap, micro_batches))
        order += [(kind, stage, micro) for kind in "FB" for micro in some]
    return order


def one_f_one_b(stages: int, stage: int, micro_batches: int, cap: int) -> list[Action]:
    """As many forward passes as stages follow, then one backward for each forward (PipeDream-Flush,
    arXiv 2006.09503)."""
    first = min(stages - stage, cap, micro_batches)
    order = [("F", stage, micro) for micro in range(first)]
    for micro in range(micro_batches):
        order.append(("B", stage, micro))
        if first + micro < micro_batches:
            order.append(("F", stage, first + micro))
    return order


def zero_bubble(stages: int, stage: int, micro_batches: int, cap: int) -> list[Action]:
    """1F1B with the backward pass split: gradients of the input at once, those of the weights as late as the
    stage holds no more than the first one does (ZB-H1, arXiv 2401.10241)."""
    late = min(stage, cap - min(stages - stage, cap))
    order = []
    for kind, _, micro in one_f_one_b(stages, stage, micro_batches, cap):
        order.append(("F" if kind == "F" else "I", stage, micro))
        if kind == "B" and micro >= late:
            order.append(("W", stage, micro - late))
    return order + [("W", stage, micro) for micro in range(max(micro_batches - late, 0), micro_batches)]


SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}
