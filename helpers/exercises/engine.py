"""Checks that tell a learner what is wrong and why.

A check calls the learner's function and compares it with a reference solution.  What is wrong with the answer is said in words and raises nothing;
an error in the check itself is not caught.  `mistakes` are answers that people really give, each with what to think about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from helpers.launcher.failures import RankError
from helpers.launcher.jobs import launch


@dataclass(frozen=True)
class Exercise:
    """A formula to write.

    Attributes:
        reference: the solution; its keyword arguments are those that the learner's function gets.
        cases: keyword arguments to try.
        mistakes: {what to think about: a wrong solution that this answers}.
        praise: what a correct answer has shown.
    """

    reference: Callable
    cases: tuple[dict, ...]
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""

    def check(self, answer):
        """Print a verdict in words."""
        print(self.verdict(answer))

    def verdict(self, answer):
        if not callable(answer):
            return f"not yet: the check needs your function itself, not {answer!r}"
        for case in self.cases:
            said = ", ".join(f"{name}={value}" for name, value in case.items())
            try:
                got = answer(**case)
            except Exception as error:
                return f"not yet: your function raised {type(error).__name__} for {said}: {error}"
            if got is None or got is ...:
                return "not yet: your function returns nothing so far; replace the dots by your formula"
            expected = self.reference(**case)
            if _kind(got) != _kind(expected):
                return f"not yet: your function returns {got!r} for {said}, where a {_kind(expected)} is asked for"
            if not _same(got, expected):
                thought = next((words for words, wrong in self.mistakes.items() if _same(got, wrong(**case))), "")
                return f"not yet: for {said} your function gives {_show(got)} where {_show(expected)} is right" + (f"; {thought}" if thought else "")
        return f"correct for {len(self.cases)} cases" + (f": {self.praise}" if self.praise else "")


@dataclass(frozen=True)
class RankExercise:
    """A function to write that runs in ranks; it gets no arguments, and each rank returns its part of the answer.

    Attributes:
        expected: (rank, ranks) -> what that rank should return: a number or a list.
        mistakes: {what to think about: (rank, ranks) -> what a rank returns that made this mistake}.
        praise: what a correct answer has shown.
        ranks: how many to run.
    """

    expected: Callable
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    ranks: int = 4

    def check(self, answer):
        """Run the function in ranks, on the CPU, and print a verdict in words."""
        try:
            print(self.verdict(launch(answer, ranks=self.ranks, device="cpu", timeout=5)))
        except RankError as error:
            print(f"not yet: {error}")

    def verdict(self, reports):
        """The verdict on what the ranks returned."""
        ranks = len(reports)
        for rank, got in enumerate(reports):
            expected = self.expected(rank, ranks)
            if got is None or got is ...:
                return f"not yet: rank {rank} returned nothing"
            if _kind(got) != _kind(expected):
                return f"not yet: rank {rank} returned {got!r}, where a plain {_kind(expected)} is asked for (a tensor has .item() and .tolist())"
            if not _same(got, expected):
                thought = next((words for words, wrong in self.mistakes.items() if _same(got, wrong(rank, ranks))), "")
                return f"not yet: rank {rank} returned {_show(got)} where {_show(expected)} is right" + (f"; {thought}" if thought else "")
        return f"correct in {ranks} ranks" + (f": {self.praise}" if self.praise else "")


def _kind(value):
    if isinstance(value, (list, tuple)):
        return "list"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def _same(a, b):
    """Equal; numbers to nine digits, lists element by element."""
    if _kind(a) != _kind(b):
        return False
    if _kind(a) == "list":
        return len(a) == len(b) and all(_same(one, other) for one, other in zip(a, b))
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-300) if _kind(a) == "number" else a == b


def _show(value):
    return f"{value:,.6g}" if _kind(value) == "number" else str(value)
