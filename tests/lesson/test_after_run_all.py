"""The course's exercises run once more behind each lesson's last cell (tests/after_run_all.py): none is
forgotten, and a broken one is found."""

import nbformat
import pytest
from helpers.course.exercises import start_here as lesson_00
from helpers.course.syllabus.outline import beside, notebooks
from tests.after_run_all import CHECK, after_run_all

SOLUTION = "def sum_of_ranks_solution(ranks):\n    return first * ranks + ranks * (ranks - 1) // 2"
STUB = "def sum_of_ranks(ranks): ...\n\n\nexercises.sum_of_ranks.check(sum_of_ranks)"


@pytest.mark.parametrize("path", [*notebooks(), *beside()], ids=lambda path: path.stem)
def test_no_exercise_is_forgotten(path):
    notebook = nbformat.read(path, as_version=4)
    found = {
        exercise
        for cell in notebook.cells
        if cell.cell_type == "code"
        for exercise in CHECK.findall(cell.source)
    }
    assert (found or path in beside()) and set(after_run_all(notebook)) == found


@pytest.mark.parametrize("later, broken", [("ranks = 3", False), ("first = 1", True)])
def test_an_exercise_that_a_later_cell_broke_is_found(later, broken):
    cells = [
        "from helpers.course.exercises import start_here as exercises",
        "first = 0",
        SOLUTION,
        STUB,
        later,
    ]
    ((exercise, source),) = after_run_all(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    ).items()
    assert exercise == "sum_of_ranks"
    kernel = {"exercises": lesson_00}
    for cell in cells:
        exec(cell, kernel)
    if broken:
        with pytest.raises(AssertionError, match="not yet"):
            exec(source, kernel)
    else:
        exec(source, kernel)
