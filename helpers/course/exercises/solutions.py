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
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from helpers.course.exercises import SUBJECTS
from helpers.paths import NOTEBOOKS

# A package.  Its modules are files where `export` has written them, else they are found below.
__path__ = [str(Path(__file__).with_suffix(""))]
SOLUTION = "_solution"


class Cells(InspectLoader):
    """Defines what the solution cells of a lesson define."""

    def get_source(self, fullname: str) -> str:
        cells = code_cells(fullname.rpartition(".")[2])
        texts = ["import torch", *(text for text, tags in cells if "solution" in tags)]
        answers = [node.name for node in ast.parse("\n".join(texts)).body if hasattr(node, "name")]
        names = "\n".join(f"{answer.removesuffix(SOLUTION)} = {answer}" for answer in answers)
        imports = imports_of(read_outside("\n".join([*texts, names])), [text for text, _ in cells])
        return "\n\n\n".join([*texts, names, imports]).rstrip() + "\n"

    def exec_module(self, module: ModuleType) -> None:
        text = self.get_source(module.__name__)
        module.__file__ = f"{__path__[0]}/{module.__name__.rpartition('.')[2]}.py"  # as `inspect` names it
        linecache.cache[module.__file__] = (len(text), None, text.splitlines(keepends=True), module.__file__)
        exec(compile(text, module.__file__, "exec"), vars(module))


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


def read_outside(text: str) -> set[str]:
    """Names that a text reads and does not bind."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    bound |= {node.asname or node.name.split(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return {node.id for node in names} - bound


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
