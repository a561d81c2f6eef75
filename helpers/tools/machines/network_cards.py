"""Network cards of machines: what one may send, and what has passed it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields

from ..whole import shown

BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?) ?([kMG])bit(?:/s)?", re.ASCII)
UNITS = {"k": 1e3, "M": 1e6, "G": 1e9}
SLOWEST, FASTEST = 1e3, 1e12  # bits per second


@dataclass(frozen=True)
class Card:
    """What the kernel has counted at one machine's network card; differences are what passed meanwhile.

    A frame here holds up to 64 KiB behind one header of 66 bytes; a physical cable mostly cuts it into frames
    of 1,514 bytes with 66 each, 4.6 % of what they carry.

    Attributes:
        sent, received: bytes, headers included.
        frames_sent, frames_received: how many.
    """

    sent: int
    received: int
    frames_sent: int
    frames_received: int

    def __sub__(self, earlier):
        return Card(*(getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)))


class Counting(list):
    """A `Card` for each machine, filled when the block is left; `silent` gives all once nothing passes."""

    def __init__(self, silent: Callable[[], list[Card]]) -> None:
        self.silent = silent

    def __enter__(self):  # a generator's would stand between a rank that waits here and its own line
        self.before = self.silent()
        return self

    def __exit__(self, kind, *problem):
        if kind is None:
            self[:] = [after - before for after, before in zip(self.silent(), self.before)]


def bytes_per_second(bandwidth: str | None) -> int | None:
    """The rate in words like "20 Mbit"; None stays None: as fast as this machine copies memory."""
    if bandwidth is None:
        return None
    words = BANDWIDTH.fullmatch(bandwidth) if isinstance(bandwidth, str) else None
    bits = float(words[1]) * UNITS[words[2]] if words else 0
    if not SLOWEST <= bits <= FASTEST:
        raise ValueError(
            'bandwidth must be in bits per second, as "20 Mbit" or "1.5 Gbit", from 1 kbit to 1000 Gbit, '
            f"or None for no limit; not {shown(bandwidth)}"
        )
    return int(bits / 8)
