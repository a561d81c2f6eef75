"""Bugs in a formula of a whole Llama that people really write, and the check of a small model that betrays
them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.course.exercises.comparing import described, kind
from helpers.course.exercises.formulas import Exercise

LETTERS = ("h", "a", "k", "d", "f", "L", "V", "tied")
ESCAPES = {  # bug: what its model lacks where nothing shows
    "keys at full heads": "k equals a",
    "never tied": "the head is not tied",
    "d = h / a": "a times d equals h",
}


def miscounts(formula: Callable) -> dict[str, Callable]:
    """{bug: the formula with it}; the last, masked scores cost nothing, is none where a kernel skips them."""

    def two_matrices(b: int, s: int, **of: int) -> dict[str, int]:
        total, third = formula(b, s, **of), of["L"] * of["h"] * of["f"]
        fewer = {"parameters": total["parameters"] - third, "FLOPs": total["FLOPs"] - 2 * b * s * third}
        return total | fewer

    def half_of_the_scores(b: int, s: int, **of: int) -> dict[str, int]:
        total, saved = formula(b, s, **of), 2 * b * s * s * of["a"] * of["d"] * of["L"]
        return total | {"FLOPs": total["FLOPs"] - saved}

    return {
        "keys at full heads": lambda b, s, **of: formula(b, s, **of | {"k": of["a"]}),
        "never tied": lambda b, s, **of: formula(b, s, **of | {"tied": False}),
        "d = h / a": lambda b, s, **of: formula(b, s, **of | {"d": of["h"] // of["a"]}),
        "two matrices": two_matrices,
        "half of the scores": half_of_the_scores,
    }


@dataclass(kw_only=True)
class OddModel(Exercise):
    """A function without arguments that returns letters of a Llama in whose parameters and FLOPs every bug of
    the right `formula` shows."""

    formula: Callable

    def correct(self, how: str) -> str:
        return super().correct("for all bugs")

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        got, failure = outcome
        if failure:
            return super().wrong(case, outcome)
        words = unfit(got) or escaping(got, self.formula)
        return words and f"not yet: {words}"


def unfit(got: object) -> str:
    """Why no Llama has these letters; "" where one has."""
    if kind(got) != "dict" or set(got) != set(LETTERS):
        return f"return a dict with {', '.join(LETTERS)}, not {described(got)}"
    *sizes, _ = LETTERS
    if wrong := [letter for letter in sizes if type(got[letter]) is not int or got[letter] < 1]:
        return f"{wrong[0]} must be a whole number from 1 on"
    if type(got["tied"]) is not bool:
        return "tied must be True or False"
    if got["a"] % got["k"] or got["d"] % 2:
        return "query heads share keys evenly, so a must be a multiple of k, and d must be even"
    if got["h"] % got["a"]:
        return "transformers builds no Llama unless h is a multiple of a, although d need not be h / a"
    return ""


def escaping(letters: dict, formula: Callable) -> str:
    """Which bug a Llama with these letters would not show, in words; "" where all show."""
    due, bugs = formula(1, 64, **letters), miscounts(formula).items()
    hidden = next((bug for bug, wrong in bugs if wrong(1, 64, **letters) == due), "")
    return hidden and f"your model does not show the bug `{hidden}`: {ESCAPES[hidden]}"
