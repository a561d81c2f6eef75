"""What recorded bytes say, some of them beside the exact formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from helpers.tools import theory

if TYPE_CHECKING:
    from helpers.course.recorded.reading import Run


def highest(run: Run) -> int | None:
    """The most bytes that tensors took on a rank of a `plan`'s run, in a whole step; None where it did not
    fit."""
    noted = run.reports
    if run.experiment != "speed":
        noted = [moment for report in run.reports for moment in report["moments"].values()]
    return max((moment["peak"] for moment in noted), default=None)


def predicted_peaks(run: Run) -> dict[str, int]:
    """Bytes of a run of `speed` at the moments that compete for the peak of a whole step, on rank 0: {moment:
    bytes}; a ValueError for a run of another experiment.

    Adds up, for fused Adam at stage 0 as in these runs: states without gradients (with those of the
    micro-batch before, if there was one), what is kept and 8 bytes per logit; states with gradients, one
    input and one block that runs again (the first block; where activations are all kept there is no such
    moment); and `theory.step_peak_bytes`.
    """
    if run.experiment != "speed":
        raise ValueError(
            f"these moments are those of the experiment 'speed'; this run is of {run.experiment!r}"
        )
    checkpointing, sequences, size = run.arguments["checkpointing"], run.arguments["sequences"], run.size
    shape, job = (sequences, size.context, size.width), {"ranks": run.ranks, "device": run.device}
    after_step, between = (
        theory.deepspeed_bytes(run.elements, run.configuration, moment=moment, **job)
        for moment in ("after step", "between micro-batches")
    )
    formula = theory.checkpointed_activation_bytes if checkpointing else theory.gpt_activation_bytes
    logits = 8 * sequences * size.context * size.vocabulary
    block = theory.repeated_block_bytes(*shape, size.heads, 2, device=run.device)
    step = theory.step_peak_bytes(run.elements, run.configuration, **job)
    if run.arguments["stage"] == 0:
        step -= 4 * run.parameters  # the fused Adam makes no square roots
    moments = theory.peak_moments(
        dict(zip(theory.MOMENTS, (after_step, between, between))),
        activations=formula(size, sequences, size.context, 2, device=run.device) + logits,
        again=2 * math.prod(shape) + block if checkpointing else None,
        step={"other": step},
        accumulates=run.arguments["micro_batches"] > 1,
    )
    names = {"loss": "at the loss", "backward": "in a block", "step": "in the step"}
    return {names[moment]: sum(sizes.values()) for moment, sizes in moments.items()}


def step_peak_clusters(several: Iterable[Run]) -> dict[str, dict[str, dict[str, int] | None]]:
    """For `plots.memory_bars`: the peak of an optimizer step of runs of `zero` on rank 0, {case: {"formula",
    "recorded": {category: bytes}}}: what lasts through the step by category, and as "other" the step's
    temporaries.  A recorded bar is None where the run did not fit; where ranks shared GPUs the case says so:
    a GPU then held several such bars."""
    clusters = {}
    for run in several:
        stage = run.arguments["stage"]
        moment = "after step" if stage else "after backward"  # stage 0 keeps its gradients
        bars = {"formula": (run.predicted(0, moment), run.predicted_step_peak(0)), "recorded": None}
        if not run.error:
            bars["recorded"] = run.states(0, moment), run.step_peak(0)
        shared = " (shared)" if run.shared else ""
        clusters[f"stage {stage}, {run.ranks} ranks{shared}"] = {
            name: bar and bar[0] | {"other": bar[1] - sum(bar[0].values())} for name, bar in bars.items()
        }
    return clusters


def device_parts(run: Run) -> dict[str, int]:
    """Where the bytes of rank 0's GPU are between micro-batches: {part: bytes}, from the ledger's tensors to
    all that the driver has given away, their sum."""
    if run.shared or not run.on_gpu:
        raise ValueError(
            f"the bytes of a whole GPU are known where a rank has one of its own; this run: {run.label}"
        )
    noted = run.reports[0]["moments"]["between micro-batches"]
    tensors = sum(noted["categories"].values())
    return {
        "tensors": tensors,
        "workspaces": noted["requested"] - tensors,
        "internal fragmentation": noted["rounding"] + noted["unsplit"],
        "cached": noted["reserved"] - noted["allocated"],
        "outside the allocator": noted["used"] - noted["reserved"],
    }
