"""What the command says, in words and a table, or as data for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..rehearsal.reserving import smallest_gpu
from .host import Host
from .pace import Pace
from .units import gigabytes
from .verdict import PHASES, Verdict

if TYPE_CHECKING:
    from ..rehearsal.question import Question

CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
SHOWN = ("states", "peaks", "host", "sent")  # of a rank's report
QUESTION = (
    "architecture",
    "ranks",
    "sequence",
    "micro_batch",
    "accumulation",
    "checkpointing",
    "stage",
    "dtype",
)


@dataclass(frozen=True)
class Answer:
    """What came of a question.

    Attributes:
        header: what was rehearsed, in one line.
        notes: what is rehearsed otherwise than it was asked, or was assumed.
        reports: {rank: what `fitting.two_steps` returned}.
        pace: how fast it goes, or why that is unknown.
    """

    question: Question
    header: str
    notes: Sequence[str]
    reports: Mapping[int, Mapping]
    verdict: Verdict
    host: Host
    pace: Pace | str

    def smallest(self) -> tuple[int, int] | None:
        """Bytes of the smallest GPU on which the rank runs that needs most, without and with expandable
        segments; None where it fits the GPU that was named."""
        verdict = self.verdict
        if verdict.fits and verdict.memory:
            return None
        requests = self.reports[verdict.rank]["requests"]
        return tuple(smallest_gpu(requests, verdict.outside, grown) for grown in (False, True))

    def lines(self) -> list[str]:
        """Everything but the advice, for people."""
        seconds = sum(report["seconds"] for report in self.reports.values())
        real = max(report["real_bytes"] for report in self.reports.values())
        lines = [self.header, *(f"note: {note}" for note in self.notes)]
        lines += table(self.question, self.reports, self.verdict.outside)
        lines += [f"rehearsed in {seconds:.0f} s and {gigabytes(real)} GB", str(self.verdict)]
        if self.host.memory or self.question.is_offloaded:
            lines.append(str(self.host))
        if smallest := self.smallest():
            ways = "{} GB, with expandable segments {} GB".format(*map(gigabytes, smallest))
            lines.append(f"the smallest GPU on which rank {self.verdict.rank} runs: {ways}")
        elif self.host.fits:  # on the GPU that was named
            lines += [self.pace] if isinstance(self.pace, str) else self.pace.lines()
        return lines

    def as_data(self) -> dict:
        """The same as plain data; all sizes are bytes."""
        names = ("torch", "deepspeed", "transformers")
        return {
            "question": {name: getattr(self.question, name) for name in QUESTION}
            | {"assumed": list(self.question.assumed), "notes": list(self.notes)},
            "fits": self.verdict.fits and self.host.fits if self.verdict.memory or self.host.memory else None,
            "gpu": self.verdict.as_data() | {"smallest": self.smallest()},
            "host": self.host.as_data(),
            "time": {"unknown": self.pace} if isinstance(self.pace, str) else self.pace.as_data(),
            "ranks": {rank: {name: report[name] for name in SHOWN} for rank, report in self.reports.items()},
            "parameters": next(iter(self.reports.values()))["kinds"],
            "versions": {name: version(name) for name in names},
        }


def table(question: Question, reports: Mapping[int, Mapping], outside: int) -> list[str]:
    """The lines of the table: a column for each rank, GB of 10^9 bytes."""
    ranks, rows = reports.values(), [("GB", *(f"rank {rank}" for rank in reports))]

    def add(name, amounts=()):
        rows.append((name, *map(gigabytes, amounts)))

    def add_each(names, held, indent):
        for name in names:
            add(indent + name, (parts.get(name, 0) for parts in held))

    add("states between micro-batches")
    add_each(CATEGORIES, [report["states"] for report in ranks], "  ")
    add("highest moment in")
    for phase, name in PHASES.items():
        held = [report["peaks"][phase] for report in ranks]
        add(f"  {name}", (sum(parts.values()) for parts in held))
        add_each(visible(held), held, "    ")
    add("outside of torch's allocator, as on two H200", (outside for _ in ranks))
    add("the host's memory at most, of this rank", (sum(report["host"].values()) for report in ranks))
    add(f"to be sent in a step, accumulation {question.accumulation}")
    add_each(sorted(set().union(*(r["sent"] for r in ranks))), [r["sent"] for r in ranks], "  ")
    wide = max(len(row[0]) for row in rows)
    return [f"{row[0]:<{wide}}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows]


def visible(held: Sequence[dict[str, int]]) -> list[str]:
    """The categories that are a fiftieth or more of some rank's bytes, the largest first."""
    shares = {
        name: max(parts.get(name, 0) / sum(parts.values()) for parts in held) for name in set().union(*held)
    }
    return sorted((name for name in shares if shares[name] > 0.02), key=lambda name: (-shares[name], name))
