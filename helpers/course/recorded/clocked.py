"""What recorded times say: steps of the experiment `speed`, and the passes of a pipeline's step."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.tools import theory
from helpers.tools.theory import schedules
from helpers.tools.theory.step_time import BUSY

if TYPE_CHECKING:
    from helpers.course.recorded.reading import Run


@dataclass(frozen=True)
class RecordedSteps:
    """Every step by the clock, of every rank and start, of one case of the experiments `speed` and `links`.

    Attributes:
        median, lowest, highest: seconds of a step.
        work: seconds of a step in which a GPU ran anything but messages; the mean of the ranks.
        messages: seconds in which a message was under way, on the rank that waited for the others least: a
            collective that waits looks like one that sends.
        exposed: the same of messages alone, with no work beside them.
        kernels: of a step, on the rank that runs most of them.
        tokens_per_second: of all ranks together, by the median.
        mfu: `theory.mfu` by the data sheet's peak; None for a GPU that `theory.PEAKS` lacks.
    """

    median: float
    lowest: float
    highest: float
    work: float
    messages: float
    exposed: float
    kernels: int
    tokens_per_second: float
    mfu: float | None

    @property
    def work_share(self) -> float:
        """The part of a step in which a GPU works."""
        return self.work / self.median

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the median step: work, messages with no work beside them, and waiting for a host or
        another rank."""
        waiting = self.median - self.work - self.exposed
        return {"work": self.work, "messages alone": self.exposed, "waiting": waiting}

    @property
    def launch_bound(self) -> bool:
        """Whether GPUs idle for a fifth of the step or more, and rather for their host or another rank than
        for messages: nothing about them follows from its time."""
        return self.work_share < BUSY and self.parts["waiting"] > self.exposed

    def takes_longer_than(self, other: RecordedSteps) -> bool:
        """Whether each step takes longer than each of the other's, and neither is launch-bound."""
        return not (self.launch_bound or other.launch_bound) and self.lowest > other.highest

    def __str__(self):
        median, lowest, highest = (
            f"{1e3 * seconds:,.0f}" for seconds in (self.median, self.lowest, self.highest)
        )
        words = f"{median:>5} ms ({lowest} to {highest}), GPUs work {self.work_share:.2f}"
        if self.launch_bound:
            return f"{words}, launch-bound"
        utilisation = "" if self.mfu is None else f", MFU {self.mfu:.2f}"
        return f"{words}, {self.tokens_per_second:,.0f} tokens/s{utilisation}"


def of_one_kind(runs: Sequence[Run]) -> None:
    """Refuse, with a ValueError, runs on several kinds of hardware: nothing is said of them together."""
    kinds = sorted({run.hardware for run in runs})
    if len(kinds) > 1:
        raise ValueError(
            f"these runs of {runs[0].experiment!r} were recorded on {', '.join(kinds)}, which are kept "
            f"apart: say which, with hardware={kinds[0]!r}"
        )


def case(run: Run) -> tuple:
    """What is equal for the starts of one case."""
    arguments = sorted((name, value) for name, value in run.arguments.items() if name != "start")
    return (run.experiment, run.ranks, *arguments)


def step_time(starts: Sequence[Run]) -> RecordedSteps:
    """The runs of one case of `speed` or `links`, all its starts, as `RecordedSteps`.

    Raises:
        ValueError: for runs of different cases, hardware or of another experiment, and for runs that were not
            on GPUs of their own.
    """
    of_one_kind(starts)
    cases = {case(run) for run in starts}
    if len(cases) != 1 or starts[0].experiment not in ("speed", "links"):
        raise ValueError(
            "give the starts of one case of the experiment 'speed' or 'links': these runs are of "
            f"{len(cases)}: {sorted(cases, key=str)}"
        )
    run, reports = starts[0], [report for run in starts for report in run.reports]
    if not reports or run.shared or not run.on_gpu:
        raise ValueError(
            "the time of a step says something where it fitted, and each rank had a GPU of its "
            f"own: {run.label} {run.error}"
        )
    steps = [seconds for report in reports for seconds in report["seconds"]]
    busy = [report["busy"] for report in reports]
    each = run.arguments.get("sequences") or run.configuration["train_micro_batch_size_per_gpu"]
    median, sequences = statistics.median(steps), each * run.arguments["micro_batches"]
    speed, peak = sequences * run.size.context * run.ranks / median, theory.PEAKS.get(run.device_name)
    return RecordedSteps(
        median=median,
        lowest=min(steps),
        highest=max(steps),
        work=statistics.mean(rank["gpu"] - rank["exposed"] for rank in busy),
        messages=min(rank["messages"] for rank in busy),
        exposed=min(rank["exposed"] for rank in busy),
        kernels=max(rank["kernels"] for rank in busy),
        tokens_per_second=speed,
        mfu=None if peak is None else theory.mfu(run.size, run.size.context, speed, run.ranks * peak),
    )


