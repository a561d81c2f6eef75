"""Bugs in a formula of a whole Llama that people really write, and the check of a small model that betrays
them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.course.exercises.comparing import described, kind
from helpers.course.exercises.formulas import Exercise

LETTERS = ("h", "a", "k", "d", "f", "L", "V", "tied")
LARGEST = 1_000_000_000  # parameters of a model that the lesson runs
ESCAPES = {  # bug: what its model lacks where nothing shows
    "keys at full heads": "k equals a",
    "never tied": "the head is not tied",
    "d = h / a": "a times d equals h",
    "repeated keys are kept": "k equals a",
}


def miscounts(formula: Callable) -> dict[str, Callable]:
    """{bug: the formula with it}; the last two are of what is kept alone."""

    def less(price: str, of_block: Callable[..., int]) -> Callable:
        """The formula, which misses so much of one price in each block; a negative number is too much."""

        def wrong(b: int, s: int, **of: int) -> dict[str, int]:
            total = formula(b, s, **of)
            return total | {price: total[price] - of["L"] * of_block(b=b, s=s, **of)}

        return wrong

    return {
        "keys at full heads": lambda b, s, **of: formula(b, s, **of | {"k": of["a"]}),
        "never tied": lambda b, s, **of: formula(b, s, **of | {"tied": False}),
        "d = h / a": lambda b, s, **of: formula(b, s, **of | {"d": of["h"] // of["a"]}),
        "no scores": less("FLOPs", lambda b, s, a, d, **_: 4 * b * s * s * a * d),
        "a norm keeps its input": less("kept", lambda b, s, h, **_: 2 * (4 * b * s * h + 4 * b * s)),
        "repeated keys are kept": less("kept", lambda b, s, a, k, d, **_: -2 * b * s * 2 * (a - k) * d),
    }


@dataclass(kw_only=True)
class OddModel(Exercise):
    """A function without arguments that returns letters of a Llama in whose prices every bug of the right
    `formula` shows."""

    formula: Callable

    def correct(self, how: str) -> str:
        return super().correct("for all bugs")

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        got, failure = outcome
        if failure:
            return super().wrong(case, outcome)
        words = unfit(got) or too_large(got, self.formula) or escaping(got, self.formula)
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


def too_large(letters: dict, formula: Callable) -> str:
    """In words, where the model is too large to be run here; else ""."""
    parameters = formula(1, 64, **letters)["parameters"]
    return f"a small model is enough, and yours has {parameters:,} parameters" * (parameters > LARGEST)


def escaping(letters: dict, formula: Callable) -> str:
    """Which bug a Llama with these letters would not show, in words; "" where all show."""
    due, bugs = formula(1, 64, **letters), miscounts(formula).items()
    hidden = next((bug for bug, wrong in bugs if wrong(1, 64, **letters) == due), "")
    return hidden and f"your model does not show the bug `{hidden}`: {ESCAPES[hidden]}"
