"""A number that a learner guesses before a run, and what became of it: never graded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from helpers.course.exercises.comparing import described, is_finite, kind, plain, shown
from helpers.course.exercises.telling import tell

if TYPE_CHECKING:
    from types import EllipsisType

    from torch import Tensor


class Guess:
    """Made by `guess`; `compare` puts the measurement beside it."""

    def __init__(self, label: str, value: float | None):
        self.label, self.value = label, value

    def compare(self, measured: float | Tensor) -> None:
        """Say how far the guess was from what was measured: a number, or a tensor of one element."""
        measured = number_in(measured)
        if self.value is None:
            tell(f"You made no guess. It is {shown(measured, 3)} ({self.label}).")
        else:
            tell(
                f"you said {shown(self.value)}, it is {shown(measured, 3)}: "
                f"{how_far(self.value, measured)} ({self.label})"
            )


def guess(label: str, value: float | Tensor | EllipsisType | None = ..., *more: object) -> Guess:
    """A guess to fill in before the run: `guess("bytes per parameter, four ranks", ...)`, with a number in
    the place of the dots.

    Args:
        label: what is guessed, with its unit.
        value: the number; dots, None or nothing where there is no guess.
        more: what follows a comma in a number, which is written with a point.
    """
    if value is ... or value is None:
        return Guess(label, None)
    value = number_in((value, *more) if more else value)
    if kind(value) != "number" or not is_finite(value):
        tell(
            f"a guess is a plain number, such as 7 or 2.5e9, and {described(value)} is none"
            f"{meant(value)} ({label})"
        )
        return Guess(label, None)
    return Guess(label, value)


def meant(value: object) -> str:
    """What to write where one can see which number is meant, behind a colon; else ""."""
    match value:
        case [int(whole), int(part)]:
            return f": with a point it is {whole}.{part}"
        case str() if found := re.match(r"\s*[-+]?\d[\d.]*(?:e[-+]?\d+)?", value):
            return f": leave out the unit and the quotes, {found[0].strip()}"
    return ""


def number_in(value: object) -> object:
    """A value as plain data; a tensor of one element as its number."""
    value = plain(value)
    return value.item() if getattr(value, "size", 0) == 1 else value


def how_far(value: float, measured: float) -> str:
    if value == measured:
        return "exactly so"
    if measured == 0 or value == 0 or (value < 0) != (measured < 0):
        return f"{shown(abs(value - measured), 3)} off"
    ratio = value / measured
    if ratio >= 3 or ratio <= 1 / 3:
        return f"{shown(max(ratio, 1 / ratio), 2)} times too {'much' if ratio > 1 else 'little'}"
    part = 100 * abs(ratio - 1)
    return f"{part:.0f} % off" if part >= 0.5 else "less than 1 % off"
