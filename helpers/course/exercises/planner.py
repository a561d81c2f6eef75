"""`work/my_planner.py`: the learner's own planner, which grows by a function with each check that adds one.

A function is kept under its name.  What the learner has edited in the file is never replaced.
"""

from __future__ import annotations

import ast
import hashlib
import runpy
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from helpers import paths
from helpers.course.exercises.calling import call_with_each
from helpers.course.exercises.editing import source_of
from helpers.course.exercises.ladders import names_reached
from helpers.course.exercises.reading import names_read

if TYPE_CHECKING:
    from helpers.tools import theory

NAME = "my_planner.py"
HEAD = '"""My planner: what a GPU holds under a plan, in bytes.  Every function takes a `theory.Plan`."""\n'
MARK = "# as its check passed it: "  # and a digest of the text below, so that an edit is seen


@dataclass(frozen=True)
class Training:
    """A training that a planner is scored on.

    Attributes:
        words: which it is.
        how: "recorded" on GPUs, or "rehearsed".
        right: {term: bytes on the fullest GPU or, recorded, on rank 0}.
    """

    plan: theory.Plan
    words: str
    how: str
    right: dict[str, int]


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


def score(
    term: str, function: Callable | None = None, scope: Callable[[theory.Plan], bool] | None = None
) -> str:
    """How far a term is off in trainings that the learner has not seen, in a sentence.

    Args:
        term: "states" or "peak".
        function: takes a `theory.Plan`; by default the one in the planner.
        scope: whether a plan is asked for; by default all are.
    """
    file = str(paths.WORK / NAME)
    function = function or (lambda plan: runpy.run_path(file)[term](plan))
    off, worst, unseen = [], "", trainings(term, scope)
    with closing(call_with_each(function, [{"plan": training.plan} for training in unseen])) as outcomes:
        for training, (said, failure) in zip(unseen, outcomes):
            if failure or not isinstance(said, (int, float)):
                return f"`{term}` {failure or 'returned no number'} for {training.words}."
            right = training.right[term]
            off.append(abs(said - right) / right)
            if off[-1] == max(off):
                found = f"{right / 1e9:.1f} GB were {training.how}"
                worst = f"{training.words}: {said / 1e9:.1f} GB, and {found}"
    middle, most = statistics.median(off), max(off)
    how_far = f"{middle:.1%} off in the middle, {most:.1%} at most ({worst})"
    of_each = Counter(training.how for training in unseen)
    kinds = " and ".join(f"{count} {how}" for how, count in of_each.items())
    return f"`{term}` in {kinds} trainings: {how_far}."


def trainings(term: str, scope: Callable[[theory.Plan], bool] | None = None) -> list[Training]:
    """All of which a term is known, and whose plan is in scope."""
    known = [one for one in (*recorded_trainings(), *rehearsed_trainings()) if term in one.right]
    return [one for one in known if scope is None or scope(one.plan)]


def recorded_trainings() -> Iterator[Training]:
    """Those of which a GPU's own bytes are known."""
    from helpers.course import recorded

    for run in recorded.trainings():
        if run.experiment in ("zero", "speed") and run.on_gpu and run.reports and not run.shared:
            plan, right = recorded.plan(run), {"peak": recorded.highest(run)}
            if run.experiment == "zero":
                right["states"] = sum(run.states(0).values()) - run.states(0)["buffers"]
            words = f"{run.parameters / 1e9:.1f} billion parameters, stage {plan.stage}, {run.ranks} GPUs"
            times = f"{plan.micro_batches} x {plan.micro} sequences"
            yield Training(plan, f"{words}, {times}", "recorded", right)


def rehearsed_trainings() -> Iterator[Training]:
    """The job's plans that a `theory.Plan` can say, and whose states are those between two micro-batches."""
    from helpers.course import job
    from helpers.tools import theory

    for name, way in job.PLANS.items():
        zero = way.config["zero_optimization"]
        is_other = (
            way.lora
            or way.qlora
            or "data_types" in way.config
            or {"offload_optimizer", "overlap_comm"} & set(zero)
        )
        if is_other or type(way.checkpointing) is int or way.config["gradient_accumulation_steps"] == 1:
            continue
        plan = theory.Plan(
            size=theory.LlamaSize.of(job.MODELS[way.model]),
            gpus=way.gpus,
            batch=way.sequences,
            sequence=job.SEQUENCE,
            stage=zero["stage"],
            micro=way.config["train_micro_batch_size_per_gpu"],
            checkpointed=way.checkpointing,
            bucket=zero.get("reduce_bucket_size", theory.Plan.bucket),
            lean=zero["stage"] > 0 or "fused" in way.config["optimizer"]["params"],
        )
        states = job.states(name)
        right = {"states": sum(states.values()) - states["buffers"], "peak": job.peak(name)}
        yield Training(plan, f"the job, {name}", "rehearsed", right)
