"""Mistakes as edits of a solution, and solutions that a lesson and its exercises' module hold alike."""

import inspect

import pytest
from helpers.course.exercises.editing import edit
from helpers.course.exercises.reading import is_unwritten


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
