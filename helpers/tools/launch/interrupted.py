"""What a learner reads who has stopped a launch: where each rank stood, and nothing of the launcher's own
frames."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.tools.launch.outcome import Outcome, is_learners, names, place


def explain(interrupt: KeyboardInterrupt, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Let a KeyboardInterrupt say where the ranks stood, in a notebook instead of its traceback, elsewhere
    below it.  There are no `outcomes` where no rank had been started."""
    places = {}
    for outcome in outcomes:
        places.setdefault(standing(outcome), []).append(outcome)
    lines = [f"interrupted after {seconds:.0f} s" + ("" if outcomes else ", before any rank was started")]
    lines += [f"  {names(group)} {said}" for said, group in places.items()]
    interrupt.add_note("\n".join(lines))
    interrupt._render_traceback_ = lambda: lines


def standing(outcome: Outcome) -> str:
    """Where a rank stood: 'in barrier, cell line 10'."""
    if outcome.report is not None:
        return "had returned"
    if not outcome.at_work:
        return "had not begun"
    frames = outcome.where()
    if not frames:
        return "gave no Python stack"
    frame = next((frame for frame in reversed(frames) if is_learners(frame)), frames[-1])
    file, line, name = place(frame).rsplit(", ", 2)
    return f"in {outcome.collective() or name.removeprefix('in ')}, {file} {line}"
