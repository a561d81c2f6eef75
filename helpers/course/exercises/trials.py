"""What trials share: random numbers of a rank, and a word where a function returns something else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from helpers.course.exercises.comparing import article
from helpers.course.exercises.editing import edits
from helpers.course.exercises.engine import Build, Exercise

Change = Callable | tuple[str, ...]  # a mistaken function, or the changes of a solution that make one


def random_of_rank(seed: int) -> random.Random:
    """Random numbers that differ from rank to rank, and are the same for the same seed."""
    import deepspeed.comm as comm

    return random.Random(1000 * seed + comm.get_rank())


def returned(answer: object, kind: type | tuple[type, ...], due: str) -> object:
    """What a learner's function has returned; a TypeError says what is due where it is of another kind."""
    if not isinstance(answer, kind):
        raise TypeError(f"{due}, not {'nothing' if answer is None else article(type(answer).__name__)}")
    return answer


def build(
    solution: Callable, trial: Callable, mistakes: dict[Change, str], praise: str, **options: object
) -> Build:
    """The build of a solution, under its name, with mistakes as `edits` takes them."""
    name = solution.__name__.removesuffix("_solution")
    return Build(name, trial, mistakes=edits(solution, mistakes), praise=praise, **options)


def formula(
    solution: Callable, cases: tuple[dict, ...], mistakes: dict[Change, str], praise: str, **options: object
) -> Exercise:
    """The exercise of a formula, with mistakes as `edits` takes them; it may have another `reference`."""
    options = {"reference": solution} | options
    return Exercise(cases=cases, mistakes=edits(solution, mistakes), praise=praise, **options)


def mistakes_in(table: str) -> dict[Change, str]:
    """Mistakes as `edits` takes them, out of a text: what to think about, and indented below it the changes.

    sums are divided by the number of ranks
        return total -> return total / ranks
    """
    mistakes = {}
    for words, changes in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", table, flags=re.M):
        pairs = [line.strip().split(" -> ") for line in changes.splitlines()]
        mistakes[tuple(text for pair in pairs for text in pair)] = words.strip().replace("\n", " ")
    return mistakes


def complete(answer: object, names: tuple[str, ...], what: str = "") -> dict[str, object]:
    """A dict that a learner's function has returned; a KeyError says which of the names are missing."""
    returned(answer, dict, f"{what}return a dict with {', '.join(names)}")
    if missing := [name for name in names if name not in answer]:
        raise KeyError(f"{what}{', '.join(missing)} is missing")
    return answer
