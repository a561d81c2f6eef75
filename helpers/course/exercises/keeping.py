"""Files of the learner's own in `work/`, which grow by functions that passed their checks.

A function is kept under its name.  What the learner has edited in a file is never replaced.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from types import FunctionType, ModuleType

from helpers import paths
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.ladders import names_reached
from helpers.course.exercises.reading import names_read

MARK = "# as its check passed it: "  # and a digest of the text below, so that an edit is seen


def keep(function: FunctionType, name: str, new: str) -> str:
    """Write a function, and those of the notebook that it calls, into a file; returns a sentence.

    Nothing is written outside of `work/`.  A file that Python cannot read stays as it is.

    Args:
        name: the file's.
        new: the text of a new file; functions come before an `if` at its end.
    """
    file = paths.WORK / name
    if Path.cwd().resolve() != paths.WORK.resolve():
        return ""
    if missing := missing_in_a_file(function):
        return f"It is not kept in {name}, since it reads {missing} of the notebook: make that an argument."
    try:
        text = file.read_text() if file.exists() else new
        edited = []
        for line in imports_of(function):
            text = text if line in text.splitlines() else with_import(text, line)
        for one in [function, *called(function)]:
            text, was_edited = with_function(text, one)
            edited += [f"`{one.__name__}`"] * was_edited
        paths.replace(file, text)
    except SyntaxError as error:
        return f"{name} has an error in line {error.lineno}, and stays as it is: mend it, and check again."
    except OSError as error:
        return f"{name} could not be written: {error.strerror}."
    mine = f"; your own {' and '.join(edited)} there stayed as you wrote it" if edited else ""
    return f"`{function.__name__}` is in {name}{mine}."


def called(function: FunctionType) -> list[FunctionType]:
    """The notebook's functions that a function calls, directly or not, by name."""
    values = function.__globals__
    found = (values.get(name) for name in sorted(names_reached(function) - {function.__name__}))
    return [one for one in found if isinstance(one, FunctionType) and one.__globals__ is values]


def imports_of(function: FunctionType) -> list[str]:
    """Lines that import the modules which a function, and what it calls, reads."""
    values = function.__globals__
    names = {name for name in names_reached(function) if isinstance(values.get(name), ModuleType)}
    modules = {name: values[name].__name__ for name in sorted(names)}
    return [f"import {path}" + (f" as {name}" if name != path else "") for name, path in modules.items()]


def missing_in_a_file(function: FunctionType) -> str:
    """The names that a function, or one that it calls, reads and that a file would not have."""
    values = function.__globals__
    names = set().union(*map(names_read, [function, *called(function)]))
    kept = {name for name in names if isinstance(values.get(name), (ModuleType, FunctionType))}
    return ", ".join(f"`{name}`" for name in sorted(names - kept))


def with_import(text: str, line: str) -> str:
    """A module's text with one more import, behind its docstring."""
    body = ast.parse(text).body
    at = body[0].end_lineno if body and isinstance(body[0], ast.Expr) else 0
    lines = text.splitlines()
    return "\n".join([*lines[:at], line, *lines[at:]]) + "\n"


def with_function(text: str, function: FunctionType) -> tuple[str, bool]:
    """A module's text with a function in it, and whether one that was edited there stays in its place."""
    new, lines = source_of(function).rstrip("\n"), text.splitlines()
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") == function.__name__]
    if not nodes:
        end = next((node.lineno - 1 for node in ast.parse(text).body if isinstance(node, ast.If)), len(lines))
        head, foot = ("\n".join(part).strip("\n") for part in (lines[:end], lines[end:]))
        return f"{head}\n\n\n{MARK}{digest(new)}\n{new}\n" + (foot and f"\n\n{foot}\n"), False
    begin = min([nodes[-1].lineno, *(one.lineno for one in nodes[-1].decorator_list)]) - 1
    old = "\n".join(lines[begin : nodes[-1].end_lineno])
    if begin == 0 or lines[begin - 1] != MARK + digest(old):
        return text, old != new
    lines[begin - 1 : nodes[-1].end_lineno] = [MARK + digest(new), *new.splitlines()]
    return "\n".join(lines) + "\n", False


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
