"""The start page's pictures: the map, with what needs what, and each lesson's checks.

They lie in files beside the page, `map/map.svg` and `map/02.svg`, so that a check that was passed changes a
picture and not a page that is open.  Each has its own white ground, and so looks the same on a dark page.
The job's bars, `map/job.png`, are the same for everyone.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from helpers.course.syllabus.numbers import TO_COME, before
from helpers.course.syllabus.outline import Lesson, directly_needs
from helpers.paths import replace

if TYPE_CHECKING:
    from pathlib import Path

FOLDER, MAP, JOB = "map", "map.svg", "job.png"
PARTS = {  # the course's parts, and the lesson with which each begins
    "What a step needs": "00",
    "One host": "04",
    "With less": "12",
    "Many hosts": "15",
    "The same elsewhere": "fsdp",
}
Passed = dict[str, list[str]]  # {lesson: names of the checks passed}
ROW, BOX, TITLE = 34, 24, 26  # pixels: from lesson to lesson, height of a lesson's box and of a part's title
LANE, SPOT, TAG = 18, 12, 96  # pixels: between lines, between checks, width of the mark of the next lesson
WIDE, CHECKS, MINUTES = 536, 336, 64  # pixels: a lesson's box, where its checks begin, room for its minutes
LINES = ("#0072B2", "#B04E00", "#007A59", "#8A4F7D", "#5A5A00")  # on white, each at 4.5 to 1 or more
INK, QUIET, DONE, OPEN = "#1A1A1A", "#595959", "#007A59", "#EEF2F7"


def draw(folder: Path, lessons: list[Lesson], passed: Passed) -> None:
    """Write the pictures for what was passed into a folder's `map`."""
    marks = {next_lesson(lessons, passed): invitation(lessons, passed)}
    replace(folder / FOLDER / MAP, the_map(lessons, passed, marks))
    for lesson in lessons:
        replace(folder / FOLDER / f"{lesson.number}.svg", checks(lesson, passed, marks.get(lesson, "")))


def parts(lessons: list[Lesson]) -> dict[str, list[Lesson]]:
    """{title of a part of the course: its lessons}."""
    numbers = [lesson.number for lesson in lessons]
    begins = [numbers.index(first) for first in PARTS.values()]
    return {part: lessons[begin:end] for part, begin, end in zip(PARTS, begins, [*begins[1:], None])}


def next_lesson(lessons: list[Lesson], passed: Passed) -> Lesson | None:
    """Where to go on: at the furthest lesson of which a check was passed, or after it where all of its core
    were; None where none of any core is left."""
    begun = [at for at, lesson in enumerate(lessons) if done(lesson, passed)]
    furthest = begun[-1] if begun else 0
    in_turn = [*lessons[furthest:], *lessons[:furthest]]
    return next((lesson for lesson in in_turn if missing(lesson, passed)), None)


def missing(lesson: Lesson, passed: Passed) -> list[str]:
    """Checks of a lesson's core that were not passed."""
    known = {*passed.get(lesson.number, ()), *lesson.optional_checks}
    return [check for check in lesson.checks if check not in known]


def invitation(lessons: list[Lesson], passed: Passed) -> str:
    """The words that mark the next lesson."""
    return "continue here" if any(done(lesson, passed) for lesson in lessons) else "begin here"


def done(lesson: Lesson, passed: Passed) -> list[str]:
    """A lesson's checks that were passed."""
    return [check for check in lesson.checks if check in passed.get(lesson.number, ())]


def the_map(lessons: list[Lesson], passed: Passed, marks: dict[Lesson | None, str]) -> str:
    """Lessons from top to bottom under the titles of their parts, some with a mark; an arrow leads to a
    lesson from each that it needs."""
    lanes, places = lanes_of(lessons), middles(lessons)
    left = 12 + LANE * (1 + max((lane for lane, *_ in lanes), default=0))
    shapes = []
    for number, (lane, row, targets) in enumerate(lanes):  # the inner first, and each arrives above the outer
        before = [target for _, _, others in lanes[:number] for target in others]
        ends = [places[target] - 8 + 8 * before.count(target) for target in targets]
        shapes += line(left, left - LANE * (lane + 1), places[row] + 9, ends, LINES[number % len(LINES)])
    for row, (lesson, middle) in enumerate(zip(lessons, places)):
        shapes += [
            words(left + 48, middle - ROW / 2 - 9, part, QUIET, "bold")
            for part, first in PARTS.items()
            if lesson.number == first
        ]
        for place, empty in enumerate(empty_before(lessons, row), 1):
            said = f"{empty}: to come; now in {TO_COME[empty][1]}"
            shapes.append(words(left + 48, places[row - 1] + ROW * place, said, QUIET, size=13))
        if row and lessons[row - 1].number in directly_needs(lesson, lessons):
            start, top = places[row - 1] + BOX / 2, middle - BOX / 2
            shapes += [f'<path d="M{left + 24} {start}V{top - 5}" stroke="{INK}" fill="none"/>']
            shapes += [f'<path d="M{left + 20} {top - 6}h8l-4 6z" fill="{INK}"/>']
        shapes += box(left, middle, lesson, passed, marks.get(lesson, ""))
    return picture(left + WIDE + TAG + 16, places[-1] + ROW / 2, shapes)


