"""Checks that tell a learner what is wrong and why: what all of them share, and `Exercise`, a formula.

What is wrong with an answer is said in words and raises nothing; an error in the check itself is not caught.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field

from helpers.course.exercises import SUBJECTS, planner, reading
from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.comparing import counted, described, differing, kind, plain, same, shown
from helpers.course.exercises.ladders import Ladder, is_the_courses
from helpers.course.exercises.telling import tell
from helpers.course.lesson import progress

NEVER = object()  # no answer was given yet
NOTHING = "not yet: your function returns nothing"


@dataclass(kw_only=True)
class Check:
    """A check, and what a lesson goes on with: the learner's function where it is right, else the course's,
    under the learner's name.

    Attributes:
        solution: the course's answer, `x_solution` for the learner's `x`.
        mistakes: {what to think about: a wrong answer that people really give}.
        praise: why a correct answer is right.
        rungs: checks of earlier functions, which this one may call by their names.
        term: what a right answer adds to the learner's planner, "states" or "peak"; "" where nothing.
        scope: of which plans that is asked, a function of a `theory.Plan`; None for all.
        last: the learner's last answer, for a check that runs again when the name stands for the course's.
        right: the learner's last right answer.
    """

    solution: Callable
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    rungs: Sequence[Check] = ()
    term: str = ""
    scope: Callable[..., bool] | None = None
    last: object = field(default=NEVER, init=False, repr=False, compare=False)
    right: object = field(default=None, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """What the learner's function is called in words."""
        return self.solution.__name__.removesuffix("_solution")

    @property
    def whose(self) -> str:
        """Whose function the lesson goes on with, for what it prints: "yours" or "the course's"."""
        return "yours" if self.right is not None else "the course's"

    def check(self, answer: object) -> Callable:
        """Show a verdict in words; return the learner's function where it is right, else the course's."""
        if not is_the_courses(answer, self.solution):
            self.last = answer
        elif self.last is not NEVER:
            answer = self.last
        ladder = Ladder(self.rungs, answer)
        verdict = self.verdict(answer)
        passed = verdict.startswith("correct") and not is_the_courses(answer, self.solution)
        self.right = answer if passed else None
        if passed:
            self.note()
        whose = "your" if passed else "the course's"
        tell(followed(verdict, ladder.note(), f"{whose} `{self.name}`"))
        if passed and self.term:
            tell(f"{planner.keep(answer)} {planner.score(self.term, answer, self.scope)}".strip())
        return answer if passed else ladder.climbed(self.solution)

    def verdict(self, answer: object) -> str:
        """The verdict on an answer, in words that begin with "correct", "not yet" or "not written yet"."""
        raise NotImplementedError

    def note(self) -> None:
        """Keep that the learner has passed."""
        for lesson, subject in SUBJECTS.items():
            module = sys.modules.get(f"{__package__}.{subject}")
            for name, value in list(vars(module).items()) if module else ():
                if value is self:
                    progress.record(name, lesson)

    def correct(self, how: str) -> str:
        return f"correct {how}: {self.praise}" if self.praise else f"correct {how}"


def followed(verdict: str, note: str, used: str) -> str:
    """A verdict, a sentence on it if there is one, and whose function the lesson goes on with."""
    if verdict.startswith("not written yet"):
        return f"not written yet. The lesson uses {used}."
    end = "\n" if "\n" in verdict else " " if verdict.endswith((".", "?")) else ". "
    return f"{verdict}{end}{note and f'{note} '}The lesson uses {used}."


def first_thought(results: dict[str, object], agrees: Callable[[object], bool]) -> str:
    """What to think about for the first mistake whose result agrees, behind a semicolon, else ""."""
    return next((f"; {words}" for words, result in results.items() if agrees(result)), "")


def before_running(
    answer: object,
    wanted: Sequence[str] | None,
    solution: Callable | None,
    what: str,
    by_position: bool = False,
) -> str:
    """The verdict on an answer that need not be run: no function, not written, of another shape, or not the
    newest; else ""."""
    if not callable(answer):
        return f"not yet: the check needs your function itself, not {described(answer)}"
    if old := reading.newer_definition(answer):
        return f"not yet: {old}"
    if reading.is_unwritten(answer):
        return f"not written yet: put your {what} in the place of the dots"
    if wanted is not None and (words := reading.misfit(answer, wanted, by_position)):
        return f"not yet: {words}"
    return f"{NOTHING}: did you forget `return`?" if reading.forgot_return(answer, solution) else ""


def reading_note(answer: object, solution: Callable | None = None) -> str:
    """A word on variables of the notebook that a function uses without having been given them."""
    listed = ", ".join(f"`{name}`" for name in reading.picked_up(answer, solution))
    where = "from the notebook, not from its arguments or its own lines"
    return f"; note that your function reads {listed} {where}" if listed else ""


@dataclass
class Exercise(Check):
    """A formula to write.

    Attributes:
        reference: the solution; its keyword arguments are those that the learner's function gets.
        cases: keyword arguments to try; every call gets a copy of its own.
        whole: whether an answer may be rounded down, as where it counts things.
    """

    reference: Callable
    cases: tuple[dict, ...]
    whole: bool = False
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
        arguments = ", ".join(f"{name}={shown(value)}" for name, value in case.items())
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
        results = {words: plain(mistake(**deepcopy(case))) for words, mistake in self.mistakes.items()}
        thought = first_thought(results, lambda result: self.agree(got, result))
        return f"not yet:{given} your function gives {differing(got, expected)}{thought}"

    def agree(self, got: object, expected: object) -> bool:
        return same(got, expected) or (self.whole and same(got, math.floor(expected)))
