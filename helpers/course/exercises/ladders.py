"""A ladder: functions that a learner writes one after the other, where a later one calls the earlier.

Under the name of an earlier function a later one finds the learner's if it has passed its check, else the
course's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING

from helpers.course.exercises.reading import functions_of, names_read

if TYPE_CHECKING:
    from helpers.course.exercises.engine import Check


def is_the_courses(answer: object, solution: Callable | None) -> bool:
    """Whether an answer is the course's solution, or a copy of it that calls the learner's functions."""
    return answer is solution or str(getattr(answer, "__name__", "")).endswith("_solution")


def is_the_same(one: object, other: object) -> bool:
    """Whether two functions are one, or one text that was run twice."""
    return one is other or getattr(one, "__code__", one) == getattr(other, "__code__", None)


def rebound(function: FunctionType, names: Mapping[str, object]) -> FunctionType:
    """A copy of a function that finds other things under some of its global names."""
    code, values = function.__code__, function.__globals__ | names
    copy = FunctionType(code, values, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__doc__, copy.__module__ = (
        function.__kwdefaults__,
        function.__doc__,
        function.__module__,
    )
    return copy


class Ladder:
    """The rungs below a learner's answer.

    Where the answer calls a rung whose name stands for no right function, the name is given the course's: in
    the check, and in the notebook, since what follows calls it too.  The check of that rung still judges what
    stood there.
    """

    def __init__(self, rungs: Sequence[Check], answer: object):
        functions = functions_of(answer) if callable(answer) and not is_the_courses(answer, None) else []
        self.names = functions[0].__globals__ if rungs and functions else {}
        self.rungs, self.of_the_course = rungs, []
        called = names_reached(answer) if self.names else set()
        for rung in (rung for rung in rungs if rung.name in called):
            standing = self.names.get(rung.name)
            if rung.right is not None and is_the_same(standing, rung.right):
                continue
            self.of_the_course.append(rung)
            if not is_the_courses(standing, rung.solution):
                rung.last = self.names.get(rung.name, rung.last)
                self.names[rung.name] = Ladder(rung.rungs, answer).climbed(rung.solution)

    def climbed(self, solution: Callable) -> Callable:
        """The course's function; the rungs that it calls are the learner's where they are right."""
        right = {rung.name: rung.right for rung in self.rungs if rung.right is not None}
        return rebound(solution, right) if right and isinstance(solution, FunctionType) else solution

    def note(self) -> str:
        """A sentence on the rungs that the answer calls and that the learner has not got right; else ""."""
        names = " and ".join(f"`{rung.name}`" for rung in self.of_the_course)
        which = "yours has not passed its check" if len(self.of_the_course) == 1 else "yours have not passed"
        return names and f"It called the course's {names}, since {which}."


def names_reached(answer: object) -> set[str]:
    """Names that an answer reads, and that the notebook's functions read which it calls."""
    values, names, ahead = functions_of(answer)[0].__globals__, set(), [answer]
    while ahead:
        new = names_read(ahead.pop()) - names
        names |= new
        ahead += [value for value in map(values.get, sorted(new)) if is_of(value, values)]
    return names


def is_of(value: object, values: dict[str, object]) -> bool:
    return isinstance(value, FunctionType) and value.__globals__ is values
