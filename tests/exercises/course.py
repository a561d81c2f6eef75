"""The course's exercises and the solutions that its notebooks hold."""

import ast
import functools
import importlib
import linecache
import re

from helpers.course.exercises import SUBJECTS
from helpers.course.lesson.outline import companion_of, notebooks, number_of

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


@functools.cache
def read(number):
    """The code cells of a lesson and of its companion."""
    import nbformat  # takes a second, and every rank that runs a function of these tests imports this module

    lesson = next(path for path in notebooks() if number_of(path) == number)
    pages = [path for path in (lesson, companion_of(lesson)) if path.exists()]
    cells = [cell for path in pages for cell in nbformat.read(path, as_version=4).cells]
    return [cell for cell in cells if cell.cell_type == "code"]


def folded(number):
    """The text of a lesson's folded solutions."""
    cells = [cell.source for cell in read(number) if "solution" in cell.metadata.get("tags", [])]
    return "\n\n".join(cells)


@functools.cache
def solutions():
    """{"03-all_numbers": the function in the lesson's folded cell}."""
    found = {}
    for number, module in LESSONS.items():
        definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        kept = [node for node in ast.parse(folded(number)).body if isinstance(node, definitions)]
        namespace = {"__name__": "__main__", "exercises": module}
        exec("import torch\nfrom helpers import models, theory", namespace)
        text = folded(number)
        file = (
            f"<folded cells of lesson {number}>"  # whose text is kept as a notebook keeps that of its cells
        )
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(ast.Module(kept, []), file, "exec"), namespace)
        for cell in read(number):
            for name, answer in re.findall(
                r"exercises\.(\w+)\.check\((?:\w+, )?(\w+_solution)\)", cell.source
            ):
                found[f"{number}-{name}"] = namespace[answer]
    return found
