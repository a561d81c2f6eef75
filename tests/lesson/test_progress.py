"""The record of passed checks survives damage, two kernels at once, and being nowhere near a learner's
copy."""

import json
import multiprocessing
import re

import pytest
from helpers.course.lesson import index, progress
from helpers.course.syllabus.outline import course


@pytest.fixture
def work(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setattr("helpers.paths.WORK", folder)
    monkeypatch.chdir(folder)
    return folder


def test_what_is_recorded_is_passed_once(work):
    assert progress.passed() == {}
    for name, lesson in (("ring", "04"), ("sum", "00"), ("ring", "04"), ("bucket", "04")):
        assert progress.record(name, lesson)
    assert progress.passed() == {"00": ["sum"], "04": ["ring", "bucket"]}


def test_a_companions_check_is_recorded_from_its_folder(work, monkeypatch):
    (work / "more").mkdir()
    monkeypatch.chdir(work / "more")
    assert progress.record("ring", "04") and progress.passed() == {"04": ["ring"]}


def test_a_check_that_was_passed_is_seen_on_the_start_page(work):
    assert progress.record("deal", "00")
    shown = repr(index.Progress(course(), progress.passed()))
    assert shown.startswith("Continue here: [00 ") and "In all, 1 of" in shown
    assert re.search(r"^\|00\|.*●○+ 1 of \d+ \*\*continue here\*\*\|$", shown, re.M)


def test_nothing_is_recorded_outside_of_the_learners_folder(work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not progress.record("ring", "04")
    assert not list(work.iterdir())


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '"text"', "null", '{"04": "ring"}', "\x00\xff"])
def test_a_damaged_record_reads_as_empty_and_is_written_anew(work, damage):
    (work / progress.NAME).write_bytes(damage.encode("latin-1"))
    assert progress.passed() == {}
    assert progress.record("ring", "04")
    assert progress.passed() == {"04": ["ring"]}


def test_what_is_sound_in_a_damaged_record_is_kept(work):
    (work / progress.NAME).write_text('{"04": ["ring", 3, null], "05": 1}')
    assert progress.passed() == {"04": ["ring"]}


def test_a_folder_that_cannot_be_written_spoils_no_verdict(work):
    (work / f".{progress.NAME}.lock").mkdir()
    assert not progress.record("ring", "04")


def add(folder, lesson):
    import os
    import pathlib

    os.chdir(folder)
    for number in range(20):
        progress.record(f"check {number}", lesson, pathlib.Path(folder))


def test_kernels_at_the_same_time_lose_nothing(work):
    context = multiprocessing.get_context("spawn")
    kernels = [context.Process(target=add, args=(str(work), f"{number:02}")) for number in range(3)]
    for kernel in kernels:
        kernel.start()
    for kernel in kernels:
        kernel.join()
    assert {lesson: len(names) for lesson, names in progress.passed().items()} == {
        "00": 20,
        "01": 20,
        "02": 20,
    }
    assert json.loads((work / progress.NAME).read_text())
    assert {path.name for path in work.iterdir()} == {progress.NAME, f".{progress.NAME}.lock"}


def test_the_first_editions_record_is_read_under_the_numbers_of_today(work):
    first = work / progress.FIRST_EDITIONS
    first.write_text('{"10": ["reshard"], "11": ["lora"], "12": ["tiled_loss"], "16": ["save_safely"]}')
    today = {"10": ["reshard"], "12": ["lora"], "13": ["tiled_loss"], "18": ["save_safely"]}
    assert progress.passed() == today
    assert progress.record("linear", "12")
    assert progress.passed() == today | {"12": ["lora", "linear"]}
    assert "linear" not in first.read_text()
