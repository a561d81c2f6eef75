"""Where a program asked for a number that a rehearsal does not know: `loss.item()`, `if loss > 2`,
`losses.tolist()`.

It is answered all the same, and goes the way that follows from the answer; whoever wrote the program should
know at which lines.  What torch and DeepSpeed ask for themselves (a norm, whether ranks agree) is answered
and not told, but for loss scaling, by which a step may be left out.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch

from .. import measure
from ..launcher.failures import place

SHOWN, WIDE = 5, 40  # places that are named; characters of a place's own words
HERE, MEASURE, TORCH = (Path(file).parent for file in (__file__, measure.__file__, torch.__file__))
METHODS = ("_ops.py", "_tensor.py", "_tensor_str.py", "overrides.py", "_subclasses/", "utils/_")
PASSED = (  # through which a question passes
    *(f"{room}/" for room in (HERE, MEASURE)),
    *(f"{TORCH}/{name}" for name in METHODS),
)
# Their own questions are not told; the last asks what a mask hides.
LIBRARIES = (f"{TORCH}/", "/deepspeed/", "/transformers/masking_utils.py")
CONDITION = re.compile(r"^(?:if|elif|while)\s+(.*):$")  # Python's place of a test may be its whole statement
SCALING = "DeepSpeed's loss scaling"


@dataclass(frozen=True)
class Place:
    """A place in a program that asked for a number: the first and last column of the expression, where it
    stands in one line; what it was told, and how often."""

    file: str
    line: int
    name: str
    columns: tuple | None
    answer: object
    times: int = 1

    def __str__(self):
        often = f", {self.times:,} times" if self.times > 1 else ""
        if self.file == SCALING:
            return f"{SCALING} (overflow → no{often})"
        return f"{place((self.file, self.line, self.name))} ({self._words()} → {self.answer}{often})"

    def _words(self):
        """The expression, or its line, or what can be said without its text."""
        line = linecache.getline(self.file, self.line)
        words = line.encode()[slice(*self.columns)].decode() if self.columns and line else line.strip()
        words = CONDITION.sub(r"\1", words) or "a number"
        return words if len(words) <= WIDE else words[: WIDE - 3] + "..."


_times = Counter()  # {Place: how often} of this process, which rehearses once


def answered(answer: bool | float) -> bool | float:
    """The answer, after a note of who asked for it."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith(PASSED):
        frame = frame.f_back
    if frame and not any(library in frame.f_code.co_filename for library in LIBRARIES):
        code = frame.f_code
        _times[Place(code.co_filename, frame.f_lineno, code.co_name, columns(frame), answer)] += 1
    return answer


def scaled() -> None:
    """Note that a loss scale was kept because no gradient has overflowed."""
    _times[Place(SCALING, 0, "", None, False)] += 1


def places() -> list[Place]:
    """In the order in which they first asked."""
    return [replace(place, times=times) for place, times in _times.items()]


def columns(frame: FrameType) -> tuple[int, int] | None:
    """Where in its line the expression stands that a frame is computing, in bytes."""
    first, last, *found = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return tuple(found) if first == last and None not in found else None


def told(places: Sequence[Place]) -> str:
    """What is said at the end of a rehearsal: a line for each of the first places."""
    if not places:
        return ""
    count = "1 place asked" if len(places) == 1 else f"{len(places)} places asked"
    more = [f"and {len(places) - SHOWN} more"] if len(places) > SHOWN else []
    asked = f"{count} for a number that a rehearsal does not know:"
    return "\n  ".join([asked, *map(str, places[:SHOWN]), *more])
