"""The map and the checks as pictures: what needs what, what was passed, where to go on."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from helpers.course.lesson import pictures
from helpers.course.plots.drawing import READABLE, contrast
from helpers.course.syllabus.counting import Minutes
from helpers.course.syllabus.outline import Lesson, course

LESSONS = course()


def a_lesson(number, *needs, checks=("one", "two"), title="A & B"):
    return Lesson(number, f"{number}_x.ipynb", title, "Why?", Minutes(30, 5, 10), 0, needs, checks)


THREE = [a_lesson("00"), a_lesson("01", "00"), a_lesson("02", "00", checks=())]


@pytest.mark.parametrize(
    "passed, number",
    [
        ({}, "00"),
        ({"00": ["one"]}, "00"),
        ({"00": ["two", "one"]}, "01"),
        ({"01": ["one"]}, "01"),
        ({"01": ["one", "two"]}, "00"),  # one that was left out before
        ({"00": ["one", "two"], "01": ["one", "two"]}, None),
        ({"00": ["a check of before"]}, "00"),
    ],
)
def test_the_next_lesson_is_the_furthest_begun_or_follows_it(passed, number):
    following = pictures.next_lesson(THREE, passed)
    assert (following and following.number) == number


def texts(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_spots_are_full_where_a_check_was_passed_and_the_next_lesson_is_marked(tmp_path):
    pictures.draw(tmp_path, THREE, {"00": ["one", "two"], "01": ["two"]})
    first, second, whole = ((tmp_path / "map" / name).read_text() for name in ("00.svg", "01.svg", "map.svg"))

    def fills(svg):
        return re.findall(r'<circle.*fill="(.*?)"', svg)

    assert fills(first) == [pictures.DONE] * 2 and fills(second) == ["white", pictures.DONE]
    assert fills(whole) == fills(first) + fills(second)
    assert texts(first) == [] and texts(second) == ["continue here"]
    assert texts(whole).count("continue here") == 1 and texts(whole).count("A & B") == 3


def test_who_has_passed_nothing_is_told_to_begin(tmp_path):
    pictures.draw(tmp_path, THREE, {})
    assert texts((tmp_path / "map" / "00.svg").read_text()) == ["begin here"]


def test_lines_that_share_a_lane_never_meet_and_every_need_is_drawn():
    lanes = pictures.lanes_of(LESSONS)
    rows = [lesson.number for lesson in LESSONS]
    drawn = {(rows[row], rows[target]) for _, row, targets in lanes for target in targets}
    needs = {(need, lesson.number) for lesson in LESSONS for need in pictures.directly_needs(lesson, LESSONS)}
    assert needs - drawn == {
        (before, after) for before, after in needs if rows.index(after) == rows.index(before) + 1
    }
    for lane in {lane for lane, *_ in lanes}:
        spans = sorted((row, max(targets)) for one, row, targets in lanes if one == lane)
        assert all(end < begin for (_, end), (begin, _) in zip(spans, spans[1:]))


def test_no_line_passes_behind_a_box(tmp_path):
    """Lines stay left of the boxes, and arrows between neighbours in the gap."""
    pictures.draw(tmp_path, LESSONS, {})
    root = ElementTree.parse(tmp_path / "map" / "map.svg").getroot()
    boxes = [shape.attrib for shape in root.iter("{http://www.w3.org/2000/svg}rect") if "x" in shape.attrib]
    left = min(float(box["x"]) for box in boxes)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("stroke-width") == "2":
            places = re.findall(r"[MH](-?[\d.]+)", path.get("d"))
            assert places and all(0 < float(x) <= left for x in places)


def test_words_can_be_read_and_lines_seen_on_their_own_white():
    for colour in (*pictures.LINES, pictures.INK, pictures.QUIET, pictures.DONE):
        assert contrast(colour, "white") >= READABLE
    assert contrast(pictures.INK, pictures.OPEN) >= READABLE


def test_the_checks_of_every_lesson_fit_before_its_minutes():
    most = max(len(lesson.checks) for lesson in LESSONS)
    assert pictures.CHECKS + pictures.SPOT * most <= pictures.WIDE - pictures.MINUTES


def test_checks_of_a_companion_keep_nobody_from_the_next_lesson():
    first = replace(THREE[0], optional_checks=THREE[0].checks[-1:])
    passed = {"00": list(first.checks[:-1])}
    assert pictures.next_lesson([first, *THREE[1:]], passed) == THREE[1]
    assert pictures.next_lesson(THREE, passed) == THREE[0]
