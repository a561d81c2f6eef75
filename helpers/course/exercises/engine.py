"""Checks that tell a learner what is wrong and why: `Exercise` (a formula), `RankExercise` (a function in
ranks), `Build` (the core of a lesson).

What is wrong with an answer is said in words and raises nothing; an error in the check itself is not caught.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, field

from helpers.course.exercises import SUBJECTS, reading
from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.comparing import (
    counted,
    described,
    difference,
    differing,
    kind,
    plain,
    same,
    shown,
)
from helpers.course.exercises.editing import edit
from helpers.course.exercises.in_ranks import PATIENCE, call_with_own, run_patiently, try_mistakes, try_out
from helpers.course.exercises.telling import tell
from helpers.course.lesson import progress
from helpers.tools.launch.failures import LaunchError, RankError

Values = dict[str, object]  # what a trial finds: {name: value}
WORLDS = (2, 4)
NEVER = object()  # no answer was given yet
NOTHING = "not yet: your function returns nothing"


@dataclass(kw_only=True)
class Check:
    """A check, and what a lesson goes on with: the learner's function where it is right, else the course's,
    under the learner's name.

    Attributes:
        mistakes: {what to think about: a wrong answer that people really give}; of a `Build` also the
            changes of its solution that make one, as `edit` takes them.
        praise: why a correct answer is right.
        last: the learner's last answer, for a check that runs again when the name stands for the course's.
    """

    mistakes: dict[str, Callable] = field(default_factory=dict)
    praise: str = ""
    last: object = field(default=NEVER, init=False, repr=False, compare=False)

    def check(self, answer: object, solution: Callable | None = None) -> Callable | None:
        """Show a verdict in words.  Given a `solution`, returns the learner's function where it is right,
        else the course's."""
        if solution is not None and not is_the_courses(answer, solution):
            self.last = answer
        elif solution is not None and self.last is not NEVER:
            answer = self.last
        verdict = self.verdict(answer, solution)
        passed = verdict.startswith("correct") and not is_the_courses(answer, solution)
        if passed:
            self.note()
        if solution is None:
            return tell(verdict)
        name = getattr(self, "name", solution.__name__.removesuffix("_solution"))
        tell(followed(verdict, f"your `{name}`" if passed else f"the course's `{name}`"))
        return answer if passed else solution

    def verdict(self, answer: object, solution: Callable | None = None) -> str:
        """The verdict on an answer, in words that begin with "correct", "not yet" or "not written yet"."""
        raise NotImplementedError

    def note(self) -> None:
        """Keep that the learner has passed."""
        for lesson, subject in SUBJECTS.items():
            module = sys.modules.get(f"{__package__}.{subject}")
            for name, value in list(vars(module).items()) if module else ():
                if value is self:
                    progress.record(getattr(self, "name", name), lesson)

    def right(self, how: str) -> str:
        return f"correct {how}: {self.praise}" if self.praise else f"correct {how}"


def is_the_courses(answer: object, solution: Callable | None) -> bool:
    """Whether an answer is the course's solution, or was before that was defined anew."""
    return answer is solution or str(getattr(answer, "__name__", "")).endswith("_solution")


def followed(verdict: str, used: str) -> str:
    """A verdict, and whose function the lesson goes on with."""
    if verdict.startswith("not written yet"):
        return f"not written yet: what follows uses {used}"
    end = "\n" if "\n" in verdict else " " if verdict.endswith((".", "?")) else ". "
    return f"{verdict}{end}What follows uses {used}."


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

    def __post_init__(self):
        try:
            self.cases = deepcopy(self.cases)
        except Exception as error:
            words = "give each of its arguments as data, such as a list for a generator"
            raise ValueError(f"a case of an exercise cannot be copied ({error}): {words}") from None

    def verdict(self, answer: object, solution: Callable | None = None) -> str:
        if ready := before_running(answer, list(self.cases[0]), None, "formula"):
            return ready
        with closing(call_with_each(answer, deepcopy(self.cases))) as outcomes:
            wrong = filter(None, map(self.wrong, self.cases, outcomes))
            verdict = next(wrong, self.right(f"for {counted(len(self.cases), 'case')}"))
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


