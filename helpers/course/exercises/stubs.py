"""What a learner writes in a lesson, and the checks of it: `Stubs("zero_1")` knows the course's answers, from
the lesson's folded cells, and `mistakes/zero_1.toml`.

That file is data: for each stub why a right answer is right, `wrong`, {what to think about: the changes of
the course's answer that make a mistake}, and `right`, {what is different: a right answer of another build},
which the tests try.
"""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.course.exercises import SUBJECTS
from helpers.course.exercises.builds import Build
from helpers.course.exercises.faults import Fault, shared_with
from helpers.course.exercises.formulas import Exercise
from helpers.course.exercises.reading import names_of

if TYPE_CHECKING:
    from helpers.course.exercises.engine import Check
    from helpers.course.exercises.in_ranks import Trial
    from helpers.course.exercises.seeing import See

MISTAKES = Path(__file__).with_name("mistakes")
NUMBERS = {subject: number for number, subject in SUBJECTS.items()}


class Stubs:
    """The stubs of a lesson.

    Args:
        subject: one of `SUBJECTS`.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.solutions = importlib.import_module(f"helpers.course.exercises.solutions.{subject}")
        self.told = tomllib.loads((MISTAKES / f"{subject}.toml").read_text(encoding="utf-8"))

    def check(self, kind: type[Check], name: str, **options: object) -> Check:
        """A check of some kind; `name` is its name in the lesson's module and in the file of mistakes."""
        told = self.told[name]
        options.setdefault("solution", getattr(self.solutions, told.get("solution", f"{name}_solution")))
        words = {"praise": told.get("praise", ""), "mistakes": told.get("wrong", {})}
        return kind(**words, place=(NUMBERS[self.subject], name), **options)

    def formula(
        self, name: str, cases: Sequence[tuple], kind: type[Exercise] = Exercise, **options: object
    ) -> Exercise:
        """The check of a formula.

        Args:
            cases: the arguments of each call, in order.
            options: `reference`, where that is another function than the solution.
        """
        check = {"reference": getattr(self.solutions, self.told[name].get("solution", f"{name}_solution"))}
        names = names_of(check["reference"])
        cases = tuple(dict(zip(names, case, strict=True)) for case in cases)
        return self.check(kind, name, cases=cases, **(check | options))

    def in_ranks(self, **options: object) -> Callable[[Trial], Build]:
        """Makes a trial the check of the stub that has its name; options as `build`'s."""

        def decorate(trial: Trial) -> Build:
            trial.__qualname__ = f"{trial.__name__}.trial"  # where ranks find it: an attribute of the check
            return self.build(trial.__name__, trial, **options)

        return decorate

    def build(self, name: str, trial: Trial, kind: type[Build] = Build, **options: object) -> Build:
        """The check of a function that runs in ranks.

        Args:
            options: of a `Build`: `worlds`, `together`, `example` and others.
        """
        names = vars(sys.modules[getattr(trial, "trial", trial).__module__])
        return self.check(kind, name, trial=trial, hints=self.told.get("hints", {}), names=names, **options)

    def fault(self, name: str, of: Build, **options: object) -> Fault:
        """The check of a bug that a learner plants in a function that he has built, and may call by its name.

        Args:
            of: the check of the right function.
            options: `worlds`, where it cannot be seen at the right function's; `rungs`, where that one is not
                called.
        """
        return self.check(Fault, name, **(shared_with(of) | options))


@dataclass(frozen=True)
class Returning:
    """A trial (function, seed) that returns {name: value} instead of noting it."""

    trial: Callable[[Callable, int], Mapping[str, object]]

    def __call__(self, see: See, function: Callable) -> None:
        for name, value in self.trial(function, see.seed).items():
            see(name, value)
