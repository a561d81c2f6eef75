"""Mistakes written as edits of a solution: what a learner changes or leaves out, and nothing else."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
from collections.abc import Callable, Mapping

from helpers.course.exercises.reading import functions_of


def edit(solution: Callable, *changes: str, names: Mapping[str, object] | None = None) -> Callable:
    """A copy of a function or class with pieces of its text replaced: `edit(flat_solution, ".clone()", "")`.

    Args:
        changes: old text, new text, old text, new text, ...; each old text must stand in the function once.
        names: what the new text may call, beside what the solution may.

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
    namespace = {**(names or {}), **functions_of(solution)[0].__globals__}
    exec(compile(source, file, "exec"), namespace)
    return namespace[solution.__name__]


@functools.cache
def source_of(solution: Callable) -> str:
    """The text of a function, or of a class with a method, in a file or in a notebook's cell."""
    if not inspect.isclass(solution):
        return textwrap.dedent(inspect.getsource(solution))
    code = functions_of(solution)[0].__code__
    text = "".join(linecache.getlines(code.co_filename))
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    (node,) = (node for node in classes if node.name == solution.__name__)
    return textwrap.dedent(ast.get_source_segment(text, node, padded=True))
