"""Mistakes as edits of a solution, and solutions that a lesson and its exercises' module hold alike."""

import ast
import inspect
import textwrap

import pytest
from helpers.course.exercises.editing import edit
from helpers.course.exercises.reading import is_unwritten
from tests.exercises.course import LESSONS, folded


def doubled_solution(number):
    return 2 * number


def test_an_edit_changes_a_copy():
    assert edit(doubled_solution, "2 *", "3 *")(5) == 15 and doubled_solution(5) == 10
    assert edit(doubled_solution, "2 *", "3 *", "number\n", "number + 1\n")(5) == 16


def test_an_edit_can_be_read_and_edited_as_its_original():
    halved = edit(edit(doubled_solution, "2 *", "0.25 *"), "0.25", "0.5")
    assert halved(8) == 4 and "0.5 * number" in inspect.getsource(halved)
    assert is_unwritten(edit(doubled_solution, "2 * number", "..."))


@pytest.mark.parametrize("old, times", [("4 *", 0), ("number", 2)])
def test_an_edit_of_text_that_does_not_stand_there_once_is_refused(old, times):
    with pytest.raises(ValueError, match=f"stands {times} times in doubled_solution"):
        edit(doubled_solution, old, "")


def test_solutions_of_lessons_are_those_of_the_exercises():
    for number, module in LESSONS.items():
        text = folded(number)
        shown = {
            node.name: "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
            for node in ast.parse(text).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        for name, value in vars(module).items():
            if name.endswith("_solution"):
                assert textwrap.dedent(inspect.getsource(value)).strip() == shown[name], f"{number}: {name}"
