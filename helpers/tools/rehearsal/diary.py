"""How far a rehearsal has come, and about how long it still takes, in a file that another process reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

STEPS = 2
# Of a micro-batch, in units of its forward pass; a backward pass has about twice the operators.  Building has
# no such measure: what is left is told from the end of the first forward pass on.
UNITS = {"forward": 1.0, "backward": 2.0, "step": 0.5}


class Diary:
    """What `fitting.two_steps` writes as it goes.

    Args:
        file: its path, or None to write nothing.
        micro_batches: of each step.
    """

    def __init__(
        self, file: str | None, micro_batches: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.file, self.clock = file, clock
        self.parts = 2 + STEPS * micro_batches * len(UNITS)  # with the building and the end
        self.units = STEPS * micro_batches * sum(UNITS.values())
        self.part, self.done, self.started, self.phase = 0, 0.0, None, ""

    def begin(self, phase: str) -> None:
        """The next part begins."""
        now = self.clock()
        self.part += 1
        self.done += UNITS.get(self.phase, 0.0)
        self.phase = phase
        if self.started is None and phase in UNITS:
            self.started = now
        if self.file:
            Path(self.file).write_text(f", part {self.part} of {self.parts}: {phase}{self.left(now)}")

    def left(self, now: float) -> str:
        """In words, as soon as it is known: each unit takes as long as those that are done."""
        if not self.done:
            return ""
        return f", about {(now - self.started) * (self.units - self.done) / self.done:.0f} s left"
