"""The check of what must fail: a function that must hang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from helpers.course.exercises.builds import InRanks, without_checks
from helpers.course.exercises.comparing import described, plain, same
from helpers.course.exercises.engine import before_running
from helpers.course.exercises.reading import names_of
from helpers.tools.launcher.failures import RankError
from helpers.tools.launcher.jobs import launch

PATIENCE = (2.0, 15.0)  # seconds until a hang counts, on a machine with nothing else to do, and on another


@dataclass
class Hang(InRanks):
    """A function that must leave rank 0 waiting in a collective that no other rank enters.  One rank alone
    waits for nobody, and gets what the solution returns.

    Attributes:
        call: (function) -> its result; runs in every rank and calls the function there.
    """

    solution: Callable
    call: Callable

    def verdict(self, answer: object) -> str:
        ready = before_running(answer, names_of(self.solution), None, "code")
        return ready or self.alone(answer) or self.in_worlds(answer)

    def alone(self, answer: Callable) -> str:
        """The verdict on what one rank gets; "" where it is right."""
        try:
            got, due = (
                launch(self.call, 1, {"function": function}, device="cpu", timeout=PATIENCE[-1])[0]
                for function in (answer, self.solution)
            )
        except RankError as error:
            return f"not yet: with one rank this fails: {without_checks(error)}"
        if same(plain(got), plain(due)):
            return ""
        begin = "not yet: a rank alone, which has nobody to wait for, should get what the function computes"
        return f"{begin}: {due:g}. Yours returned {described(got)}"

    def run(self, answer: Callable, ranks: int, seed: int) -> str:
        for patience in PATIENCE:
            try:
                launch(self.call, ranks, {"function": answer}, device="cpu", timeout=patience)
            except RankError as error:
                failure = error
            else:
                return f"not yet: all {ranks} ranks returned, and nobody waits"
            said = without_checks(failure)
            if failure.kind == "deserted" and failure.ranks == (0,):
                return ""
            if not failure.hung and failure.kind != "never began":
                return f"not yet: this fails, and does not hang: {said}"
        return f"not yet: rank 0 alone should wait, in a collective: {said}"
