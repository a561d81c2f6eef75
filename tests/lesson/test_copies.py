"""The learner's copies: made once, without the stored outputs, and never overwritten."""

import errno
import json
import os
import platform
import re
import shutil
import subprocess
import sys

import pytest
from helpers.course.lesson import copies
from helpers.paths import NOTEBOOKS, ROOT


def write(path, *sources, outputs=(), tags=()):
    cells = [
        {
            "cell_type": "code",
            "id": f"{at}",
            "execution_count": 1 if outputs else None,
            "metadata": {"tags": list(tags)},
            "outputs": list(outputs),
            "source": [source],
        }
        for at, source in enumerate(sources)
    ]
    path.write_text(
        json.dumps(
            {
                "cells": cells,
                "metadata": {"language_info": {"name": "python"}},
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


def test_the_start_page_changes_with_the_course_alone(course):
    """It may be open: a file that was written anew would make JupyterLab ask which of the two counts."""
    page = copies.copy(course) / "index.ipynb"
    write(page, "map", outputs=STORED, tags=["progress"])  # as when its list of checks was run
    before = page.stat().st_mtime_ns
    copies.copy(course)
    assert page.stat().st_mtime_ns == before
    write(course / "notebooks" / "index.ipynb", "newer")
    copies.copy(course)
    assert sources(page) == ["newer"]


def test_a_start_page_of_unknown_date_is_renewed_and_an_edited_one_is_kept(course):
    (course / "work").mkdir()
    page = course / "work" / "index.ipynb"
    write(page, "from before pages had dates", outputs=STORED, tags=["progress"])
    copies.copy(course)
    assert sources(page) == ["map"]
    write(page, "mine")
    copies.copy(course)
    assert sources(page) == ["mine"]
    assert copies.reset("index", course) == (page, page.with_name("index.mine-1.ipynb"))


def test_the_start_pages_pictures_lie_beside_its_copy(tmp_path):
    copies.copy_pictures(tmp_path)
    shown = set(re.findall(r"\((map/[^)]+)\)", (copies.NOTEBOOKS / copies.INDEX).read_text()))
    assert shown == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("map/*")}


@pytest.fixture
def full(course, monkeypatch):
    """A function that fills the disk: from then on no file of this name can be written."""

    def fill(*names):
        plain = copies.replace

        def refusing(path, content):
            if path.name in names:
                raise OSError(errno.ENOSPC, "No space left on device")
            plain(path, content)

        monkeypatch.setattr(copies, "replace", refusing)

    return fill


@pytest.mark.parametrize("refused", ["02_training_memory.ipynb", copies.DATES])
def test_copies_made_before_the_disk_was_full_are_known_and_others_are_not_there(course, full, refused):
    full(refused)
    with pytest.raises(OSError):
        copies.copy(course)
    made = {path.name for path in (course / "work").glob("*.ipynb")}
    assert made == set(copies.read_dates(course / "work"))
    assert made == ({"00_start_here.ipynb"} if refused != copies.DATES else set())


def test_a_reset_on_a_full_disk_leaves_the_learners_copy_where_it_was(course, full):
    work = copies.copy(course)
    write(work / "02_training_memory.ipynb", "mine")
    full("02_training_memory.ipynb")
    with pytest.raises(OSError):
        copies.reset("02", course)
    assert sources(work / "02_training_memory.ipynb") == ["mine"] and not list(work.glob("*.mine-*"))


ON_A_SMALL_DISK = """
import pathlib, sys
from helpers.course.lesson import copies
copies.open_course = lambda: copies.copy(pathlib.Path(sys.argv[1]))
sys.exit(copies.run("open"))
"""


def test_a_disk_that_is_really_full(course):
    """Where disks may be mounted, in a namespace of their own: a sentence and no traceback; nothing half
    written."""
    page, work = NOTEBOOKS / "02_training_memory.ipynb", course / "work"
    work.mkdir()
    for number in range(3, 9):
        shutil.copy(page, course / "notebooks" / f"0{number}_x.ipynb")
    (course / "program.py").write_text(ON_A_SMALL_DISK)
    mount = f"mount -t tmpfs -o size=128k tmpfs {work} || exit 77"  # room for some copies, not for all
    program = f"{sys.executable} {course}/program.py {course}; ls -A {work}; cat {work}/{copies.DATES}"
    command = ["unshare", "-m", "sh", "-c", f"{mount}; {program}"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    except FileNotFoundError:
        pytest.skip("no unshare here")
    if found.returncode == 77 or "unshare failed" in found.stderr:
        pytest.skip(found.stderr.strip())
    assert found.stderr.startswith("work/ cannot be written: the disk is full"), found.stderr
    listed, _, dates = found.stdout.partition("{")
    assert set(listed.split()) == {copies.DATES, *json.loads("{" + dates)}


def test_the_terminal_of_jupyterlab_passes_on_what_is_asked_for(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "Makefile").write_text("help:\n\t@echo the verbs\nreset:\n\t@echo reset $(LESSON)\n")
    (tmp_path / "work" / "Makefile").write_text(copies.MAKEFILE.format(course=".."))

    def said(*words):
        outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        look = {"cwd": tmp_path / "work", "capture_output": True, "text": True, "env": outside}
        return subprocess.run(["make", *words], timeout=60, **look).stdout

    assert said("reset", "LESSON=02") == "reset 02\n" and said() == "the verbs\n"


def test_copies_of_the_first_edition_take_todays_names(tmp_path):
    """Edited ones stay as they are; untouched ones are renewed; a companion goes with its lesson."""
    course = tmp_path / "notebooks"
    (course / "more").mkdir(parents=True)
    for name in ("12_offload_and_lora", "13_long_sequences", "more/12_offload_and_lora", "index"):
        write(course / f"{name}.ipynb", f"today's {name}")
    work = tmp_path / "work"
    (work / "more").mkdir(parents=True)
    for name in ("11_offload_and_lora", "12_long_sequences", "more/11_offload_and_lora"):
        write(work / f"{name}.ipynb", f"former {name}")
    untouched = "12_long_sequences.ipynb"
    copies.save_dates(work, {untouched: copies.digest(work / untouched)})

    copies.copy(tmp_path)
    copies.copy(tmp_path)

    found = {path.relative_to(work).as_posix(): sources(path)[0] for path in work.rglob("*.ipynb")}
    assert found == {
        "12_offload_and_lora.ipynb": "former 11_offload_and_lora",
        "13_long_sequences.ipynb": "today's 13_long_sequences",
        "more/12_offload_and_lora.ipynb": "former more/11_offload_and_lora",
        "index.ipynb": "today's index",
    }
    assert [path.name for path in copies.older(tmp_path)] == ["12_offload_and_lora.ipynb"] * 2
