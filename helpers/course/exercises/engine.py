"""Checks that tell a learner what is wrong and why: `Exercise` (a formula), `RankExercise` (a function in
ranks), `Build` (the core of a lesson).

What is wrong with an answer is said in words and raises nothing; an error in the check itself is not caught.
`mistakes` are answers that people really give, each with what to think about.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from helpers.course.exercises import SUBJECTS
from helpers.course.exercises.comparing import counted, difference, kind, same, shown, shown_apart
from helpers.course.exercises.in_ranks import PATIENCE, call_with_own, run_patiently, try_mistakes, try_out
from helpers.course.exercises.reading import (
    forgot_return,
    is_unwritten,
    misfit,
    names_of,
    newer_definition,
    picked_up,
    result_expected,
)
from helpers.course.exercises.telling import tell
from helpers.course.lesson import progress
from helpers.tools.launch.failures import LaunchError, RankError

WORLDS = (2, 4)
COURSES = "the course's"
NO_RETURN = "not yet: your function returns nothing: did you forget `return`?"
NEVER = object()  # no answer was given yet
PLACES_OF_CHECKS = re.compile(r"^(\s+)helpers/course/exercises/")


@dataclass
class Handing:
    """What a lesson goes on with: the learner's function where it is right, else the course's, under the
    learner's name."""

    last: object = field(
        default=NEVER, init=False, repr=False, compare=False
    )  # the learner's own, for when the name stands for the course's

    def own(self, answer: object, solution: Callable) -> object:
        """The learner's function: the one before, where its name stands for the course's since an earlier
        check; the course's if there was none."""
        if not is_the_courses(answer, solution):
            self.last = answer
        return answer if self.last is NEVER else self.last

    def hand_on(self, answer: object, solution: Callable, verdict: str, name: str) -> Callable:
        """Say the verdict and whose function the lesson goes on with, and return that; keep that the learner
        has passed."""
        passed = verdict.startswith("correct") and not is_the_courses(answer, solution)
        tell(followed(verdict, f"{'your' if passed else COURSES} `{name}`"))
        if passed:
            note(self, answer, verdict)
        return answer if passed else solution


def is_the_courses(answer: object, solution: Callable) -> bool:
    """Whether an answer is the course's solution, or was before that was defined anew."""
    return answer is solution or (
        callable(answer) and getattr(answer, "__name__", answer) == getattr(solution, "__name__", solution)
    )


@dataclass
class Exercise(Handing):
    """A formula to write.

    Attributes:
        reference: the solution; its keyword arguments are those that the learner's function gets.
        cases: keyword arguments to try.
        mistakes: {what to think about: a wrong solution that this answers}.
        praise: why a correct answer is right.
        whole: whether an answer may be rounded down, as where it counts things.
    """

    reference: Callable
    cases: tuple[dict, ...]
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    whole: bool = False

    def check(self, answer: object, solution: Callable | None = None) -> Callable | None:
        """Show a verdict in words.  Given a `solution`, returns the learner's function where it is right,
        else the course's."""
        if solution is not None:
            answer = self.own(answer, solution)
            return self.hand_on(
                answer, solution, self.verdict(answer), solution.__name__.removesuffix("_solution")
            )
        verdict = self.verdict(answer)
        note(self, answer, verdict)
        return tell(verdict)

    def verdict(self, answer: object) -> str:
        return before_running(answer, list(self.cases[0]), self.reference, "formula") or self.tried(
            answer
        ) + reading_note(answer, self.reference)

    def tried(self, answer: Callable) -> str:
        for case in self.cases:
            said = ", ".join(f"{name}={shown(value)}" for name, value in case.items())
            try:
                got = answer(**case)
            except Exception as error:
                return f"not yet: your function raised {type(error).__name__} for {said}: {error}"
            if got is None or got is ...:
                return f"not yet: your function returns nothing for {said}"
            expected = self.reference(**case)
            if kind(got) != kind(expected):
                return (
                    f"not yet: your function returns {got!r} for {said}, where a "
                    f"{kind(expected)} is asked for"
                )
            if not self.agree(got, expected):
                given, right = shown_apart(got, expected)
                thought = next(
                    (words for words, wrong in self.mistakes.items() if self.agree(got, wrong(**case))), ""
                )
                return f"not yet: for {said} your function gives {given} where {right} is right" + (
                    f"; {thought}" if thought else ""
                )
        return f"correct for {counted(len(self.cases), 'case')}" + (f": {self.praise}" if self.praise else "")

    def agree(self, got: object, expected: object) -> bool:
        return same(got, expected) or (self.whole and same(got, math.floor(expected)))


