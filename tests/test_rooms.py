"""The rooms of `helpers/`: no circle among modules, and what a rank imports stays light."""

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

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
            package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
            module = resolve_name("." * node.level + (node.module or ""), package)
            inner = {f"{module}.{alias.name}" for alias in node.names}
            found |= (inner & set(FILES)) or {module}
    return found & set(FILES) - {name}


def test_no_circle():
    list(
        TopologicalSorter({name: imported(name) for name in FILES}).static_order()
    )  # raises CycleError, naming the circle


def test_imports_go_the_way_that_the_contracts_say():
    """import-linter sees every import, also those inside functions; the contracts stand in pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and "0 broken" in said.stdout, said.stdout + said.stderr


def test_a_tool_that_imports_the_course_inside_a_function_is_seen(tmp_path):
    shutil.copytree(ROOT / "helpers", tmp_path / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / "helpers/tools/launcher/ports.py", "a") as file:
        file.write("\n\ndef late():\n    from helpers.course import corpus\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    place = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, timeout=120)
    assert said.returncode == 1 and "helpers.tools.launcher.ports -> helpers.course.corpus" in said.stdout


def test_no_tool_reaches_the_course_by_a_name_that_is_imported_late():
    """What import-linter cannot see: the lazy names of `helpers`, and modules named by a text."""
    for name, path in FILES.items():
        if not name.startswith("helpers.tools"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            lazy = isinstance(node, ast.ImportFrom) and node.module == "helpers"
            lazy = lazy and {alias.name for alias in node.names} & set(dir(helpers))
            text = isinstance(node, ast.Constant) and str(node.value).startswith("helpers.course")
            assert not lazy and not text, f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.parametrize("half", ["helpers.tools", "helpers.course"])
def test_no_two_modules_of_a_half_share_a_name(half):
    names = [
        name.rpartition(".")[2]
        for name in FILES
        if name.startswith(f"{half}.") and not name.startswith("helpers.course.exercises.")
    ]
    assert [name for name, times in Counter(names).items() if times > 1] == []


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
        "import sys, helpers.tools.launcher.rank, helpers.tools.measure.ledger, "
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
