"""Is it the same training?  Distances of ranks' gradients, norms and weights from one process's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.plots.distances import distance_bars

if TYPE_CHECKING:
    import torch
    from helpers.course.plots.style import Plot

# Optimizers that divide a gradient by its own size.
SCALE_BLIND = ("adam", "adamw", "nadam", "radam", "adamax", "adagrad", "rmsprop", "adafactor", "lion", "lamb")


def same_training(
    reports: Sequence[Mapping],
    right: Mapping,
    optimizer: str,
    title: str = "Distance from the right training",
    tolerance: float | Mapping[str, float] = 1e-4,
) -> Plot:
    """How far ranks' training is from the right one: global norms, gradients, masters, and weights, whichever
    the reports have.

    Args:
        reports: of each rank, "weights", a tensor of all, and where known "gradients" and "masters", tensors,
            and "norms", the norm of the whole gradient before it is clipped, of each step.
        right: the same, and "start": the weights before the first step, as `training.in_one_process` reports.
        optimizer: its name.  Adam and its kin divide a gradient by its size; the card says so.
        tolerance: of each distance, or {what is compared: its tolerance}.
            Norms: relative.  Gradients: in lengths of the right ones.  Masters
            and weights: in lengths of the right update, since a wrong step is small beside the weights.

    Raises:
        ValueError: where weights are all that could be compared, and the optimizer hides the gradients'
            scale; or a report lacks what it needs.
    """
    if lacking := [key for key in ("weights", "start") if right.get(key) is None]:
        raise ValueError(
            f"the right training reports no {' and no '.join(lacking)}: training.in_one_process does"
        )
    rows = distances(reports, right)
    blind = optimizer.lower() in SCALE_BLIND
    if blind and len(rows) < 3:
        raise ValueError(
            f"weights alone, trained with {optimizer}, cannot show gradients of a wrong scale: report "
            '"norms" or "gradients", or train with SGD'
        )
    note = f"trained with {optimizer}, " + (
        "whose weights barely react if all gradients are scaled"
        if blind
        else "whose steps show the gradients' scale"
    )
    return distance_bars(rows, tolerance, title, note)


def distances(reports: Sequence[Mapping], right: Mapping) -> dict[str, float]:
    """{what is compared: its largest distance over the ranks}; see `same_training`."""
    found = {}
    if all(report.get("norms") is not None for report in (right, *reports)):
        pairs = [pair for report in reports for pair in zip(report["norms"], right["norms"], strict=True)]
        found["global norm of each step"] = _largest(abs(one - due) / abs(due) for one, due in pairs)
    if all(report.get("gradients") is not None for report in (right, *reports)):
        found["gradients"] = _largest(
            apart(report["gradients"], right["gradients"], right["gradients"]) for report in reports
        )
    update = right["weights"] - right["start"]
    if all(report.get("masters") is not None for report in (right, *reports)):
        step = right["masters"] - right["start"]
        found["masters"] = _largest(apart(report["masters"], right["masters"], step) for report in reports)
    first = reports[0]["weights"]
    found["weights"] = _largest(apart(report["weights"], right["weights"], update) for report in reports)
    found["weights, between ranks"] = _largest(apart(report["weights"], first, update) for report in reports)
    return found


def apart(one: torch.Tensor, other: torch.Tensor, measure: torch.Tensor) -> float:
    """The distance of two tensors in lengths of a third; they must have one shape."""
    if one.shape != other.shape:
        raise ValueError(
            f"tensors of {one.shape} and {other.shape} elements cannot be compared: gather shards"
        )
    return ((one.double() - other.double()).norm() / measure.double().norm()).item()


def _largest(numbers):
    """The largest, and a NaN where there is one."""
    numbers = list(numbers)
    return next((number for number in numbers if number != number), max(numbers))
