"""The learner's copies are made once, and never overwritten."""

import pytest
from helpers.lesson import copies


@pytest.fixture
def course(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_start_here.ipynb", "02_training_memory.ipynb"):
        (tmp_path / "notebooks" / name).write_text("course")
    return tmp_path


def test_a_copy_is_made_once_and_never_overwritten(course):
    work = copies.copy(course)
    (work / "00_start_here.ipynb").write_text("mine")
    copies.copy(course)
    assert (work / "00_start_here.ipynb").read_text() == "mine"
    assert (work / "02_training_memory.ipynb").read_text() == "course"


def test_reset_gives_a_fresh_copy_and_keeps_the_old(course):
    work = copies.copy(course)
    (work / "02_training_memory.ipynb").write_text("mine")
    assert copies.reset("02", course).read_text() == "course"
    assert (work / "02_training_memory.ipynb.bak").read_text() == "mine"


@pytest.mark.parametrize("number", ["", "77"])
def test_reset_names_the_lessons_there_are(course, number):
    with pytest.raises(ValueError, match="00, 02"):
        copies.reset(number, course)
