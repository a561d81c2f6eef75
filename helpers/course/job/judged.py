"""What rehearsals of the job foretold, beside what GPUs then did."""

from __future__ import annotations

from helpers.course import recorded
from helpers.course.job.stored import stored
from helpers.course.recorded import Run
from helpers.tools.forecast.verdict import HOW

H100S = "{} x NVIDIA H100 80GB HBM3"


def runs(gpus: int) -> list[Run]:
    """The recorded runs of the job on so many GPUs."""
    return recorded.runs("job", hardware=H100S.format(gpus))


def most(run: Run, what: str) -> int:
    """Bytes "allocated" or "reserved" on the fullest rank at its highest moment."""
    return max(phase["peak"][what] for phases in run.reports for phase in phases)


def last_step(run: Run) -> list[float]:
    """Seconds of the last optimizer step on each rank, with all its micro-batches."""
    found = []
    for phases in run.reports:
        each = (len(phases) - 1) // 2  # of two steps; building comes before them
        found.append(sum(phase["seconds"] for phase in phases[-each:]))
    return found


def judged(gpus: int) -> dict[str, dict[str, str]]:
    """{plan: {what: foretold, and recorded}}, for `plots.table`; GB are 10^9 bytes."""
    return {name_of(run): row(run) for run in runs(gpus)}


def name_of(run: Run) -> str:
    """Its plan, without its GPUs."""
    name = run.arguments["plan"].removeprefix(f"{run.ranks} GPUs, ").removesuffix(f", {run.ranks} GPUs")
    return f"{name}, expandable segments" if run.arguments.get("expandable") else name


def row(run: Run) -> dict[str, str]:
    foretold, done = stored(run.arguments["plan"]), not run.error
    least, highest = (f"{size / 1e9:.2f}" for size in foretold["reserved"])
    seconds = [sum(foretold["seconds"][end].values()) for end in ("fastest", "slowest")]
    return {
        "foretold": HOW.get(foretold["how"], foretold["how"]),
        "on GPUs": happened(run),
        "allocated, GB": f"{foretold['allocated'] / 1e9:.2f}",
        "and recorded": f"{most(run, 'allocated') / 1e9:.2f}" if done else "",
        "reserved, GB": least if least == highest else f"{least} to {highest}",
        "recorded, too": f"{most(run, 'reserved') / 1e9:.2f}" if done else "",
        "a step, s": "{:.2f} to {:.2f}".format(*seconds),
        "by the clock": f"{max(last_step(run)):.2f}" if done else "",
    }


def happened(run: Run) -> str:
    if run.error:
        return "out of memory"
    return "ran, with retries" if run.reports[0][-1]["retries"] else "ran"
