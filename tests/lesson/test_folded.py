"""A lesson's folded cells show the course's own answers, all of them and as they are."""

import ast
import copy
from pathlib import Path

import nbformat
import pytest
from helpers.course.syllabus.outline import companion_of, notebooks, number_of
from tests.folded import rewritten, solutions_of, write_solutions


@pytest.mark.parametrize("lesson", notebooks(), ids=lambda path: path.stem)
def test_folded_cells_of_a_lesson_and_its_companion_show_the_course_s_own_answers(lesson):
    shown = set()
    for path in filter(Path.exists, (lesson, companion_of(lesson))):
        notebook, number = nbformat.read(path, as_version=4), number_of(path)
        anew = copy.deepcopy(notebook)
        write_solutions(anew, number)
        assert [cell.source for cell in anew.cells] == [cell.source for cell in notebook.cells]
        folded = [cell.source for cell in notebook.cells if "solution" in cell.metadata.get("tags", [])]
        shown |= {getattr(node, "name", "") for source in folded for node in ast.parse(source).body}
    assert shown >= solutions_of(number_of(lesson)).keys()


def test_what_a_cell_holds_beside_solutions_stays():
    source = (
        "import torch\n\n\ndef one_solution(x):\n    return x\n\n\nclass two_solution:\n    a = 1\n\n\nb = 2"
    )
    texts = {
        "one_solution": "def one_solution(y):\n    # new\n    return y",
        "two_solution": "class two_solution: ...",
    }
    assert rewritten(source, texts) == (
        "import torch\n\n\ndef one_solution(y):\n    # new\n    return y\n\n\n"
        "class two_solution: ...\n\n\nb = 2"
    )
