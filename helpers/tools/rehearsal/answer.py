"""What the command says: a table of a few ranks, and whether the training fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reserving import EXPANDABLE, FITS, NOT, OUTSIDE, RETRIES, Reserved, reserved

if TYPE_CHECKING:
    from .question import Question

WORST = (FITS, RETRIES, EXPANDABLE, NOT)
CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
PHASES = {
    "building": "building, initialising",
    "forward": "forward",
    "backward": "backward",
    "step": "optimizer's step",
}


@dataclass(frozen=True)
class Verdict:
    """Whether a training fits.

    Attributes:
        rank: the one that needs most.
        found: what torch's allocator reserves for it, and how that fits.
        outside: bytes of a GPU that the allocator never sees.
        memory: bytes that a GPU has, None where nothing was said.
    """

    rank: int
    found: Reserved
    outside: int
    memory: int | None

    @property
    def needed(self) -> int:
        """Bytes of a GPU."""
        return self.found.most + self.outside

    @property
    def fits(self) -> bool:
        return self.found.how in (FITS, RETRIES)

    def __str__(self):
        found, off = self.found, gigabytes(abs((self.memory or 0) - self.needed))
        phase = max(found.peaks, key=found.peaks.get)
        reserved = " to ".join(dict.fromkeys(map(gigabytes, (found.least, found.most))))
        most = (
            f"rank {self.rank} needs most, {gigabytes(self.needed)} GB: "
            f"allocated {gigabytes(found.allocated)}, reserved {reserved}, "
            f"outside the allocator {gigabytes(self.outside)}; in {named(phase)}"
        )
        if self.memory is None:
            return most
        of = f"of {gigabytes(self.memory)} GB"
        if found.how == FITS:
            return f"fits, with {off} GB to spare {of}\n({most})"
        if found.how == RETRIES:
            words = "fits only with retries, in which the allocator gives free segments back"
        elif found.how == EXPANDABLE:
            words = "fits only with expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
        else:
            where, refused = found.refused
            words = f"does not fit: in {named(where)} {refused / 2**20:,.0f} MiB are refused"
        more = "too much" if found.how == NOT else "too much without them,"
        return f"{words}; {off} GB {more} {of}\n({most})"


def named(phase: str) -> str:
    return PHASES.get(phase, PHASES["backward"])  # a snapshot in the backward pass begins a phase, too


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f}"


def verdict(reports: Mapping[int, dict], memory: int | None, outside: int = OUTSIDE) -> Verdict:
    """The `Verdict` over {rank: what `fitting.two_steps` returned}."""
    room = None if memory is None else memory - outside
    found = {rank: reserved(report["requests"], room) for rank, report in reports.items()}
    rank = max(found, key=lambda rank: (WORST.index(found[rank].how), found[rank].most))
    return Verdict(rank, found[rank], outside, memory)


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
    add("outside of torch's allocator, as on two H200", (outside for _ in ranks))
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
