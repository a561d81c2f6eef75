"""Checks of what must fail: a function that must hang, and the ranks that a learner names as guilty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from helpers.course.exercises.builds import InRanks, is_a_fault_of_the_check, without_checks
from helpers.course.exercises.comparing import described, plain, same
from helpers.course.exercises.engine import Check, before_running
from helpers.course.exercises.reading import names_of
from helpers.tools.launcher.failures import LaunchError, RankError
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


@dataclass
class Guilty(Check):
    """The rank to blame for each of several jobs that fail.  The proof is the cure: the rank that is named is
    mended, and the job runs again.

    Attributes:
        jobs: {name: (mended) -> None}; each runs in every rank, `mended` the rank that does it right.
        ranks: of each job.
    """

    jobs: Mapping[str, Callable]
    ranks: int = 4

    def verdict(self, answer: object) -> str:
        if ready := before_running(answer, [], self.solution, "numbers"):
            return ready
        named = answer()
        if not isinstance(named, dict) or set(named) != set(self.jobs):
            return f"not yet: return a dict with {', '.join(self.jobs)}, not {described(named)}"
        verdicts = (self.cured(name, named[name]) for name in self.jobs)
        return next(filter(None, verdicts), self.correct(f"in {len(self.jobs)} jobs"))

    def cured(self, name: str, rank: object) -> str:
        """The verdict on the rank that is named for a job; "" where the job ends once that one is mended."""
        if type(rank) is not int or not 0 <= rank < self.ranks:
            return f"not yet: for `{name}` name a rank, 0 to {self.ranks - 1}, not {described(rank)}"
        for patience in PATIENCE:
            try:
                launch(self.jobs[name], self.ranks, {"mended": rank}, device="cpu", timeout=patience)
            except LaunchError as error:
                if is_a_fault_of_the_check(error):
                    raise
                said = str(error).partition("\n")[0]
                if getattr(error, "kind", "") != "never began":
                    break
            else:
                return ""
        return f"not yet: with rank {rank} mended `{name}` still fails: {said}"
