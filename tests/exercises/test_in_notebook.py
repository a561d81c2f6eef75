"""Checks in a real kernel: how verdicts are shown, which definition is judged, and what is kept of a
learner's progress."""

import json
import tempfile

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from helpers.paths import ROOT

pytestmark = pytest.mark.ranks

SETUP = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from helpers import paths
from helpers.course.exercises import start_here as exercises
from helpers.course.exercises.builds import Build
from tests.exercises.averaging import in_place, mean_over_ranks_solution, trial
place = "00", "mean_over_ranks"
build = Build(mean_over_ranks_solution, trial, praise="summed, then divided", place=place)
"""
RIGHT = "def mean(tensor, ranks):\n    return in_place(tensor, ranks)"
CHECK = "mean = build.check(mean)"
FORMULA = "def total(ranks):\n    return ranks * (ranks - 1) // 2"
CHECK_FORMULA = "_ = exercises.sum_of_ranks.check(total)"
HANDED = "total = exercises.sum_of_ranks.check(total)"


def outputs_of(folder, *cells, setup=SETUP):
    """Run cells in a fresh kernel in a folder; for each the display that it leaves, or the name of its
    error."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in (setup, *cells)]
    )
    with tempfile.TemporaryDirectory(
        prefix="kernels-"
    ) as sockets:  # a free port that was chosen may be taken by a rank before it is bound
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/kernel")
        NotebookClient(
            notebook,
            km=manager,
            allow_errors=True,
            timeout=120,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    last = [
        [output for output in cell.outputs if output.get("data") != {}][-1:] for cell in notebook.cells[1:]
    ]
    return [
        output[0].get("ename") or output[0].get("text") or output[0].data if output else None
        for output in last
    ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A learner's session: name of the step -> what the cell showed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    steps = {
        "stub": 'def mean(tensor, ranks):\n    """The mean over ranks."""\n    ...',
        "check of the stub": CHECK,
        "and again": CHECK,
        "right": RIGHT,
        "check of the right one": CHECK,
        "syntax error": "def mean(tensor, ranks)\n    return tensor",
        "check after it": CHECK,
        "mended": RIGHT,
        "check of the mended one": CHECK,
        "an error before the definition": f"1 / 0\n{RIGHT}",
        "check after that": CHECK,
        "uses a loop variable": "for rank in range(2):\n    pass\ndef mean(tensor, ranks):\n   "
        " return in_place(tensor, "
        "ranks) * rank / rank",
        "check of that": CHECK,
        "formula": FORMULA,
        "check of the formula": CHECK_FORMULA,
        "formula with a syntax error": FORMULA.replace(":", "", 1),
        "check of the old formula": CHECK_FORMULA,
        "stub of the formula": "def total(ranks):\n    ...",
        "check that hands on the course's": HANDED,
        "check of it again": HANDED,
        "formula with a syntax error, in the place of the stub": FORMULA.replace(":", "", 1),
        "check of the stub from before": HANDED,
        "right formula": FORMULA,
        "check of the right formula": HANDED,
    }
    return dict(zip(steps, outputs_of(folder, *steps.values())))


def test_verdicts_have_a_colour_a_mark_and_the_same_words_as_plain_text(shown):
    steps = {
        "check of the stub": "○ not written yet",
        "check of the right one": "✓ correct",
        "check after it": "✗ not yet",
    }
    for step, head in steps.items():
        assert shown[step]["text/plain"].startswith(head)
        assert f"{head}</strong>" in shown[step]["text/html"]
    assert "the course's <code>mean_over_ranks</code>" in shown["check of the stub"]["text/html"]
    colours = {shown[step]["text/html"].partition("solid ")[2][:7] for step in steps}
    assert len(colours) == 3


def test_a_check_that_runs_again_says_the_same(shown):
    assert shown["check of the stub"] == shown["and again"]
    assert (
        shown["and again"]["text/plain"]
        == "○ not written yet. The lesson uses the course's `mean_over_ranks`."
    )


def test_after_a_syntax_error_the_old_function_is_not_judged(shown):
    assert shown["syntax error"] == "SyntaxError"
    for step in ("check after it", "check of the old formula"):
        assert "has a SyntaxError in line 1, so this is still the" in shown[step]["text/plain"]
    assert shown["check of the mended one"]["text/plain"].startswith("✓ correct")


def test_where_the_course_s_was_handed_on_a_syntax_error_is_told_and_earns_no_praise(shown):
    for step in ("check that hands on the course's", "check of it again"):
        assert shown[step]["text/plain"] == "○ not written yet. The lesson uses the course's `sum_of_ranks`."
    for step in ("check of the stub from before",):
        assert (
            "has a SyntaxError in line 1, so this is still the `total` from before"
            in shown[step]["text/plain"]
        )
        assert shown[step]["text/plain"].endswith("The lesson uses the course's `sum_of_ranks`.")
    assert shown["check of the right formula"]["text/plain"].endswith("The lesson uses your `sum_of_ranks`.")


def test_a_cell_that_fails_before_its_definition_is_told_too(shown):
    assert shown["an error before the definition"] == "ZeroDivisionError"
    assert "raised an error before it came to the definition" in shown["check after that"]["text/plain"]


def test_a_variable_of_the_notebook_that_a_function_picks_up_is_named(shown):
    assert "note that your function reads `rank` from the notebook" in shown["check of that"]["text/plain"]


def test_only_a_learners_own_right_answers_in_their_copy_are_kept(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    setup = f"{SETUP}\nimport pathlib\npaths.WORK = pathlib.Path({str(work)!r})"
    wrong = FORMULA.replace("- 1", "+ 1")
    cells = [
        wrong,
        CHECK_FORMULA,
        FORMULA.replace("total", "sum_of_ranks_solution"),
        "exercises.sum_of_ranks.check(sum_of_ranks_solution)",
    ]
    cells += [
        "def mean(tensor, ranks): ...",
        CHECK,
        "build.check(mean_over_ranks_solution) is mean_over_ranks_solution",
    ]
    outputs_of(work, *cells, setup=setup)
    assert not (work / "passed.json").exists()
    outputs_of(work, RIGHT, CHECK, FORMULA, CHECK_FORMULA, CHECK_FORMULA, setup=setup)
    assert json.loads((work / "passed.json").read_text()) == {"00": ["mean_over_ranks", "sum_of_ranks"]}
