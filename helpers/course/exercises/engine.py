"""What all checks share, which tell a learner what is wrong and why.

What is wrong with an answer is said in words and raises nothing; an error in the check itself is not caught.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from helpers.course.exercises import reading
from helpers.course.exercises.comparing import described
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
        mistakes: {what to think about: the changes of the solution that make a wrong answer which people
            really give, as `edit` takes them}.
        praise: why a correct answer is right.
        rungs: checks of earlier functions, which this one may call by their names.
        then: what is done with a right answer; it returns words for the learner.
        place: the lesson's number and the check's name there, under which it is kept that the learner has
            passed; None for a check of no lesson.
        last: the learner's last answer, for a check that runs again when the name stands for the course's.
        right: the learner's last right answer.
    """

    solution: Callable
    mistakes: dict[str, Sequence[str]] = field(default_factory=dict)
    praise: str = ""
    rungs: Sequence[Check] = ()
    then: Callable[[Callable], str] | None = None
    place: tuple[str, str] | None = None
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
        if passed and self.place:
            progress.record(*reversed(self.place))
        whose = "your" if passed else "the course's"
        tell(followed(verdict, ladder.note(), f"{whose} `{self.name}`"))
        if passed and self.then and (words := self.then(answer)):
            tell(words)
        return answer if passed else ladder.climbed(self.solution)

    def verdict(self, answer: object) -> str:
        """The verdict on an answer, in words that begin with "correct", "not yet" or "not written yet"."""
        raise NotImplementedError

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
