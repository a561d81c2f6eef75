"""The folded solutions of lessons: their text is that of the course's own answers, which checks use."""

import ast
import importlib
import inspect

from helpers.course.exercises import SUBJECTS


def solutions_of(number):
    """{name: text} of the solutions of a lesson, which its companion has too; of another page none."""
    if (lesson := number.rpartition("/")[2]) not in SUBJECTS:
        return {}
    module = importlib.import_module(f"helpers.course.exercises.solutions.{SUBJECTS[lesson]}")
    ours = {name: value for name, value in vars(module).items() if name.endswith("_solution")}
    return {name: inspect.getsource(value).rstrip() for name, value in ours.items()}


def rewritten(source, texts):
    """A cell's source with every solution in it in the course's own text."""
    lines = source.splitlines()
    definitions = [node for node in ast.parse(source).body if getattr(node, "name", None) in texts]
    for node in reversed(definitions):
        lines[node.lineno - 1 : node.end_lineno] = texts[node.name].splitlines()
    return "\n".join(lines)


def write_solutions(notebook, number):
    """Write the solutions of a notebook's folded cells anew."""
    for cell in notebook.cells:
        if "solution" in cell.metadata.get("tags", []):
            cell.source = rewritten(cell.source, solutions_of(number))
