"""How far a rehearsal has come: the rehearsed process writes it, the line under a running cell shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path

NAME = "diary"
PASSES = {"forward": "forward pass", "backward": "backward pass", "step": "optimizer step"}
# Of a micro-batch, in units of its forward pass; a backward pass has about twice the operators.  Building has
# no such measure: what is left is told from the end of the first forward pass on.
UNITS = {"forward": 1.0, "backward": 2.0, "step": 0.5}


class Diary:
    """A file that names the pass of DeepSpeed's engine that goes on, its number, and about how long it all
    still takes.

    Attributes:
        expected: micro-batches of the whole rehearsal; 0 where nobody says.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock, self.expected = file, clock, 0
        self.begun, self.done, self.started, self.going = Counter(), 0.0, 0.0, ""
        file.write_text("building")

    def begin(self, name: str) -> None:
        """The next pass begins."""
        now = self.clock()
        self.started = self.started if self.begun else now
        self.done += UNITS.get(self.going, 0.0)
        self.going = name
        self.begun[name] += 1
        self.file.write_text(f"{PASSES[name]} {self.begun[name]}{self.left(now)}")

    def left(self, now: float) -> str:
        """In words, where it is known: each unit takes as long as those that are done."""
        if not self.done or not self.expected:
            return ""
        units = self.expected * sum(UNITS.values())
        return f", about {(now - self.started) * (units - self.done) / self.done:.0f} s left"


kept: list[Diary] = []  # of this process, one at most


def keep(folder: str) -> None:
    """In the rehearsed process: from now on a file in `folder` says how far the engine has come."""
    from deepspeed import DeepSpeedEngine

    kept.append(Diary(Path(folder, NAME)))
    for name in PASSES:
        setattr(DeepSpeedEngine, name, _noted(getattr(DeepSpeedEngine, name), name))


def expect(micro_batches: int) -> None:
    """Say how many there will be."""
    for diary in kept:
        diary.expected = micro_batches


def _noted(plain: Callable, name: str) -> Callable:
    @wraps(plain)
    def __pass_on__(*arguments, **options):  # noqa: N807  no frame of an error
        kept[0].begin(name)
        return plain(*arguments, **options)

    return __pass_on__


def read(folder: str) -> str:
    """What goes on; "starting" before the process has written anything."""
    with suppress(OSError):
        return Path(folder, NAME).read_text()
    return "starting"
