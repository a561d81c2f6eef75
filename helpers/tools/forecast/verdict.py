"""Whether a training fits a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..rehearsal.reserving import EXPANDABLE, FITS, NOT, OUTSIDE, RETRIES, Reserved, reserved
from .units import gigabytes

# Of what is reserved: so much beyond the range was recorded at ZeRO-3, where a GPU far behind its host
# gives blocks back late (two and four H100, 8 billion parameters).
SWAY = 0.08
HOW = {NOT: "does not fit"}
WORST = (FITS, RETRIES, EXPANDABLE, NOT)
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

    @property
    def narrow(self) -> bool:
        """Whether it fits by less than runs differ: those in which several streams share blocks do."""
        found = self.found
        differs = found.how == FITS and found.least < found.most
        return self.memory is not None and differs and self.memory - self.needed < SWAY * found.most

    @property
    def phase(self) -> str:
        """In which most is allocated."""
        return max(self.found.peaks, key=self.found.peaks.get)

    def as_data(self) -> dict:
        """Plain data; all sizes are bytes."""
        found, refused = self.found, self.found.refused
        return {
            **{"memory": self.memory, "needed": self.needed, "outside": self.outside, "rank": self.rank},
            **{"allocated": found.allocated, "reserved": [found.least, found.most]},
            **{"how": HOW.get(found.how, found.how) if self.memory else None, "phase": self.phase},
            "refused": refused and {"phase": refused[0], "bytes": refused[1]},
        }

    def __str__(self):
        found, off = self.found, gigabytes(abs((self.memory or 0) - self.needed))
        reserved = " to ".join(dict.fromkeys(map(gigabytes, (found.least, found.most))))
        most = (
            f"rank {self.rank} needs most, {gigabytes(self.needed)} GB: "
            f"allocated {gigabytes(found.allocated)}, reserved {reserved}, "
            f"outside the allocator {gigabytes(self.outside)}; in {named(self.phase)}"
        )
        if self.memory is None:
            return most
        of = f"of {gigabytes(self.memory)} GB"
        if found.how == FITS:
            words = f"fits, with {off} GB to spare {of}"
            more = f"; GPUs have reserved up to {SWAY:.0%} more, so it may need retries, or fail"
            return f"{words}{more * self.narrow}\n({most})"
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


def verdict(reports: Mapping[int, dict], memory: int | None, outside: int = OUTSIDE) -> Verdict:
    """The `Verdict` over {rank: what `fitting.two_steps` returned}."""
    room = None if memory is None else memory - outside
    found = {rank: reserved(report["requests"], room) for rank, report in reports.items()}
    rank = max(
        found, key=lambda rank: (WORST.index(found[rank].how), found[rank].most, found[rank].allocated)
    )
    return Verdict(rank, found[rank], outside, memory)