@dataclass(frozen=True)
class RankExercise:
    """A function to write that runs in ranks; each rank gets arguments of its own, random at every check, and
    returns its part of the answer.

    Attributes:
        inputs: (ranks, random) -> a list with the keyword arguments of every rank; `random` is a
            `random.Random`.
        expected: (rank, given) -> what that rank should return, a number or a list, where `given` is what
            `inputs` made.
        mistakes: {what to think about: (rank, given) -> what a rank returns that made this mistake}.
        praise: why a correct answer is right.
        worlds: how many ranks to run, one job after the other.
        tolerance: how far a float may be off, relative to the largest of its list.
    """

    inputs: Callable
    expected: Callable
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    worlds: Sequence[int] = WORLDS
    tolerance: float = 1e-5

    def check(self, answer: object) -> None:
        """Run the function in ranks, on the CPU, and show a verdict in words."""
        wanted = list(self.inputs(2, random.Random(0))[0])
        verdict = before_running(answer, wanted, None, "code")
        if not verdict:
            verdict = with_advice(
                in_worlds(self.worlds, partial(self.run, answer), self.praise), answer
            ) + reading_note(answer)
        tell(verdict)
        note(self, answer, verdict)

    def run(self, answer: Callable, ranks: int, seed: int) -> str:
        given = self.inputs(ranks, random.Random(seed))
        return self.verdict(run_patiently(call_with_own, ranks, {"function": answer, "given": given}), given)

    def verdict(self, reports: Sequence[object], given: list[dict[str, object]]) -> str:
        """Words on what is wrong with what the ranks returned for what they were given, else ""."""
        for rank, got in enumerate(reports):
            expected = self.expected(rank, given)
            who = f"rank {rank} of {len(reports)}"
            if got is None or got is ...:
                return f"not yet: {who} returned nothing: did you forget `return`?"
            if kind(got) != kind(expected):
                return (
                    f"not yet: {who} returned {got!r}, where a plain {kind(expected)} is asked for (a "
                    "tensor has .item() and .tolist())"
                )
            if found := difference(got, expected, self.tolerance):
                thought = next(
                    (
                        words
                        for words, wrong in self.mistakes.items()
                        if same(got, wrong(rank, given), self.tolerance)
                    ),
                    "",
                )
                return f"not yet: {who} returned {differing(got, expected, found)}" + (
                    f"; {thought}" if thought else ""
                )
        return ""


@dataclass
class Build(Handing):
    """The core of a technique, written by the learner and run in real ranks; the lesson goes on with the
    learner's if it is right.

    Attributes:
        name: what it is called in words and in the progress record.
        trial: (function, seed) -> {name: value}; runs in every rank, after `deepspeed.init_distributed()`, on
            the CPU.  Makes random inputs from the seed (torch's generator is seeded with it already, alike on
            all ranks), calls the function and returns what is to be compared: tensors, numbers, lists,
            strings, bools.
        worlds: how many ranks to run, one job after the other; at least two sizes.
        mistakes: {what to think about: a complete wrong implementation}; it must end, in every rank.
        praise: why a correct answer is right.
        tolerance: how far a float may be off, relative to the largest of its tensor or list.
        patience: seconds after which ranks count as hung on a machine with nothing else to do.
    """

    name: str
    trial: Callable
    worlds: Sequence[int] = WORLDS
    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    tolerance: float = 1e-5
    patience: float = PATIENCE

    def __post_init__(self):
        if len(set(self.worlds)) < 2:
            raise ValueError(
                f"{self.name} needs at least two world sizes, not {self.worlds}: with one, a "
                "function that knows it by heart is right"
            )

    def check(self, answer: object, solution: Callable) -> Callable:
        """Show a verdict in words; returns the learner's function where it is right, else the course's
        `solution`."""
        answer = self.own(answer, solution)
        return self.hand_on(answer, solution, self.verdict(answer, solution), self.name)

    def verdict(self, answer: object, solution: Callable) -> str:
        ready = before_running(answer, names_of(solution), solution, "code", by_position=True)
        if ready:
            return ready
        return with_advice(
            in_worlds(self.worlds, partial(self.run, answer, solution), self.praise), answer
        ) + reading_note(answer, solution)

    def run(self, answer: Callable, solution: Callable, ranks: int, seed: int) -> str:
        """Words on what is wrong with the answer in a job of so many ranks, else ""."""
        found = run_patiently(
            try_out,
            ranks,
            {"trial": self.trial, "function": answer, "solution": solution, "seed": seed},
            self.patience,
        )
        wrong = self.wrong(found)
        if not wrong:
            return ""
        try:
            tried = self.tried(list(self.mistakes.values()), ranks, seed)
        except RankError:
            tried = [()] * ranks
        thought = self.thought([got for _, got in found], tried)
        return f"not yet: {wrong}" + (f"; {thought}" if thought else "")

    def wrong(self, found: Sequence[tuple[dict[str, object], dict[str, object]]]) -> str:
        """The first place where a rank's values are not the expected ones, in words, else ""; `found` holds
        (expected, got) of every rank."""
        for rank, (expected, got) in enumerate(found):
            for name, right in expected.items():
                if wrong := difference(got.get(name), right, self.tolerance, f"`{name}`"):
                    place, there, due = wrong
                    return f"rank {rank} of {len(found)}: {place} is {there} where {due} is right"
        return ""

    def tried(
        self, functions: list[Callable], ranks: int, seed: int
    ) -> Sequence[list[dict[str, object] | None]]:
        """What every rank's trial finds with each of several functions, in one job; None for one that
        fails."""
        return run_patiently(
            try_mistakes, ranks, {"trial": self.trial, "mistakes": functions, "seed": seed}, self.patience
        )

    def thought(
        self, got: Sequence[dict[str, object]], tried: Sequence[Sequence[dict[str, object] | None]]
    ) -> str:
        """The words of the first mistake whose values, `tried` by every rank, agree with what the ranks got;
        else ""."""
        for words, values in zip(self.mistakes, zip(*tried)):
            if all(same(one, other, self.tolerance) for one, other in zip(got, values)):
                return words
        return ""