def middles(lessons: list[Lesson]) -> list[float]:
    """The height of the middle of each lesson's box; a part's title stands above its first, and a row is left
    for each number to come."""
    places, below = [], 0.0
    for row, lesson in enumerate(lessons):
        below += ROW * len(empty_before(lessons, row)) + TITLE * (lesson.number in PARTS.values())
        places.append(below + ROW / 2)
        below += ROW
    return places


def empty_before(lessons: list[Lesson], row: int) -> list[str]:
    """Numbers to come between a lesson and the one above it."""
    return before(lessons[row].number, lessons[row - 1].number if row else None)


def lanes_of(lessons: list[Lesson]) -> list[tuple[int, int, list[int]]]:
    """(lane, row, rows of the lessons that need it and do not follow at once) of every lesson that has some.
    Lanes count from the boxes outwards; lines that share one never meet."""
    rows = {lesson.number: row for row, lesson in enumerate(lessons)}
    needed = {row: [] for row in rows.values()}
    for lesson in lessons:
        for need in directly_needs(lesson, lessons):
            needed[rows[need]].append(rows[lesson.number])
    found, ends = [], []
    for row, targets in needed.items():
        if later := [target for target in targets if target != row + 1]:
            lane = next((lane for lane, end in enumerate(ends) if end < row), len(ends))
            ends[lane : lane + 1] = [max(later)]
            found.append((lane, row, later))
    return sorted(found)


def line(left: int, x: int, start: float, ends: list[float], colour: str) -> list[str]:
    """From a lesson's box down at x and to each box that needs it, at these heights; a white rim parts it
    from lines that it crosses."""
    path = f"M{left} {start}H{x}V{max(ends)}" + "".join(f"M{x} {end}H{left - 7}" for end in ends)
    look = f'd="{path}" fill="none" stroke-linejoin="round"'
    return [
        f'<path {look} stroke="white" stroke-width="6"/>',
        f'<path {look} stroke="{colour}" stroke-width="2"/>',
        *(f'<path d="M{left - 8} {end - 4}v8l8 -4z" fill="{colour}"/>' for end in ends),
    ]


def box(left: int, middle: float, lesson: Lesson, passed: Passed, mark: str) -> list[str]:
    """A lesson's box with number, title, checks and the minutes of its core."""
    edge = f'stroke="{LINES[0]}" stroke-width="2.5"' if mark else f'stroke="{QUIET}"'
    place = f'x="{left}" y="{middle - BOX / 2}" width="{WIDE}" height="{BOX}"'
    return [
        f'<rect {place} rx="4" fill="{OPEN}" {edge}/>',
        words(left + 8, middle, lesson.number, INK, "bold"),
        words(left + 48, middle, lesson.title, INK),
        *spots(left + CHECKS, middle, lesson, passed),
        words(left + WIDE - 8, middle, f"{lesson.minutes.core} min", QUIET, anchor="end"),
        *(tag(left + WIDE + 8, middle, mark) if mark else []),
    ]


def checks(lesson: Lesson, passed: Passed, mark: str) -> str:
    """A lesson's checks as a picture for its row of a table, on the next lesson's the mark beside them."""
    end = SPOT * len(lesson.checks) + 8
    shapes = spots(4, 11, lesson, passed) + (tag(end, 11, mark) if mark else [])
    return picture(end + (TAG + 4 if mark else 0), 22, shapes)


def spots(left: float, middle: float, lesson: Lesson, passed: Passed) -> list[str]:
    """A spot for each check, full where it was passed."""
    fills = [DONE if check in done(lesson, passed) else "white" for check in lesson.checks]
    look = f'r="4.2" stroke="{DONE}" stroke-width="1.4"'
    return [
        f'<circle cx="{left + SPOT * (at + 0.5)}" cy="{middle}" {look} fill="{fill}"/>'
        for at, fill in enumerate(fills)
    ]


def tag(left: float, middle: float, mark: str) -> list[str]:
    """The mark of the next lesson, in words on its own ground."""
    ground = f'<rect x="{left}" y="{middle - 10}" width="{TAG}" height="20" rx="10" fill="{LINES[0]}"/>'
    return [ground, words(left + TAG / 2, middle, mark, "white", anchor="middle", size=13)]


def words(
    x: float,
    middle: float,
    text: str,
    colour: str,
    weight: str = "normal",
    anchor: str = "start",
    size: int = 14,
) -> str:
    place = f'x="{x}" y="{middle + 0.35 * size}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" font-weight="{weight}" fill="{colour}">{escape(text)}</text>'


def picture(width: float, height: float, shapes: list[str]) -> str:
    """An SVG on white."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
    ground = f'<rect width="{width}" height="{height}" rx="4" fill="white"/>'
    return "\n".join([f'{head} font-family="Helvetica, Arial, sans-serif">', ground, *shapes, "</svg>", ""])