def message_seconds(starts: Sequence[Run]) -> list[float]:
    """Seconds of a step in which a message was under way, on each rank of each start of a case of `speed`,
    fewest first.  Some of it is waiting, so bytes / seconds is a lower bound of the link's rate."""
    of_one_kind(starts)
    return sorted(report["busy"]["messages"] for run in starts for report in run.reports)


def timelines(run: Run) -> list[list[tuple]]:
    """A recorded pipeline step as `plots.pipeline_schedules` and `theory.schedules` take it: (kind, stage,
    micro-batch, start, end) in ms."""
    begin = min(start for report in run.reports for _, start, _ in report["timeline"])
    rows = []
    for stage, report in enumerate(run.reports):
        micro_batches, row = {"F": itertools.count(), "B": itertools.count()}, []
        for kind, start, end in report["timeline"]:
            row.append((kind, stage, next(micro_batches[kind]), 1e3 * (start - begin), 1e3 * (end - begin)))
        rows.append(row)
    return rows


@dataclass(frozen=True)
class PipelineWork:
    """Parts of a recorded pipeline's step, the slowest rank's, median of the steps; means of the ranks.

    Attributes:
        share: in which a GPU runs anything but messages.
        most: in which it could: one minus the gaps between a stage's passes (the bubble, a neighbour that
            takes longer, a message).
    """

    share: float
    most: float

    @property
    def launch_bound(self) -> bool:
        """Whether GPUs work less than four fifths of what the gaps leave: nothing follows from the times."""
        return self.share < BUSY * self.most


def pipeline_work(run: Run) -> PipelineWork:
    """The `PipelineWork` of a run of the experiment `pipeline`; a ValueError for another one, or without a
    busy share (recorded on a CPU, or before there was one)."""
    if run.experiment != "pipeline" or not all(report.get("busy") for report in run.reports):
        raise ValueError(
            "give a run of the experiment 'pipeline' on GPUs, recorded with its busy share, not "
            f"{run.experiment!r}: {run.label}"
        )
    step = statistics.median(max(ranks) for ranks in zip(*(report["seconds"] for report in run.reports)))
    passes = timelines(run)
    span = max(row[-1][-1] for row in passes) - min(row[0][-2] for row in passes)
    work = statistics.mean(report["busy"]["gpu"] - report["busy"]["exposed"] for report in run.reports)
    return PipelineWork(share=work / step, most=1 - schedules.idle_fraction(passes) * span / 1e3 / step)


KERNELS = {"matrices": ("nvjet", "gemm", "cutlass"), "attention": ("sdpa", "flash", "fmha")}  # by their names


def waterfall(run: Run, passes: str = "forward and backward") -> dict[str, float]:
    """Where the seconds of a pass went, of a run of the experiment `waterfall`: {"matrices", "attention",
    "the rest": of its kernels, "between kernels": of its median by the clock}."""
    found = dict.fromkeys((*KERNELS, "the rest"), 0.0)
    for name, (_, seconds) in run.reports[0][passes]["kernels"].items():
        kinds = (kind for kind, words in KERNELS.items() if any(word in name for word in words))
        found[next(kinds, "the rest")] += seconds
    clock = statistics.median(run.reports[0][passes]["seconds"])
    return found | {"between kernels": max(0.0, clock - sum(found.values()))}


def parts_of_calls(times: Mapping[str, Sequence]) -> list[dict[str, str]]:
    """Rows for a table, of a collective of the experiment `collectives`: µs of a call alone, of its host, and
    of the GPUs in a CUDA graph, for each size."""
    ways = {
        "called alone, µs": map(statistics.median, times["alone"]),
        "host, µs": map(statistics.median, times["issued"]),
        "GPUs, µs": times["replayed"],
    }
    rows = zip(times["bytes"], *ways.values(), strict=True)
    return [
        {"kB": f"{size / 1e3:,.0f}"} | {way: f"{1e6 * taken:,.0f}" for way, taken in zip(ways, each)}
        for size, *each in rows
    ]
