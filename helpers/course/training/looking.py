"""Tests that look at what comes out of a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

Step = Callable[..., torch.Tensor]  # as a learner writes it


def tests_of(train: Callable[..., dict], looks: Mapping[str, tuple[str, dict]]) -> dict[str, Callable]:
    """Tests for `caught`, {name: function of a step}: each trains with the step, and looks at one thing.

    Args:
        train: the training, in a rank: a function of a step and of options, which returns a report.
        looks: {name: (what the test looks at, options of the training)}; it looks at the ranks' mean "loss"
            of the last step or that "loss, rounded" to one decimal, "norms", of each step before clipping,
            "bytes" after the last step, "held", bytes where they were last counted, "sent", elements of a
            step, "between ranks", how far a rank's weights are from rank 0's in lengths of its update, or
            what "weights" or "masters" have moved by.
    """
    known = {}

    def look(step: Step, what: str, options: dict) -> object:
        key = (id(step), repr(options))
        if key not in known:
            known[key] = step, train(step, **options)
        report = known[key][1]
        whole = {"loss": lambda: _mean(report["losses"][-1]), "norms": lambda: report["norms"]}
        whole["between ranks"] = lambda: _from_first(report["weights"], report["start"])
        whole["bytes"] = lambda: report["moments"]["after step"].total
        whole["loss, rounded"] = lambda: round(_mean(report["losses"][-1]), 1)
        whole["held"] = lambda: sum(report["held"].values())
        whole["sent"] = lambda: sum(report["carried"].values())
        return whole[what]() if what in whole else report[what] - report["start"]

    return {
        name: lambda step, what=what, options=options: look(step, what, options)
        for name, (what, options) in looks.items()
    }


def _mean(loss: float) -> float:
    """Over the ranks, where there are others; a collective."""
    import deepspeed.comm as comm

    if not comm.is_initialized():
        return loss
    total = torch.tensor(loss, dtype=torch.float64)
    comm.all_reduce(total)
    return total.item() / comm.get_world_size()


def _from_first(weights: torch.Tensor, start: torch.Tensor) -> float:
    """How far a rank's weights are from rank 0's, in lengths of what they have moved by; a collective."""
    import deepspeed.comm as comm

    first = weights.clone()
    if comm.is_initialized():
        comm.broadcast(first, 0)
    return ((weights - first).norm() / (weights - start).norm()).item()
