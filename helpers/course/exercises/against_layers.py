"""The check of a formula that says what a layer costs: a real layer of transformers, of sizes that are new at
each check, is built, run and counted beside it."""

from __future__ import annotations

import random

from helpers.course.exercises.comparing import kind, same, shown, shown_apart
from helpers.course.exercises.engine import NOTHING, first_thought
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.reading import names_of
from helpers.course.exercises.real_layers import REAL, real

UNITS = {"parameters": "parameters", "FLOPs": "FLOPs", "kept": "bytes kept"}


def drawn(tied: bool) -> dict[str, int]:
    """Letters of a small Llama, of which no two are equal or twice as large, so that no two mistakes give the
    same number: heads share keys, and together they are not as wide as the stream."""
    chance = random.SystemRandom()
    k, d = chance.choice((2, 3)), chance.choice((8, 16))
    a = k * chance.choice((3, 4))
    letters = {"b": chance.choice((3, 5)), "s": chance.randint(5, 12), "a": a, "k": k, "d": d}
    letters |= {"h": 8 * a * chance.choice((3, 4)), "f": 8 * chance.choice((13, 17, 19, 23))}
    return letters | {"L": chance.randint(6, 7), "V": 2 * chance.randint(90, 160) + 1, "tied": tied}


class AgainstLayers(Exercise):
    """A function of letters that returns {"parameters", "FLOPs", "kept"} of a layer; each check draws cases.

    `mistakes` are matched by one quantity at a time: an answer may be wrong in one and right in another.
    """

    def verdict(self, answer: object) -> str:
        layers, names = (drawn(tied=False), drawn(tied=True)), names_of(self.solution)
        self.cases = tuple({name: letters[name] for name in names} for letters in layers)
        return super().verdict(answer)

    def correct(self, how: str) -> str:
        return super().correct(f"for {len(self.cases)} real layers, to the last parameter, FLOP and byte")

    def wrong(self, case: dict, outcome: tuple[object, str]) -> str:
        got, failure = outcome
        if failure or got is None or got is ...:
            return super().wrong(case, outcome)
        if kind(got) != "dict" or (missing := [name for name in UNITS if name not in got]):
            lacks = f"a dict without {missing[0]!r}" if kind(got) == "dict" else f"a {kind(got)}"
            return f"not yet: your function returns {lacks}: return a dict with {', '.join(UNITS)}"
        expected = real(self.name, **case)
        name = next((name for name in UNITS if not same(got[name], expected[name])), "")
        if not name:
            return ""
        if kind(got[name]) != "number":
            return f"{NOTHING} that is a number as {name!r}"
        there, due = shown_apart(got[name], expected[name])
        letters = ", ".join(f"{letter}={shown(value)}" for letter, value in case.items())
        thought = first_thought(self.mistaken(case), lambda result: same(got[name], result[name]))
        gives = f"your function gives {there} {UNITS[name]} where, by {REAL[self.name]}, {due} is right"
        return f"not yet: for {letters} {gives}{thought}"
