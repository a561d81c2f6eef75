"""The course's own answers: what a lesson's folded cells, tagged `solution`, define, as a module for each
lesson, which holds its companion's too.

    from helpers.course.exercises.solutions import zero_1

`x_solution` is the course's answer to the exercise `x`.  The bare name `x` in a solution is what the lesson
goes on with: the learner's function where it is right, else the course's, which has that name here.
"""

from __future__ import annotations

import ast
import json
import linecache
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from helpers.course.exercises import SUBJECTS
from helpers.course.exercises.reading import names_read
from helpers.paths import NOTEBOOKS

__path__: list[str] = []  # a package, whose modules are found below
SOLUTION = "_solution"


class Cells(Loader):
    """Defines what the solution cells of a lesson define."""

    def exec_module(self, module: ModuleType) -> None:
        subject = module.__name__.rpartition(".")[2]
        cells = code_cells(subject)
        solutions = [text for text, tags in cells if "solution" in tags]
        text = "\n\n\n".join(["import torch", *solutions]) + "\n"
        module.__file__ = str(
            Path(__file__).with_suffix("") / f"{subject}.py"
        )  # as errors and `inspect` name it
        linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
        exec(compile(text, module.__file__, "exec"), vars(module))
        answers = {name: value for name, value in vars(module).items() if name.endswith(SOLUTION)}
        vars(module).update({name.removesuffix(SOLUTION): answer for name, answer in answers.items()})
        called = set().union(*map(names_read, answers.values())) - set(vars(module))
        if called:
            exec(imports_of(called, [text for text, _ in cells]), vars(module))


class Finder(MetaPathFinder):
    """Finds the lessons' modules in here."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        package, _, subject = name.rpartition(".")
        known = package == __name__ and subject in SUBJECTS.values()
        return ModuleSpec(name, Cells(), origin="the lesson's solution cells") if known else None


def code_cells(subject: str) -> list[tuple[str, list[str]]]:
    """(text, tags) of a lesson's code cells and of its companion's."""
    files = sorted(NOTEBOOKS.glob(f"*_{subject}.ipynb")) + sorted(NOTEBOOKS.glob(f"more/*_{subject}.ipynb"))
    cells = [cell for file in files for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]]
    return [
        ("".join(cell["source"]), cell["metadata"].get("tags", []))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def imports_of(names: set[str], texts: list[str]) -> str:
    """The statements at the outermost level of texts that import some names."""
    found = {}
    for text in texts:
        for node in ast.parse(text).body:
            for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                bound = alias.asname or alias.name.partition(".")[0]
                if bound in names:
                    found[bound] = ast.unparse(type(node)(**vars(node) | {"names": [alias]}))
    return "\n".join(found.values())


sys.meta_path.append(Finder())
