"""Mistakes written as edits of a solution: what a learner changes or leaves out, and nothing else."""

from __future__ import annotations

import inspect
import linecache
import textwrap
from collections.abc import Callable


def edit(solution: Callable, *changes: str) -> Callable:
    """A copy of a function with pieces of its text replaced: `edit(flatten_solution, ".detach()", "")`.

    Args:
        changes: old text, new text, old text, new text, ...; each old text must stand in the function once.

    Raises:
        ValueError: an old text stands there never, or more than once.
    """
    source = textwrap.dedent(inspect.getsource(solution))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {solution.__name__}, not once")
        source = source.replace(old, new)
    file = f"<{solution.__name__}, edited: {changes}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(inspect.getmodule(solution).__dict__)
    exec(compile(source, file, "exec"), namespace)
    return namespace[solution.__name__]


def edits(solution: Callable, mistakes: dict[Callable | tuple[str, ...], str]) -> dict[str, Callable]:
    """{what to think about: a mistaken function}, as a check takes them.

    Args:
        mistakes: {the changes that `edit` makes, or a function: what to think about}.
    """
    return {
        words: mistake if callable(mistake) else edit(solution, *mistake)
        for mistake, words in mistakes.items()
    }
