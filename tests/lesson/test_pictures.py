"""The map as a picture: what needs what, in which part of the course."""

import re
from xml.etree import ElementTree

from helpers.course.lesson import index, pictures
from helpers.course.plots.drawing import READABLE, contrast
from helpers.course.syllabus.outline import course

LESSONS = course()


def test_the_map_and_the_tables_say_the_same_in_the_same_order():
    """Titles of parts, and under them lessons and numbers to come."""
    drawn = ElementTree.fromstring(pictures.the_map(LESSONS)).iter("{http://www.w3.org/2000/svg}text")
    heights = {text.text: float(text.get("y")) for text in drawn}
    beginnings = (re.match(r"\w+(?=:)|(?!\d+ min)[^:]+", text) for text in sorted(heights, key=heights.get))
    tables = "\n".join(index.tables(LESSONS))
    told = [title or number for title, number in re.findall(r"^### (.+)$|^\|(\w+)\|", tables, re.M)]
    assert [one[0] for one in beginnings if one and one[0] in told] == told


def test_nothing_on_the_map_looks_as_if_it_could_be_clicked():
    shapes = ElementTree.fromstring(pictures.the_map(LESSONS))
    assert [one.get("fill") for one in shapes.iter("{http://www.w3.org/2000/svg}rect")] == ["white"]


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


def test_no_line_passes_behind_a_lesson():
    """Lines stay left of the numbers, and arrows between neighbours in the gap."""
    root = ElementTree.fromstring(pictures.the_map(LESSONS))
    words = root.iter("{http://www.w3.org/2000/svg}text")
    left = min(float(text.get("x")) for text in words)
    for path in root.iter("{http://www.w3.org/2000/svg}path"):
        if path.get("stroke-width") == "2":
            places = re.findall(r"[MH](-?[\d.]+)", path.get("d"))
            assert places and all(0 < float(x) <= left for x in places)


def test_words_can_be_read_and_lines_seen_on_their_own_white():
    for colour in (*pictures.LINES, pictures.INK, pictures.QUIET):
        assert contrast(colour, "white") >= READABLE
