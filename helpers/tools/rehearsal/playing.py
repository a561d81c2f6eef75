"""A rehearsal's requests, played to an `Allocator`: what it reserves in each phase, whether a limit is
enough, and the smallest that is.

A request is a tuple: ("birth", name, bytes, stream), ("death", name), ("use", name, stream) for
`tensor.record_stream`, ("wait",) where the host waits for the GPU, ("empty",) for `empty_cache`, or
("phase", name).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .allocator import MIB, Allocator, Refused

Request = tuple
BEHIND = 22  # requests by which an H200 was behind its host at most, in recorded trainings


@dataclass
class Played:
    """What came of requests.

    Attributes:
        peaks: {phase: {"requested", "allocated", "reserved": bytes at most}}.
        ends: (phase, bytes allocated, bytes reserved) at the end of each phase, in order.
        refused: the phase in which the GPU had no more, and what it refused; or None.
        retries: how often free segments had to be given back first.
        reserved: bytes after each request.
    """

    peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    ends: list[tuple[str, int, int]] = field(default_factory=list)
    refused: tuple[str, Refused] | None = None
    retries: int = 0
    reserved: list[int] = field(default_factory=list)

    def most(self, what: str) -> int:
        """The largest number of bytes "requested", "allocated" or "reserved" in any phase."""
        return max(peak[what] for peak in self.peaks.values())


def play(requests: Sequence[Request], allocator: Allocator) -> Played:
    """Let an allocator serve all requests, or those up to the one that it refuses."""
    played, blocks, phase = Played(), {}, "building"
    for kind, *words in [*requests, ("phase", "end")]:
        try:
            if kind == "birth":
                name, size, stream = words
                blocks[name] = allocator.allocate(size, stream)
            elif kind == "death":
                allocator.free(blocks.pop(words[0]))
            elif kind == "use":
                blocks[words[0]].streams.add(words[1])
            elif kind == "wait":
                allocator.synchronize()
            elif kind == "empty":
                allocator.empty_cache()
        except Refused as refused:
            played.refused = phase, refused
        played.reserved.append(allocator.reserved)
        if kind == "phase" or played.refused:
            close(played, phase, allocator)
            phase = words[0]
        if played.refused:
            break
    played.retries = allocator.retries
    return played


def close(played: Played, phase: str, allocator: Allocator) -> None:
    """A phase has ended."""
    played.ends.append((phase, allocator.allocated, allocator.reserved))
    before = played.peaks.get(phase, allocator.peak)
    played.peaks[phase] = {name: max(peak, before[name]) for name, peak in allocator.peak.items()}
    allocator.peak = {name: getattr(allocator, name) for name in allocator.peak}


def smallest(requests: Sequence[Request], make: Callable[[float], Allocator], within: int = 32 * MIB) -> int:
    """The smallest limit with which all requests are served, in bytes of segments, within so many.

    Args:
        make: from a limit, an allocator.

    By halving, as if more memory never hurt.
    """
    free = play(requests, make(float("inf")))
    low, high = free.most("requested") - 1, free.most("reserved")
    while high - low > within:
        middle = (low + high) // 2
        if play(requests, make(middle)).refused:
            low = middle
        else:
            high = middle
    return high
