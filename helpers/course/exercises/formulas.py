"""`Exercise`: the check of a formula, which is called with each of several cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field

from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.comparing import counted, described, differing, kind, plain, same, shown
from helpers.course.exercises.editing import edit
from helpers.course.exercises.engine import NOTHING, Check, before_running, first_thought, reading_note


@dataclass
class Exercise(Check):
    """A formula to write.

    Attributes:
        reference: the solution; its keyword arguments are those that the learner's function gets.
        cases: keyword arguments to try, tensors too; every call gets a copy of its own.
        whole: whether an answer may be rounded down, as where it counts things.
        near: how far a number may be off, relative to what it should be, as where several ways to compute it
            round differently.
    """

    reference: Callable
    cases: tuple[dict, ...]
    whole: bool = False
    near: float = 1e-9
    solution: Callable | None = field(default=None, kw_only=True)

    def __post_init__(self):
        self.solution = self.solution or self.reference
        try:
            self.cases = deepcopy(self.cases)
        except Exception as error:
            words = "give each of its arguments as data, such as a list for a generator"
            raise ValueError(f"a case of an exercise cannot be copied ({error}): {words}") from None

    def verdict(self, answer: object) -> str:
        if ready := before_running(answer, list(self.cases[0]), None, "formula"):
            return ready
        with closing(call_with_each(answer, deepcopy(self.cases))) as outcomes:
            wrong = filter(None, map(self.wrong, self.cases, outcomes))
            verdict = next(wrong, self.correct(f"for {counted(len(self.cases), 'case')}"))
        return verdict + reading_note(answer, self.reference)

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        """The verdict on what the learner's function did in one case; "" where it is right."""
        got, failure = outcome
        arguments = ", ".join(f"{name}={shown(plain(value))}" for name, value in case.items())
        given = f" for {arguments}" if case else ""
        expected = plain(self.reference(**deepcopy(case)))
        if failure:
            did, colon, message = failure.partition(":")
            return f"not yet: your function {did}{given}{colon}{message}"
        if got is None or got is ...:
            return f"{NOTHING}{given}"
        if kind(got) != kind(expected):
            asked = f"a {kind(expected)} is asked for"
            return f"not yet: your function returns {described(got)}{given}, where {asked}"
        if self.agree(got, expected):
            return ""
        thought = first_thought(self.mistaken(case), lambda result: self.agree(got, result))
        return f"not yet:{given} your function gives {differing(got, expected)}{thought}"

    def mistaken(self, case: dict) -> dict[str, object]:
        """{what to think about: what a mistaken function gives in a case}."""
        wrong = {words: edit(self.solution, *changes) for words, changes in self.mistakes.items()}
        return {words: plain(function(**deepcopy(case))) for words, function in wrong.items()}

    def agree(self, got: object, expected: object) -> bool:
        return same(got, expected, self.near) or (self.whole and same(got, math.floor(expected)))