@dataclass(kw_only=True)
class InRanks(Check):
    """A function to write that runs in ranks, with random arguments that are new at every check.

    Attributes:
        worlds: how many ranks to run, one job after the other.
        tolerance: how far a float may be off, relative to the largest of its tensor or list.
    """

    worlds: Sequence[int] = WORLDS
    tolerance: float = 1e-5

    def run(self, answer: Callable, solution: Callable | None, ranks: int, seed: int) -> str:
        """The verdict on an answer in a job of so many ranks; "" where it is right."""
        raise NotImplementedError


@dataclass
class RankExercise(InRanks):
    """A function whose arguments are each rank's own, and which returns the rank's part of the answer.

    Attributes:
        inputs: (ranks, random) -> a list with the keyword arguments of every rank; `random` is a
            `random.Random`.
        expected: (rank, given) -> what that rank should return, a number or a list, where `given` is what
            `inputs` made; mistakes are such functions too.
    """

    inputs: Callable
    expected: Callable

    def verdict(self, answer: object, solution: Callable | None = None) -> str:
        wanted = list(self.inputs(2, random.Random(0))[0])
        return before_running(answer, wanted, None, "code") or in_worlds(self, answer, solution)

    def run(self, answer: Callable, solution: Callable | None, ranks: int, seed: int) -> str:
        given = self.inputs(ranks, random.Random(seed))
        return self.wrong(run_patiently(call_with_own, ranks, {"function": answer, "given": given}), given)

    def wrong(self, reports: Sequence[object], given: list[dict]) -> str:
        """Words on what is wrong with what the ranks returned for what they were given, else ""."""
        for rank, got in enumerate(plain(list(reports))):
            expected = plain(self.expected(rank, deepcopy(given)))
            begin = f"not yet: rank {rank} of {len(reports)} returned"
            if got is None or got is ...:
                return f"{begin} nothing: did you forget `return`?"
            if kind(got) != kind(expected):
                asked = f"a plain {kind(expected)} is asked for (a tensor has .item() and .tolist())"
                return f"{begin} {described(got)}, where {asked}"
            if wrong := differing(got, expected, self.tolerance):
                results = {words: plain(each(rank, deepcopy(given))) for words, each in self.mistakes.items()}
                thought = first_thought(results, lambda result, got=got: same(got, result, self.tolerance))
                return f"{begin} {wrong}{thought}"
        return ""


