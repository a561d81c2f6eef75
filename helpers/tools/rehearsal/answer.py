"""What the command says: a table of a few ranks, and whether the training fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.tools.rehearsal.question import Question

CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
PHASES = {
    "building": "building, initialising",
    "forward": "forward",
    "backward": "backward",
    "step": "optimizer's step",
}
# Bytes that two H200 gave to one rank beside its tensors (the driver, kernels, NCCL, workspaces):
# recorded/zero-2-NVIDIA-H200.json, stage 0.
OUTSIDE = 2_270_000_000


@dataclass(frozen=True)
class Verdict:
    """Whether a training fits: bytes that are `needed` on a GPU, on the rank and in the phase that need most,
    and bytes that a GPU has, None where nothing was said."""

    needed: int
    memory: int | None
    rank: int
    phase: str

    @property
    def fits(self) -> bool:
        return self.memory is None or self.needed <= self.memory

    def __str__(self):
        most = f"rank {self.rank} needs most, {gigabytes(self.needed)} GB, in {PHASES[self.phase]}"
        if self.memory is None:
            return most
        off = gigabytes(abs(self.memory - self.needed))
        words = f"fits, with {off} GB to spare" if self.fits else f"does not fit: {off} GB too much"
        return f"{words} of {gigabytes(self.memory)} GB ({most})"


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def verdict(reports: Mapping[int, dict], memory: int | None, outside: int = OUTSIDE) -> Verdict:
    """The `Verdict` over {rank: what `fitting.two_steps` returned}."""
    places = [(rank, phase) for rank, report in reports.items() for phase in report["peaks"]]
    needed = {(rank, phase): sum(reports[rank]["peaks"][phase].values()) for rank, phase in places}
    most = max(places, key=needed.get)
    return Verdict(needed[most] + outside, memory, *most)


def table(question: Question, reports: Mapping[int, dict], outside: int = OUTSIDE) -> list[str]:
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
    add("outside of tensors, as on two H200", (outside for _ in ranks))
    if question.is_offloaded:
        host = (sum(report["host"].values()) for report in ranks)
        add("the host's memory at most, of this rank", host)
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
