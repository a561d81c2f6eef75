"""The rooms of `helpers/`: no circle among modules, and what a rank imports stays light."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter

import pytest
import helpers
from helpers.paths import ROOT

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "helpers").rglob("*.py")
}


def imported(name):
    """Modules of `helpers` that a module imports, wherever in its text, but for those that only its
    annotations name."""
    tree, found = ast.parse(FILES[name].read_text()), set()
    for node in [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]:
        node.body = []  # it is not run
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & set(FILES)) or {node.module}
    return found & set(FILES) - {name}


def test_no_circle():
    list(
        TopologicalSorter({name: imported(name) for name in FILES}).static_order()
    )  # raises CycleError, naming the circle


def test_importing_the_package_imports_nothing_heavy():
    shown = (
        "import sys, helpers; print([name for name in ('torch', 'deepspeed', 'matplotlib', 'numpy') "
        "if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, timeout=60
        ).stdout
        == "[]\n"
    )


def test_what_lessons_import_from_the_package_is_there_and_documented():
    for name in dir(helpers):
        assert getattr(helpers, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Leger'; there are .*Ledger"):
        helpers.Leger  # noqa: B018


def test_a_rank_does_not_import_what_draws():
    shown = (
        "import sys, helpers.tools.launch.rank, helpers.tools.measure.ledger, "
        "helpers.tools.measure.traffic, helpers.course.models, helpers.tools.theory; "
    )
    shown += "print('matplotlib' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", shown], cwd=ROOT, capture_output=True, text=True, timeout=60
        ).stdout
        == "False\n"
    )


def test_no_program_that_a_test_starts_may_run_for_ever():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "subprocess.run",
                "subprocess.check_output",
                "subprocess.check_call",
            ):
                given = {keyword.arg for keyword in node.keywords}
                assert given & {"timeout", None}, f"{path.relative_to(ROOT)}:{node.lineno} has no timeout"
