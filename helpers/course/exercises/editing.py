"""Mistakes written as edits of a solution: what a learner changes or leaves out, and nothing else."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable


def edit(solution: Callable, *changes: str) -> Callable:
    """A copy of a function or class with pieces of its text replaced: `edit(flat_solution, ".clone()", "")`.

    Args:
        changes: old text, new text, old text, new text, ...; each old text must stand in the function once.

    Raises:
        ValueError: an old text stands there never, or more than once.
    """
    source = source_of(solution)
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if source.count(old) != 1:
            raise ValueError(f"{old!r} stands {source.count(old)} times in {solution.__name__}, not once")
        source = source.replace(old, new)
    file = f"<{solution.__name__}, edited: {changes}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace = dict(vars(sys.modules[solution.__module__]))
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


@functools.cache
def source_of(solution: Callable) -> str:
    """The text of a function or class; to find a class takes its whole module's syntax tree."""
    return textwrap.dedent(inspect.getsource(solution))
