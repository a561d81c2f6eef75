"""The learner's copies: made once, without the stored outputs, and never overwritten."""

import json
import platform
import shutil

import pytest
from helpers.course.lesson import copies, index
from helpers.paths import NOTEBOOKS


def write(path, *sources, outputs=(), metadata=None):
    cells = [
        {
            "cell_type": "code",
            "id": f"{at}",
            "execution_count": 1 if outputs else None,
            "metadata": {},
            "outputs": list(outputs),
            "source": [source],
        }
        for at, source in enumerate(sources)
    ]
    path.write_text(
        json.dumps(
            {
                "cells": cells,
                "metadata": metadata or {"language_info": {"name": "python"}},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )


def sources(path):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


STORED = [{"output_type": "stream", "name": "stdout", "text": ["24.8 GB free"]}]


@pytest.fixture
def course(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for name in ("00_start_here.ipynb", "02_training_memory.ipynb"):
        write(tmp_path / "notebooks" / name, "course", outputs=STORED)
    write(tmp_path / "notebooks" / "index.ipynb", "map")
    return tmp_path


def test_a_copy_is_made_once_and_never_overwritten(course):
    work = copies.copy(course)
    write(work / "00_start_here.ipynb", "mine")
    copies.copy(course)
    assert sources(work / "00_start_here.ipynb") == ["mine"] and sources(
        work / "02_training_memory.ipynb"
    ) == ["course"]


def test_a_copy_comes_without_the_stored_outputs(course):
    (cell,) = json.loads((copies.copy(course) / "02_training_memory.ipynb").read_text())["cells"]
    assert cell["outputs"] == [] and cell["execution_count"] is None


def test_a_copy_says_which_python_runs_it_as_jupyterlab_would(course):
    language = json.loads((copies.copy(course) / "02_training_memory.ipynb").read_text())["metadata"][
        "language_info"
    ]
    assert language["version"] == platform.python_version()
    assert set(language) == {
        "codemirror_mode",
        "file_extension",
        "mimetype",
        "name",
        "nbconvert_exporter",
        "pygments_lexer",
        "version",
    }


def test_reset_keeps_every_old_copy_under_a_name_that_opens(course):
    work = copies.copy(course)
    for mine in ("first", "second"):
        write(work / "02_training_memory.ipynb", mine)
        assert sources(copies.reset("02", course)[0]) == ["course"]
    assert sources(work / "02_training_memory.mine-1.ipynb") == ["first"]
    assert sources(work / "02_training_memory.mine-2.ipynb") == ["second"]


def test_a_reset_without_a_change_of_the_learners_keeps_nothing(course):
    work = copies.copy(course)
    assert copies.reset("02", course) == (work / "02_training_memory.ipynb", None)
    assert not list(work.glob("*.mine-*"))


def test_an_appendix_is_copied_and_reset_by_its_name(course):
    write(course / "notebooks" / "appendix_fsdp.ipynb", "course")
    work = copies.copy(course)
    write(work / "appendix_fsdp.ipynb", "mine")
    assert copies.reset("fsdp", course) == (work / "appendix_fsdp.ipynb", work / "appendix_fsdp.mine-1.ipynb")


def test_a_companion_is_copied_renewed_and_reset_apart_from_its_lesson(course):
    (course / "notebooks" / "more").mkdir()
    page, mine = (course / folder / "more" / "02_training_memory.ipynb" for folder in ("notebooks", "work"))
    write(page, "more", outputs=STORED)
    copies.copy(course)
    assert sources(mine) == ["more"] and not json.loads(mine.read_text())["cells"][0]["outputs"]
    write(page, "newer")
    copies.copy(course)
    assert sources(mine) == ["newer"]
    write(mine, "mine")
    write(page, "newest")
    copies.copy(course)
    assert sources(mine) == ["mine"] and copies.older(course) == [page]
    kept = mine.with_name("02_training_memory.mine-1.ipynb")
    assert copies.reset("more/02", course) == (mine, kept) and sources(kept) == ["mine"]
    assert copies.older(course) == [] and sources(course / "work" / "02_training_memory.ipynb") == ["course"]


@pytest.mark.parametrize("number", ["", "77", "more/02"])
def test_reset_names_the_lessons_there_are(course, number):
    with pytest.raises(ValueError, match="00, 02"):
        copies.reset(number, course)


def test_an_untouched_copy_follows_the_course(course):
    work = copies.copy(course)
    write(course / "notebooks" / "02_training_memory.ipynb", "newer")
    copies.copy(course)
    assert sources(work / "02_training_memory.ipynb") == ["newer"] and copies.older(course) == []


@pytest.mark.parametrize("change", ["edited", "run"])
def test_a_copy_that_the_learner_used_is_kept_and_named_as_older(course, change):
    work = copies.copy(course)
    mine = (
        {"sources": ["mine"], "outputs": ()}
        if change == "edited"
        else {"sources": ["course"], "outputs": STORED}
    )
    write(work / "02_training_memory.ipynb", *mine["sources"], outputs=mine["outputs"])
    assert copies.older(course) == []
    write(course / "notebooks" / "02_training_memory.ipynb", "newer")
    copies.copy(course)
    assert sources(work / "02_training_memory.ipynb") == mine["sources"]
    assert [lesson.name for lesson in copies.older(course)] == ["02_training_memory.ipynb"]
    copies.reset("02", course)
    assert copies.older(course) == []


def test_new_stored_outputs_make_no_copy_older(course):
    work = copies.copy(course)
    write(work / "02_training_memory.ipynb", "mine")
    write(course / "notebooks" / "02_training_memory.ipynb", "course")
    assert copies.older(course) == []


def test_a_copy_of_unknown_date_counts_as_older_where_it_differs(course):
    work = copies.copy(course)
    (work / copies.DATES).unlink()
    write(work / "02_training_memory.ipynb", "mine")
    copies.copy(course)
    assert [lesson.name for lesson in copies.older(course)] == ["02_training_memory.ipynb"]


def test_a_copy_that_cannot_be_read_is_left_alone(course):
    work = copies.copy(course)
    (work / "02_training_memory.ipynb").write_text("<<<<<<< not json")
    write(course / "notebooks" / "02_training_memory.ipynb", "newer")
    copies.copy(course)
    assert (work / "02_training_memory.ipynb").read_text() == "<<<<<<< not json"
    assert [lesson.name for lesson in copies.older(course)] == ["02_training_memory.ipynb"]


def test_the_start_page_is_always_fresh(course):
    work = copies.copy(course)
    write(work / "index.ipynb", "mine")
    copies.copy(course)
    assert sources(work / "index.ipynb") == ["map"]


def test_the_learners_start_page_shows_what_they_have_passed(tmp_path, monkeypatch):
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("0[1-9]*", "*.png"))
    monkeypatch.setattr(index, "passed", lambda: {"00": ["sum_of_ranks"]})
    cells = json.loads((copies.copy(tmp_path) / "index.ipynb").read_text())["cells"]
    (shown,) = [output["data"] for cell in cells for output in cell.get("outputs", ())]
    assert shown["text/plain"][0].startswith("1 of ") and "✓ sum of ranks" in shown["text/markdown"][0]