def followed(verdict: str, used: str) -> str:
    """A verdict, and whose function the lesson goes on with."""
    if verdict.startswith("not written yet"):
        return f"not written yet: what follows uses {used}"
    end = "\n" if "\n" in verdict else " " if verdict.endswith((".", "?")) else ". "
    return f"{verdict}{end}What follows uses {used}."


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
        return f"not yet: the check needs your function itself, not {answer!r}"
    if old := newer_definition(answer):
        return f"not yet: {old}"
    if is_unwritten(answer):
        return f"not written yet: put your {what} in the place of the dots"
    if wanted is not None and (words := misfit(answer, wanted, by_position)):
        return f"not yet: {words}"
    return NO_RETURN if forgot_return(answer, solution) else ""


def in_worlds(worlds: Sequence[int], run: Callable[[int, int], str], praise: str) -> str:
    """The verdict of `run(ranks, seed)` in jobs of several sizes: what is wrong in the first that is not
    right; else praise."""
    for ranks in worlds:
        try:
            if wrong := run(ranks, random.SystemRandom().randrange(2**31)):
                return wrong
        except (LaunchError, MemoryError, TypeError) as error:
            if is_a_fault_of_the_check(error):
                raise
            return f"not yet: {without_checks(str(error))}"
    sizes = " and ".join(str(ranks) for ranks in worlds)
    return f"correct in {sizes} ranks" + (f": {praise}" if praise else "")


def with_advice(verdict: str, answer: object) -> str:
    """A verdict that is not "correct" with a word on the commonest slip with collectives, where the function
    has it."""
    names = [] if verdict.startswith("correct") else result_expected(answer)
    listed = " and ".join(f"`comm.{name}`" for name in names)
    return (
        f"{verdict}\n{listed} writes into the tensor that it is given, and returns nothing: do "
        "not use its result"
        if names
        else verdict
    )


def is_a_fault_of_the_check(error: Exception) -> bool:
    if isinstance(error, TypeError):
        return "cannot be sent to the ranks" not in str(error)
    return "raised CourseFault" in str(error).partition("\n")[0]


def without_checks(message: str) -> str:
    """A rank's error without the check's own lines, each with its line of source."""
    kept, deeper_than = [], None
    for line in message.splitlines():
        indent = len(line) - len(line.lstrip())
        if found := PLACES_OF_CHECKS.match(line):
            deeper_than = len(found.group(1))
        elif deeper_than is None or indent <= deeper_than:
            kept, deeper_than = [*kept, line], None
    return "\n".join(kept)


def differing(got: object, expected: object, found: tuple[str, str, str]) -> str:
    """What was returned and what is right: short lists as they are, else the first place that differs."""
    place, there, right = found
    if place and len(expected) > 8:
        return f"a list whose element {place} is {there} where {right} is right"
    if place:
        there, right = shown_apart(got, expected)
    return f"{there} where {right} is right"


def reading_note(answer: object, solution: Callable | None = None) -> str:
    """A word on variables of the notebook that a function uses without having been given them."""
    names = picked_up(answer, solution)
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        f"; note that your function reads {listed} from the notebook, not from its arguments or its own lines"
        if names
        else ""
    )


def note(exercise: Handing | RankExercise, answer: object, verdict: str) -> None:
    """Keep that the learner has passed; solutions of the course are named `*_solution`."""
    if verdict.startswith("correct") and not getattr(answer, "__name__", "").endswith("_solution"):
        for lesson, name in named(exercise):
            progress.record(name, lesson)


def named(exercise: Handing | RankExercise) -> Iterator[tuple[str, str]]:
    """Where an exercise stands: its lesson's number, and its name there."""
    for number, subject in SUBJECTS.items():
        for name, value in list(getattr(sys.modules.get(f"{__package__}.{subject}"), "__dict__", {}).items()):
            if value is exercise:
                yield number, getattr(exercise, "name", name)
