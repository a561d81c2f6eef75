"""Whether a rank's requests fit a GPU, as torch's allocator serves them: at once, with retries, only with
expandable segments, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from .allocator import MIB, Allocator
from .expandable import Expandable
from .playing import BEHIND, Played, Request, play, smallest

FITS, RETRIES, EXPANDABLE, NOT = "fits", "fits only with retries", "fits only with expandable segments", "no"
# Bytes of a GPU that torch's allocator never sees (driver, kernels, NCCL): what the driver counted less what
# was reserved, the most in recorded runs on two H200; others had 1.39 to 1.92 GB.
OUTSIDE = 2_210_000_000


@dataclass(frozen=True)
class Reserved:
    """What torch's allocator makes of a rank's requests.

    Attributes:
        allocated: bytes at most.
        least, most: bytes reserved at most.  Two things differ from run to run: the addresses that segments
            get, and how far the GPU is behind its host; these are the extremes of what was tried.
        peaks: {phase: bytes allocated at most}.
        how: `FITS`, `RETRIES`, `EXPANDABLE` or `NOT`.
        refused: where it does not fit, the phase and the bytes of the segment that was refused.
    """

    allocated: int
    least: int
    most: int
    peaks: dict[str, int]
    how: str
    refused: tuple[str, int] | None = None


def plays(requests: Sequence[Request], limit: float | None = None) -> Iterator[Played]:
    """The requests, served by allocators that differ as runs do."""
    for upwards in (False, True):
        for behind in (0, BEHIND):
            yield play(requests, Allocator(limit, behind, upwards))


def reserved(requests: Sequence[Request], limit: float | None = None) -> Reserved:
    """What is reserved for the requests, and how they fit into so many bytes (None: as many as they want)."""
    every = list(plays(requests))
    most = max(every, key=lambda played: played.most("reserved"))
    totals = [played.most("reserved") for played in every]
    peaks = {phase: peak["allocated"] for phase, peak in most.peaks.items()}
    fit = partial(Reserved, most.most("allocated"), min(totals), max(totals), peaks)
    if limit is None or max(totals) <= limit:
        return fit(FITS)
    refusals = [played.refused for played in plays(requests, limit) if played.refused]
    if not refusals:
        return fit(RETRIES)
    if not play(requests, Expandable(limit, BEHIND)).refused:
        return fit(EXPANDABLE)
    phase, refusal = refusals[0]
    return fit(NOT, (phase, refusal.asked))


def smallest_gpu(requests: Sequence[Request], outside: int = OUTSIDE, expandable: bool = False) -> int:
    """Bytes of the smallest GPU on which the requests are served, within 32 MiB, those outside included."""
    kinds: list[Callable[[float], Allocator]] = [
        partial(Allocator, behind=BEHIND, upwards=upwards) for upwards in (False, True)
    ]
    if expandable:
        kinds = [partial(Expandable, behind=BEHIND)]
    return outside + max(smallest(requests, make, within=32 * MIB) for make in kinds)
