"""`work/my_planner.py`: the learner's own planner, which grows by a function with each check that adds one.

A function is kept under its name.  What the learner has edited in the file is never replaced.
"""

from __future__ import annotations

import ast
import hashlib
import runpy
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from helpers import paths
from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.ladders import names_reached
from helpers.course.exercises.reading import names_read

if TYPE_CHECKING:
    from helpers.course.recording.recorded import Run

NAME = "my_planner.py"
HEAD = '"""My planner: what a GPU holds under a plan, in bytes.  Every function takes a `theory.Plan`."""\n'
MARK = "# as its check passed it: "  # and a digest of the text below, so that an edit is seen
TERMS = {  # what a recorded run of the experiment `zero` says of each, for rank 0
    "states": lambda run: sum(run.states(0).values()) - run.states(0)["buffers"],
    "peak": lambda run: max(moment["peak"] for moment in run.reports[0]["moments"].values()),
}


def keep(function: FunctionType) -> str:
    """Write a function, and those of the notebook that it calls, into the planner; returns a sentence.

    Nothing is written outside of `work/`.  A file that Python cannot read stays as it is.
    """
    file = paths.WORK / NAME
    if Path.cwd().resolve() != paths.WORK.resolve():
        return ""
    if missing := missing_in_a_file(function):
        return f"It is not kept in {NAME}, since it reads {missing} of the notebook: make that an argument."
    try:
        text = file.read_text() if file.exists() else HEAD
        edited = []
        for line in imports_of(function):
            text = text if line in text.splitlines() else with_import(text, line)
        for one in [function, *called(function)]:
            text, was_edited = with_function(text, one)
            edited += [f"`{one.__name__}`"] * was_edited
        paths.replace(file, text)
    except SyntaxError as error:
        return f"{NAME} has an error in line {error.lineno}, and stays as it is: mend it, and check again."
    except OSError as error:
        return f"{NAME} could not be written: {error.strerror}."
    mine = f"; your own {' and '.join(edited)} there stayed as you wrote it" if edited else ""
    return f"`{function.__name__}` is in {NAME}{mine}."


def called(function: FunctionType) -> list[FunctionType]:
    """The notebook's functions that a function calls, directly or not, by name."""
    values = function.__globals__
    found = (values.get(name) for name in sorted(names_reached(function) - {function.__name__}))
    return [one for one in found if isinstance(one, FunctionType) and one.__globals__ is values]


def imports_of(function: FunctionType) -> list[str]:
    """Lines that import the modules which a function, and what it calls, reads."""
    values = function.__globals__
    names = {name for name in names_reached(function) if isinstance(values.get(name), ModuleType)}
    return [f"import {values[name].__name__} as {name}" for name in sorted(names)]


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
        return f"{text.rstrip()}\n\n\n{MARK}{digest(new)}\n{new}\n", False
    begin = min([nodes[-1].lineno, *(one.lineno for one in nodes[-1].decorator_list)]) - 1
    old = "\n".join(lines[begin : nodes[-1].end_lineno])
    if begin == 0 or lines[begin - 1] != MARK + digest(old):
        return text, old != new
    lines[begin - 1 : nodes[-1].end_lineno] = [MARK + digest(new), *new.splitlines()]
    return "\n".join(lines) + "\n", False


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def score(term: str, function: Callable | None = None) -> str:
    """How far a term is off in recorded trainings, in a sentence.

    Args:
        term: of `TERMS`.
        function: takes a `theory.Plan`; by default the one in the planner.
    """
    from helpers.course.recording import recorded

    file = str(paths.WORK / NAME)
    function = function or (lambda plan: runpy.run_path(file)[term](plan))
    off, worst = [], ""
    runs = list(measured())
    with closing(call_with_each(function, [{"plan": recorded.plan(run)} for run in runs])) as outcomes:
        for run, (said, failure) in zip(runs, outcomes):
            if failure or not isinstance(said, (int, float)):
                return f"`{term}` {failure or 'returned no number'} for {described(run)}."
            right = TERMS[term](run)
            off.append(abs(said - right) / right)
            if off[-1] == max(off):
                worst = f"{described(run)}: {said / 1e9:.1f} GB, and {right / 1e9:.1f} GB were recorded"
    middle, most = statistics.median(off), max(off)
    how_far = f"{middle:.1%} off in the middle, {most:.1%} at most ({worst})"
    return f"`{term}` in {len(off)} recorded trainings: {how_far}."


def measured() -> Iterator[Run]:
    """Recorded trainings of which a GPU's own bytes are known."""
    from helpers.course.recording import recorded

    for run in recorded.trainings():
        if run.experiment == "zero" and run.on_gpu and run.reports and not run.shared:
            yield run


def described(run: Run) -> str:
    return f"{run.parameters / 1e9:.1f} billion parameters, stage {run.arguments['stage']}, {run.ranks} GPUs"