@dataclass
class Build(InRanks):
    """The core of a technique, written by the learner and run in real ranks; the lesson goes on with the
    learner's if it is right.

    Attributes:
        name: what it is called in words and in the progress record.
        trial: (function, seed) -> {name: value}; runs in every rank, after `deepspeed.init_distributed()`, on
            the CPU.  Makes random inputs from the seed (torch's generator is seeded with it already, alike on
            all ranks), calls the function and returns what is to be compared: tensors, numbers, lists,
            strings, bools.  Messages of its own go through `in_ranks.own_group()`.
        patience: seconds after which ranks count as hung on a machine with nothing else to do.
        together: whether all ranks call the function equally often, so that each waits after a call until
            all have left it: then a rank that alone enters a collective is the one that is named.
    """

    name: str
    trial: Callable
    patience: float = PATIENCE
    together: bool = False

    def __post_init__(self):
        if len(set(self.worlds)) < 2:
            alone = "with one, a function that knows it by heart is right"
            raise ValueError(f"{self.name} needs at least two world sizes, not {self.worlds}: {alone}")

    def verdict(self, answer: object, solution: Callable | None = None) -> str:
        ready = before_running(answer, reading.names_of(solution), solution, "code", by_position=True)
        return ready or self.looked_at(answer, solution) or in_worlds(self, answer, solution)

    def looked_at(self, answer: Callable, solution: Callable) -> str:
        """The verdict on what can be seen without ranks; "" where they must tell."""
        return ""

    def run(self, answer: Callable, solution: Callable, ranks: int, seed: int) -> str:
        arguments = {"trial": self.trial, "function": answer, "solution": solution, "seed": seed}
        found = run_patiently(try_out, ranks, arguments | {"together": self.together}, self.patience)
        wrong = self.wrong(found)
        if not wrong:
            return ""
        mistakes = self.mistaken(solution)
        try:
            tried = self.tried(list(mistakes.values()), ranks, seed)
        except RankError:
            return f"not yet: {wrong}"
        return f"not yet: {wrong}{self.thought(mistakes, [got for _, got in found], tried)}"

    def mistaken(self, solution: Callable) -> dict[str, Callable]:
        """{what to think about: a wrong answer}, without those that a changed solution no longer gives."""
        mistakes, names = {}, vars(sys.modules[self.trial.__module__])
        for words, mistake in self.mistakes.items():
            with suppress(ValueError, OSError):
                mistakes[words] = mistake if callable(mistake) else edit(solution, *mistake, names=names)
        return mistakes

    def wrong(self, found: Sequence[tuple[Values, Values]]) -> str:
        """The first place where a rank's values are not the expected ones, in words, else ""; `found` holds
        (expected, got) of every rank."""
        for rank, (expected, got) in enumerate(found):
            for name, right in expected.items():
                if wrong := difference(got.get(name), right, self.tolerance, f"`{name}`"):
                    place, there, due = wrong
                    return f"rank {rank} of {len(found)}: {place} is {there} where {due} is right"
        return ""

    def tried(self, functions: list[Callable], ranks: int, seed: int) -> Sequence[list[Values | None]]:
        """What every rank's trial finds with each of several functions, in one job; None where one fails."""
        arguments = {"trial": self.trial, "mistakes": functions, "seed": seed}
        return run_patiently(try_mistakes, ranks, arguments, self.patience)

    def thought(
        self, mistakes: Iterable[str], got: Sequence[Values], tried: Sequence[Sequence[Values | None]]
    ) -> str:
        """What to think about for the first mistake whose values, `tried` by every rank, are those that the
        ranks got; else ""."""
        results = dict(zip(mistakes, zip(*tried)))
        return first_thought(
            results, lambda ranks: all(same(*pair, self.tolerance) for pair in zip(got, ranks))
        )


def in_worlds(exercise: InRanks, answer: Callable, solution: Callable | None) -> str:
    """The verdict of an exercise's jobs of several sizes: what is wrong in the first that is not right; else
    praise."""
    for ranks in exercise.worlds:
        try:
            wrong = exercise.run(answer, solution, ranks, random.SystemRandom().randrange(2**31))
        except (LaunchError, MemoryError, TypeError) as error:
            if is_a_fault_of_the_check(error):
                raise
            wrong = f"not yet: {without_checks(str(error))}"
        if wrong:
            return with_advice(wrong, answer) + reading_note(answer, solution)
    sizes = " and ".join(map(str, exercise.worlds))
    return exercise.right(f"in {sizes} ranks") + reading_note(answer, solution)


def with_advice(verdict: str, answer: object) -> str:
    """A verdict with a word on the commonest slip with collectives, where the function has it."""
    listed = " and ".join(f"`comm.{name}`" for name in reading.result_expected(answer))
    advice = "writes into the tensor that it is given, and returns nothing: do not use its result"
    return f"{verdict}\n{listed} {advice}" if listed else verdict


def is_a_fault_of_the_check(error: Exception) -> bool:
    if isinstance(error, TypeError):
        return "cannot be sent to the ranks" not in str(error)
    return "raised CourseFault" in str(error).partition("\n")[0]


def without_checks(message: str) -> str:
    """A rank's error without the lines of the check and of what measures for it, each with its lines of
    source, which are indented further."""
    places = r"^( +)helpers/(?:course/exercises|tools/measure)/.*\n?(?:\1 .*\n?)*"
    return re.sub(places, "", message, flags=re.M).rstrip("\n")
