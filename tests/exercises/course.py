"""The course's exercises and their solutions."""

import importlib
import linecache
from dataclasses import replace

from helpers.course.exercises import SUBJECTS
from helpers.course.exercises.engine import Check
from helpers.course.exercises.in_ranks import run_patiently, tried_mistake

LESSONS = {
    number: importlib.import_module(f"helpers.course.exercises.{subject}")
    for number, subject in SUBJECTS.items()
}


def of_kind(kind):
    """{"03-all_numbers": exercise} of every lesson."""
    return {
        f"{number}-{name}": value
        for number, lesson in LESSONS.items()
        for name, value in vars(lesson).items()
        if isinstance(value, kind)
    }


def solutions():
    """{"03-all_numbers": the course's answer}."""
    return {name: exercise.solution for name, exercise in of_kind(Check).items()}


def right_answers(name):
    """{what is different: a right answer of another build} of "07-flatten", from its lesson's data file."""
    number, _, stub = name.partition("-")
    stubs = LESSONS[number].stubs
    answer = stubs.told[stub].get("solution", f"{stub}_solution").removesuffix("_solution")
    return {
        words: defined(answer, text, vars(stubs.solutions))
        for words, text in stubs.told[stub].get("right", {}).items()
    }


def defined(name, text, names):
    """What a text defines under a name; its source can be read."""
    file = f"<right: {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = dict(names)
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def try_each(task):
    """In a rank: what a trial finds with each of several functions; None where one fails."""
    return [tried_mistake(task, function) for function in task.others]


def tried(build, functions, ranks, seed):
    """What every rank's trial finds with each of several functions, in one job."""
    task = replace(build.task(None, functions, seed), patience=2 * build.patience)
    return run_patiently(try_each, ranks, task)
