"""The job's budget bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helpers.course.job.judged import last_step, most
from helpers.course.job.plans import plan as job_plan
from helpers.course.job.reference import CARD, MEMORY, SEQUENCES
from helpers.course.job.stages import of_a_step
from helpers.course.job.stored import highest, stored
from helpers.course.plots.budget import KEPT, OUTSIDE, Budget, budget_bars
from helpers.course.plots.style import Plot
from helpers.course.recorded import Run
from helpers.tools.rehearsal.reserving import FITS, NOT

Way = str | Run | Mapping[str, float]


def job_bars(plans: Sequence[str] | Mapping[str, Way], title: str) -> Plot:
    """What the fullest GPU holds at the highest moment under some plans, by category and by name, with a line
    at the card's size and the seconds of a step.

    Args:
        plans: names of plans, or {bar: name of a plan, a recorded run of the experiment `job`, or
            {what: bytes} that were counted otherwise, as by formulas}.

    Raises:
        LookupError: a plan is not known.
        ValueError: no plan, plans for different cards, or a run of which a GPU's bytes are not known.
    """
    bars = plans if isinstance(plans, Mapping) else {name: name for name in plans}
    cards = {card_of(plan) for plan in bars.values()}
    if len(cards) > 1:
        listed = ", ".join(sorted(name for name, _ in cards))
        raise ValueError(f"bars on one axis are of one card, and these are of {listed}: draw two figures")
    name, capacity = cards.pop() if cards else ("", 0.0)
    return budget_bars({bar: budget(plan) for bar, plan in bars.items()}, title, capacity, name, note(bars))


def note(bars: Mapping[str, Way]) -> str:
    """Where the numbers come from that are not rehearsed."""
    contents = [stored(plan) for plan in bars.values() if isinstance(plan, str)]
    said = ["Outside the allocator: the most that was recorded on two H200s."] if contents else []
    constants = [one["seconds"]["constants"] for one in contents if "constants" in one["seconds"]]
    said += [f"Seconds: rehearsed work, by the constants of {one}." for one in dict.fromkeys(constants)]
    return "\n".join(said)


def card_of(plan: Way) -> tuple[str, float]:
    """Its name, and the bytes that torch can use."""
    if isinstance(plan, Mapping):
        return CARD, MEMORY
    if isinstance(plan, Run) and plan.experiment != "job":
        raise ValueError(f"a bar is of a run of the experiment 'job', and this run is of {plan.experiment!r}")
    plan = plan.arguments["plan"] if isinstance(plan, Run) else plan
    return stored(plan)["card"], stored(plan)["memory"]


def budget(plan: Way) -> Budget:
    """The bar of a plan, of a recorded run, or of what was counted."""
    if isinstance(plan, Run):
        return recorded_budget(plan)
    if isinstance(plan, Mapping):
        parts = renamed(plan)
        kept, outside = parts.pop(KEPT, 0), parts.pop(OUTSIDE, 0)
        how = FITS if sum(parts.values()) + outside <= MEMORY else NOT
        return Budget(parts=parts, phase="of tensors", kept=kept, outside=outside, how=how, label="counted")
    content, (phase, parts) = stored(plan), highest(plan)
    times, sequences = content["seconds"], content.get("sequences", SEQUENCES)
    if job_plan(plan).stages:
        known = of_a_step(plan)
    elif "unknown" in times:
        known = None
    else:
        known = tuple(sum(times[how].values()) for how in ("fastest", "slowest"))
    return Budget(
        parts=parts,
        phase=phase,
        kept=content["reserved"][1] - sum(parts.values()),
        outside=content["outside"],
        how=content["how"],
        step=known,
        sequences=None if sequences == SEQUENCES else sequences,
        label=content["label"],
    )


def renamed(parts: Mapping[str, float]) -> dict[str, float]:
    """Categories of a snapshot by the names of a bar's parts."""
    return {"bucket" if name == "buffers" else name: size for name, size in parts.items()}


def recorded_budget(run: Run) -> Budget:
    """The bar of a recorded run of `job`: bytes that torch had allocated on the fullest GPU, not told apart,
    what it reserved at most, and the seconds of the last step.

    Raises:
        ValueError: the run did not fit.
    """
    if not run.reports:
        raise ValueError(f"no bytes are known of a run that did not fit, {run.label}")
    phases = max(run.reports, key=lambda each: max(phase["peak"]["allocated"] for phase in each))
    at = max(phases, key=lambda phase: phase["peak"]["allocated"])
    seconds = max(last_step(run))
    return Budget(
        parts={"not told apart": at["peak"]["allocated"]},
        phase=at["phase"],
        kept=most(run, "reserved") - at["peak"]["allocated"],
        outside=at["used"] - at["end"]["reserved"],
        how=FITS,
        step=(seconds, seconds),
        label=run.label,
    )
