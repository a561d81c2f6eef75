"""Bugs in a formula of a whole Llama that people really write, and the check of a small model that betrays
them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.comparing import described, kind
from helpers.course.exercises.engine import Check, before_running

LETTERS = ("h", "a", "k", "d", "f", "L", "V", "tied")
ESCAPES = {  # bug: what its model lacks where nothing shows
    "keys at full heads": "k equals a",
    "never tied": "the head is not tied",
    "d = h / a": "a times d equals h",
}


def miscounts(formula: Callable) -> dict[str, Callable]:
    """{bug: the formula with it}."""
    faulty = {
        "keys at full heads": lambda b, s, **letters: formula(b, s, **letters | {"k": letters["a"]}),
        "never tied": lambda b, s, **letters: formula(b, s, **letters | {"tied": False}),
        "d = h / a": lambda b, s, **letters: formula(b, s, **letters | {"d": letters["h"] // letters["a"]}),
    }
    return faulty | {"two matrices": two_matrices(formula), "half of the scores": half_the_scores(formula)}


def two_matrices(formula: Callable) -> Callable:
    """With a bug: the feed-forward layer has two matrices."""

    def faulty(b: int, s: int, **letters: int) -> dict[str, int]:
        missing = letters["L"] * letters["h"] * letters["f"]
        total = formula(b, s, **letters)
        fewer = {"parameters": missing, "FLOPs": 2 * b * s * missing}
        return total | {name: total[name] - less for name, less in fewer.items()}

    return faulty


def half_the_scores(formula: Callable) -> Callable:
    """With a change that is no bug in what a fused kernel computes: masked scores cost nothing."""

    def faulty(b: int, s: int, **letters: int) -> dict[str, int]:
        total = formula(b, s, **letters)
        saved = 2 * b * s * s * letters["a"] * letters["d"] * letters["L"]
        return total | {"FLOPs": total["FLOPs"] - saved}

    return faulty


@dataclass(kw_only=True)
class OddModel(Check):
    """A function without arguments that returns letters of a Llama whose parameters and FLOPs show every bug.

    Attributes:
        formula: the right one.
        bugs: {bug: a wrong one}.
    """

    formula: Callable
    bugs: dict[str, Callable]

    def verdict(self, answer: object) -> str:
        if ready := before_running(answer, [], self.solution, "letters"):
            return ready
        with closing(call_with_each(answer, ({},))) as outcomes:
            got, failure = next(outcomes)
        if failure:
            return f"not yet: your function {failure}"
        return self.unfit(got) or self.escaping(got) or self.correct("for all bugs")

    def unfit(self, got: object) -> str:
        """Why no Llama has these letters; "" where one has."""
        if kind(got) != "dict" or set(got) != set(LETTERS):
            return f"not yet: return a dict with {', '.join(LETTERS)}, not {described(got)}"
        sizes = {letter: size for letter, size in got.items() if letter != "tied"}
        if wrong := [letter for letter, size in sizes.items() if type(size) is not int or size < 1]:
            return f"not yet: {wrong[0]} must be a whole number from 1 on"
        if type(got["tied"]) is not bool:
            return "not yet: tied must be True or False"
        if got["a"] % got["k"] or got["d"] % 2:
            return "not yet: query heads share keys evenly, so a must be a multiple of k, and d must be even"
        return ""

    def escaping(self, got: dict) -> str:
        """Which bug would not show; "" where all do."""
        due = self.counts(self.formula, got)
        hidden = next((bug for bug, wrong in self.bugs.items() if self.counts(wrong, got) == due), "")
        return f"not yet: your model does not show the bug `{hidden}`: {ESCAPES[hidden]}" if hidden else ""

    def counts(self, formula: Callable, letters: dict) -> tuple[int, int]:
        found = formula(1, 64, **letters)
        return found["parameters"], found["FLOPs"]
