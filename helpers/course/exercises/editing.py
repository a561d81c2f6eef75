"""Mistakes written as edits of a solution: what a learner changes or leaves out, and nothing else."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Sequence


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


def slips(solution: Callable, *entries: str | Sequence[str]) -> dict[str, Callable]:
    """{words: the edited solution} of words, their changes, words, their changes, ...:
    `slips(flat_solution, "that is a view: `.clone()` it", [".clone()", ""])`."""
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {words: edit(solution, *changes) for words, changes in pairs}


@functools.cache
def source_of(solution: Callable) -> str:
    """The text of a function or class; to find a class takes its whole module's syntax tree."""
    return textwrap.dedent(inspect.getsource(solution))
