"""Every public function and method of `helpers/` says the types of what it takes and of what it gives."""

import ast
import re

import pytest
from helpers.course.syllabus.outline import beside, notebooks
from helpers.paths import NOTEBOOKS, ROOT

MODULES = sorted((ROOT / "helpers").rglob("*.py"))
SHOWN = {  # lessons print the text of these, in which types would stand between a learner and the mathematics
    f"helpers/course/models/{name}"
    for path in [*notebooks(NOTEBOOKS), *beside(NOTEBOOKS)]
    for name in re.findall(r"getsource\(models\.([\w.]+)\)", path.read_text(encoding="utf-8"))
}


def public(body):
    """The functions of a module's or class's body and of its public classes, by name; those within functions
    are nobody else's business."""
    for node in body:
        if getattr(node, "name", "").endswith("_solution"):
            continue  # it has the text of a lesson's folded cell
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((f"{node.name}.{name}", function, True) for name, function, _ in public(node.body))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
            node.name == "__init__" or not node.name.startswith("_")
        ):
            yield node.name, node, False
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            handlers = [part for handler in getattr(node, "handlers", []) for part in handler.body]
            yield from public(
                [*node.body, *handlers, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            )


def lacking(name, function, is_method):
    """What has no type: arguments (but for self or cls) and "return"."""
    given = function.args
    is_static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
    positional = [*given.posonlyargs, *given.args][int(is_method and not is_static) :]
    arguments = [*positional, given.vararg, *given.kwonlyargs, given.kwarg]
    found = [one.arg for one in arguments if one is not None and one.annotation is None]
    return found + ["return"] * (function.returns is None and function.name != "__init__")


def without_types(source):
    """(line, function, what lacks a type) of every public function that lacks one."""
    found = [
        (function.lineno, name, lacking(name, function, is_method))
        for name, function, is_method in public(ast.parse(source).body)
    ]
    return [one for one in found if one[2]]


@pytest.mark.parametrize(
    "source, found",
    [
        ("def f(a: int, *b: int, c: int = 1, **d: int) -> None: ...", []),
        ("def f(a, *b, c=1, **d): ...", ["a", "b", "c", "d", "return"]),
        ("def f() -> None:\n    def g(a): ...", []),
        ("def _f(a): ...", []),
        ("class C:\n    def __init__(self, a): ...\n    def __repr__(self): ...", ["a"]),
        ("class C:\n    def __init__(self): ...\n    def f(self): ...", ["return"]),
        ("class C:\n    @classmethod\n    def f(cls, a) -> int: ...", ["a"]),
        ("class C:\n    @staticmethod\n    def f(a) -> int: ...", ["a"]),
        ("class _C:\n    def f(self): ...", []),
        ("try:\n    import x\nexcept ImportError:\n    def f(): ...", ["return"]),
    ],
)
def test_what_lacks_a_type_is_found(source, found):
    assert [name for _, _, names in without_types(source) for name in names] == found


def test_public_functions_say_their_types():
    lines = []
    for path in MODULES:
        place = path.relative_to(ROOT)
        for line, name, names in without_types(path.read_text(encoding="utf-8")):
            if f"{place.parent}/{name}" not in SHOWN:
                lines.append(f"{place}:{line} {name}: {', '.join(names)}")
    assert not lines, "\n" + "\n".join(lines)
