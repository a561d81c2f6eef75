"""A bug that a learner plants on purpose.  It is judged by what it breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from helpers.course.exercises.builds import Build
from helpers.course.exercises.comparing import counted
from helpers.course.exercises.in_ranks import Judged

MOST_NAMED = 3  # values that a verdict names


@dataclass
class Fault(Build):
    """A function with the bug that was asked for: all values that the right function's trial finds must be
    those that the bug gives.

    Attributes:
        solution: the course's function with the bug.
        right_one: the course's function without it.
        broken: {names of values that the learner's bug changes: None}, in the order of the trial.
    """

    DUE = "is what the bug gives"

    right_one: Callable = field(kw_only=True)
    broken: dict[str, None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def verdict(self, answer: object) -> str:
        self.broken.clear()
        return super().verdict(answer)

    def always(self) -> list[Callable]:
        return [self.right_one]

    def wrong(self, found: Sequence[Judged]) -> str:
        """What is not as the bug makes it, in words: nothing is broken, or something else; else ""."""
        broken = dict.fromkeys(name for rank in found for name in rank.apart[0] or ())
        if not broken:
            return f"nothing is broken in {counted(len(found), 'rank')}; your function is still right"
        self.broken |= broken
        wrong = super().wrong(found)
        return wrong and f"this breaks {listed(broken)}, but not as asked: {wrong}"

    def correct(self, how: str) -> str:
        words = f"correct {how}: that is the bug. What it makes wrong: {listed(self.broken)}"
        return f"{words}. {self.praise}" if self.praise else words


def listed(names: Sequence[str]) -> str:
    """The first names of values, and how many more there are."""
    first = ", ".join(f"`{name}`" for name in list(names)[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{first} and {counted(more, 'value')} more" if more > 0 else first


def shared_with(of: Build) -> dict[str, object]:
    """The options of a `Fault` that are those of the right function's check."""
    kept = ("trial", "worlds", "tolerance", "patience", "together", "hints", "names")
    same = {option: getattr(of, option) for option in kept}
    return same | {"right_one": of.solution, "rungs": (of, *of.rungs)}
