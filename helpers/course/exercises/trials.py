"""What exercises share: how they are written down, random numbers of a rank, and a word where a function
returns something else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from helpers.course.exercises.builds import Build
from helpers.course.exercises.comparing import article
from helpers.course.exercises.editing import edit
from helpers.course.exercises.engine import Exercise
from helpers.course.exercises.reading import names_of

if TYPE_CHECKING:
    from torch import Tensor

Change = Callable | tuple[str, ...]  # a mistaken function, or the changes of a solution that make one
Verdicts = str | dict[Change, str]  # a table as `verdicts_in` reads it, or {mistake: what to think about}


def seed_of_rank(seed: int) -> int:
    """A seed that differs from rank to rank."""
    import torch.distributed as dist

    return 1000 * (seed % 10**6) + dist.get_rank()


def random_of_rank(seed: int) -> random.Random:
    """Random numbers that differ from rank to rank, and are the same for the same seed."""
    return random.Random(seed_of_rank(seed))


def randn_of_rank(seed: int, *shape: int) -> Tensor:
    """The same, as a tensor."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed_of_rank(seed)))


def summed(tensor: Tensor) -> Tensor:
    """A new tensor: the sum over the ranks."""
    import torch.distributed as dist

    total = tensor.contiguous().clone()
    dist.all_reduce(total)
    return total


def returned(answer: object, kind: type | tuple[type, ...], due: str) -> object:
    """What a learner's function has returned; a TypeError says what is due where it is of another kind."""
    if not isinstance(answer, kind):
        raise TypeError(f"{due}, not {'nothing' if answer is None else article(type(answer).__name__)}")
    return answer


def build(
    solution: Callable,
    trial: Callable,
    verdicts: Verdicts = "",
    kind: type[Build] = Build,
    **options: object,
) -> Build:
    return kind(solution, trial, **options_in(verdicts, **options))


def formula(
    solution: Callable,
    cases: Sequence[tuple],
    verdicts: Verdicts = "",
    kind: type[Exercise] = Exercise,
    **options: object,
) -> Exercise:
    """The exercise of a formula, which may have another `reference`.

    Args:
        cases: the arguments of each call, in order.
    """
    names = names_of(solution)
    options = {"reference": solution, "solution": solution} | options_in(verdicts, **options)
    cases = tuple(dict(zip(names, case, strict=True)) for case in cases)
    for words, change in options["mistakes"].items():
        options["mistakes"][words] = change if callable(change) else edit(solution, *change)
    return kind(cases=cases, **options)


def options_in(
    verdicts: Verdicts, mistakes: Mapping[Change, str] = {}, **options: object
) -> dict[str, object]:
    """A check's options; `praise` and `mistakes`, {what to think about: mistake}, are out of the verdicts."""
    praise, listed = verdicts_in(verdicts) if isinstance(verdicts, str) else ("", verdicts)
    mistakes = {words: change for change, words in (listed | mistakes).items()}
    return {"praise": praise, "mistakes": mistakes} | options


def verdicts_in(table: str) -> tuple[str, dict[Change, str]]:
    """(praise, {changes of a solution: what to think about}) out of a text.

    correct: a mean is the same on every rank

    sums are divided by the number of ranks
        return total -> return total / ranks

    What is indented further continues the new text in another line.
    """
    praise, _, table = table.strip("\n").rpartition("\n\n")
    mistakes = {}
    for words, changes in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", f"{table}\n", flags=re.M):
        pairs = [pair.rstrip("\n").partition(" ->") for pair in re.split(r"^    (?=\S)", changes, flags=re.M)]
        texts = [(old, new[1:].replace("\n    ", "\n")) for old, _, new in pairs[1:]]
        mistakes[tuple(text for pair in texts for text in pair)] = words.strip().replace("\n", " ")
    return praise.removeprefix("correct: ").replace("\n", " "), mistakes


def complete(answer: object, names: tuple[str, ...], what: str = "") -> dict[str, object]:
    """A dict that a learner's function has returned; a KeyError says which of the names are missing."""
    returned(answer, dict, f"{what}return a dict with {', '.join(names)}")
    if missing := [name for name in names if name not in answer]:
        raise KeyError(f"{what}{', '.join(missing)} is missing")
    return answer
