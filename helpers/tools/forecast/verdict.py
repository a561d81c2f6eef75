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
        reserved: what torch's allocator reserves for it, and how that fits.
        outside: bytes of a GPU that the allocator never sees.
        memory: bytes that a GPU has, None where nothing was said.
    """

    rank: int
    reserved: Reserved
    outside: int
    memory: int | None

    @classmethod
    def of(cls, reports: Mapping[int, dict], memory: int | None, outside: int = OUTSIDE) -> Verdict:
        """Over {rank: what `fitting.two_steps` returned}."""
        room = None if memory is None else memory - outside
        each = {rank: reserved(report["requests"], room) for rank, report in reports.items()}
        rank = max(
            each, key=lambda rank: (WORST.index(each[rank].how), each[rank].most, each[rank].allocated)
        )
        return cls(rank, each[rank], outside, memory)

    @property
    def needed(self) -> int:
        """Bytes of a GPU."""
        return self.reserved.most + self.outside

    @property
    def fits(self) -> bool:
        return self.reserved.how in (FITS, RETRIES)

    @property
    def narrow(self) -> bool:
        """Whether it fits by less than runs differ: those in which several streams share blocks do."""
        least, most = self.reserved.least, self.reserved.most
        differs = self.reserved.how == FITS and least < most
        return self.memory is not None and differs and self.memory - self.needed < SWAY * most

    @property
    def phase(self) -> str:
        """In which most is allocated."""
        return max(self.reserved.peaks, key=self.reserved.peaks.get)

    def as_data(self) -> dict:
        """Plain data; all sizes are bytes."""
        reserved, refused = self.reserved, self.reserved.refused
        return {
            **{"memory": self.memory, "needed": self.needed, "outside": self.outside, "rank": self.rank},
            **{"allocated": reserved.allocated, "reserved": [reserved.least, reserved.most]},
            **{"how": HOW.get(reserved.how, reserved.how) if self.memory else None, "phase": self.phase},
            "refused": refused and {"phase": refused[0], "bytes": refused[1]},
        }

    def __str__(self):
        reserved, off = self.reserved, gigabytes(abs((self.memory or 0) - self.needed))
        extremes = " to ".join(dict.fromkeys(map(gigabytes, (reserved.least, reserved.most))))
        most = (
            f"rank {self.rank} needs most, {gigabytes(self.needed)} GB: "
            f"allocated {gigabytes(reserved.allocated)}, reserved {extremes}, "
            f"outside the allocator {gigabytes(self.outside)}; in {phase_name(self.phase)}"
        )
        if self.memory is None:
            return most
        of = f"of {gigabytes(self.memory)} GB"
        if reserved.how == FITS:
            words = f"fits, with {off} GB to spare {of}"
            more = f"; GPUs have reserved up to {SWAY:.0%} more, so it may need retries, or fail"
            return f"{words}{more * self.narrow}\n({most})"
        if reserved.how == RETRIES:
            words = "fits only with retries, in which the allocator gives free segments back"
        elif reserved.how == EXPANDABLE:
            words = "fits only with expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
        else:
            where, refused = reserved.refused
            words = f"does not fit: in {phase_name(where)} {refused / 2**20:,.0f} MiB are refused"
        more = "too much" if reserved.how == NOT else "too much without them,"
        return f"{words}; {off} GB {more} {of}\n({most})"


def phase_name(phase: str) -> str:
    return PHASES.get(phase, PHASES["backward"])  # a snapshot in the backward pass begins a phase, too
