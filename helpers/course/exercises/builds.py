"""`Build`: the check of the core of a lesson, a function that runs in real ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from helpers.course.exercises import reading
from helpers.course.exercises.comparing import difference
from helpers.course.exercises.editing import edit
from helpers.course.exercises.engine import Check, before_running, first_thought, reading_note
from helpers.course.exercises.in_ranks import (
    PATIENCE,
    CourseFault,
    StillComputing,
    Task,
    judge,
    of_the_check,
    run_patiently,
)
from helpers.tools.launcher.arguments import UnsendableError
from helpers.tools.launcher.failures import LaunchError, RankError

if TYPE_CHECKING:
    from helpers.course.exercises.in_ranks import Judged, Trial, Values
    from helpers.tools.launcher.waits import Frame

WORLDS = (2, 4)
OURS = tuple(f"{Path(__file__).parents[2] / folder}/" for folder in ("course/exercises", "tools/measure"))


@dataclass(kw_only=True)
class InRanks(Check):
    """A function to write that runs in ranks, with random arguments that are new at every check.

    Attributes:
        worlds: how many ranks to run, one job after the other.
        tolerance: how far a float may be off, relative to the largest of its tensor or list.
    """

    worlds: Sequence[int] = WORLDS
    tolerance: float = 1e-5

    def run(self, answer: Callable, ranks: int, seed: int) -> str:
        """The verdict on an answer in a job of so many ranks; "" where it is right."""
        raise NotImplementedError

    def in_worlds(self, answer: Callable) -> str:
        """The verdict of jobs of several sizes: what is wrong in the first that is not right; else praise."""
        for ranks in self.worlds:
            try:
                wrong = self.run(answer, ranks, random.SystemRandom().randrange(2**31))
            except (LaunchError, MemoryError, TypeError) as error:
                if is_a_fault_of_the_check(error):
                    raise
                wrong = f"not yet: {without_checks(error)}"
            if wrong:
                return with_advice(wrong, answer) + reading_note(answer, self.solution)
        sizes = " and ".join(map(str, self.worlds))
        return self.correct(f"in {sizes} ranks") + reading_note(answer, self.solution)


class Found(NamedTuple):
    """What a trial found in each rank, with whose function."""

    by_rank: list[Values]
    whose: str

    @property
    def panels(self) -> dict[str, list]:
        """{name: the value of each rank}, as `plots.tapes` takes what ranks hold at several moments."""
        return {name: [values[name] for values in self.by_rank] for name in self.by_rank[0]}


@dataclass
class Build(InRanks):
    """The core of a technique, written by the learner and run in real ranks; the lesson goes on with the
    learner's if it is right.

    Attributes:
        trial: (see, function); runs in every rank, after `deepspeed.init_distributed()`, on the CPU.  Makes
            random inputs from `see.seed` (torch's generator is seeded with it already, alike on all ranks),
            calls the function, and notes with `see(name, value)` what is to be compared.  Messages of its own
            go through `meeting.own_group()`.
        example: another such trial, with inputs that make a good picture; its values are not judged.
        hints: {a part of an error's message that says little: what to think about}.
        names: what the changes that make mistakes may call, by name, beside what the solution may.
        patience: seconds after which ranks count as hung on a machine with nothing else to do.
        together: whether all ranks call the function equally often, so that each waits after a call until
            all have left it: then a rank that alone enters a collective is the one that is named.
    """

    DUE = "is right"  # what a verdict says of the expected value

    solution: Callable
    trial: Trial
    example: Trial | None = None
    patience: float = PATIENCE
    together: bool = False
    hints: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, object] = field(default_factory=dict, repr=False)
    seen: dict[int, list[Values]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self):
        if len(set(self.worlds)) < 2:
            alone = "with one, a function that knows it by heart is right"
            raise ValueError(f"{self.name} needs at least two world sizes, not {self.worlds}: {alone}")

    def verdict(self, answer: object) -> str:
        self.seen.clear()
        wanted = reading.names_of(self.solution)
        ready = before_running(answer, wanted, self.solution, "code", by_position=True)
        return ready or self.looked_at(answer) or self.in_worlds(answer)

    def looked_at(self, answer: Callable) -> str:
        """The verdict on what can be seen without ranks; "" where they must tell."""
        return ""

    def run(self, answer: Callable, ranks: int, seed: int) -> str:
        found = self.judged(answer, self.always(), ranks, seed)
        if wrong := self.wrong(found):
            return f"not yet: {wrong}{self.thought(answer, found, ranks, seed)}"
        self.seen[ranks] = [rank.example for rank in found]
        return ""

    def judged(self, answer: Callable, others: Iterable[Callable], ranks: int, seed: int) -> Sequence[Judged]:
        """What every rank found, in one job, also with other functions than the answer."""
        return run_patiently(judge, ranks, self.task(answer, others, seed))

    def task(self, answer: Callable, others: Iterable[Callable], seed: int) -> Task:
        options = ("trial", "solution", "together", "tolerance", "example", "patience", "hints")
        given = {name: getattr(self, name) for name in options}
        return Task(function=answer, seed=seed, others=tuple(others), **given)

    def always(self) -> list[Callable]:
        """Functions that are run beside every answer, a right one too."""
        return []

    def mistaken(self) -> dict[str, Callable]:
        """{what to think about: a wrong answer}."""
        changes = self.mistakes.items()
        return {words: edit(self.solution, *change, names=self.names) for words, change in changes}

    def wrong(self, found: Sequence[Judged]) -> str:
        """The first place where a rank's values are not the expected ones, in words, else ""."""
        for rank, (expected, got, *_) in enumerate(found):
            for name, right in expected.items():
                if wrong := difference(got.get(name), right, self.tolerance, f"`{name}`"):
                    place, there, due = wrong
                    return f"rank {rank} of {len(found)}: {place} is {there} where {due} {self.DUE}"
        return ""

    def thought(self, answer: Callable, found: Sequence[Judged], ranks: int, seed: int) -> str:
        """What to think about for the first mistake whose values are those that every rank got; else "".  The
        mistakes run now, on the seed on which the answer failed."""
        mistakes = self.mistaken()
        try:
            found = self.judged(answer, mistakes.values(), ranks, seed) if mistakes else found
        except RankError as error:
            if of_the_check(error):  # a mistake hangs
                return ""
            raise
        return matching(mistakes, found)

    def found(self, ranks: int | None = None) -> Found:
        """What `example`, else the trial, finds in each rank with the function that the lesson goes on with.

        The learner's was seen in the check.  The course's runs now.
        """
        ranks = ranks or max(self.worlds)
        if ranks in self.seen:
            return Found(self.seen[ranks], f"your `{self.name}`")
        reports = self.judged(self.solution, [], ranks, seed=0)
        return Found([rank.example for rank in reports], f"the course's `{self.name}`")


def matching(mistakes: Iterable[str], found: Sequence[Judged]) -> str:
    """The words of the first mistake from whose values no rank's are apart, behind a semicolon; else ""."""
    results = dict(zip(mistakes, zip(*(rank.apart for rank in found))))
    return first_thought(results, lambda apart: all(names == [] for names in apart))


def with_advice(verdict: str, answer: object) -> str:
    """A verdict with a word on the commonest slip with collectives, where the function has it."""
    listed = " and ".join(f"`comm.{name}`" for name in reading.result_expected(answer))
    advice = "writes into the tensor that it is given, and returns nothing: do not use its result"
    return f"{verdict}\n{listed} {advice}" if listed else verdict


def is_a_fault_of_the_check(error: Exception) -> bool:
    if isinstance(error, RankError):
        return error.raised == CourseFault.__name__ or of_the_check(error)
    return isinstance(error, TypeError) and not isinstance(error, UnsendableError)


def without_checks(error: Exception) -> str:
    """An error's words without the places of the check and of what measures for it."""
    if not isinstance(error, RankError):
        return str(error)
    words = error.without(is_ours)
    is_late = error.raised == StillComputing.__name__
    return words.replace(f"raised {error.raised}: ", "", 1) if is_late else words


def is_ours(frame: Frame) -> bool:
    """Whether a place is the check's own."""
    return frame[0].startswith(OURS)
