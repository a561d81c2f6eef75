"""The map of the start page, `map/map.svg`: what needs what.

It is the same for everyone, and no part of it can be clicked, so none looks as if it could.  Its own white
ground makes it look the same on a dark page.
"""

from __future__ import annotations

from html import escape

from helpers.course.syllabus.numbers import TO_COME, before
from helpers.course.syllabus.outline import Lesson, directly_needs

FOLDER, MAP, JOB = "map", "map.svg", "job.png"
PARTS = {  # the course's parts, and the lesson with which each begins
    "What a step needs": "00",
    "One host": "04",
    "With less": "12",
    "Many hosts": "15",
    "The same elsewhere": "fsdp",
}
ROW, BOX, TITLE = 34, 24, 26  # pixels: from lesson to lesson, height of a lesson's line and of a part's title
LANE, WIDE = 18, 400  # pixels: between lines, from a lesson's number to the end of its minutes
LINES = ("#0072B2", "#B04E00", "#007A59", "#8A4F7D", "#5A5A00")  # on white, each at 4.5 to 1 or more
INK, QUIET = "#1A1A1A", "#595959"


def parts(lessons: list[Lesson]) -> dict[str, list[Lesson]]:
    """{title of a part of the course: its lessons}."""
    numbers = [lesson.number for lesson in lessons]
    begins = [numbers.index(first) for first in PARTS.values()]
    return {part: lessons[begin:end] for part, begin, end in zip(PARTS, begins, [*begins[1:], None])}


def the_map(lessons: list[Lesson]) -> str:
    """Lessons from top to bottom under the titles of their parts; an arrow leads to a lesson from each that
    it needs."""
    lanes, places = lanes_of(lessons), middles(lessons)
    left = 12 + LANE * (1 + max((lane for lane, *_ in lanes), default=0))
    shapes = []
    for number, (lane, row, targets) in enumerate(lanes):  # the inner first, and each arrives above the outer
        before = [target for _, _, others in lanes[:number] for target in others]
        ends = [places[target] - 8 + 8 * before.count(target) for target in targets]
        shapes += line(left, left - LANE * (lane + 1), places[row] + 9, ends, LINES[number % len(LINES)])
    for row, (lesson, middle) in enumerate(zip(lessons, places)):
        empties = empty_before(lessons, row)
        above = middle - ROW * len(empties)
        shapes += [
            words(left + 48, above - ROW / 2 - 9, part, QUIET, "bold")
            for part, first in PARTS.items()
            if lesson.number == first
        ]
        for place, empty in enumerate(empties):
            said = f"{empty}: to come; now in {TO_COME[empty][1]}"
            shapes.append(words(left + 48, above + ROW * place, said, QUIET, size=13))
        if row and lessons[row - 1].number in directly_needs(lesson, lessons):
            start, top = places[row - 1] + BOX / 2, middle - BOX / 2
            shapes += [f'<path d="M{left + 24} {start}V{top - 5}" stroke="{INK}" fill="none"/>']
            shapes += [f'<path d="M{left + 20} {top - 6}h8l-4 6z" fill="{INK}"/>']
        shapes += named(left, middle, lesson)
    return picture(left + WIDE + 16, places[-1] + ROW / 2, shapes)


def middles(lessons: list[Lesson]) -> list[float]:
    """The height of the middle of each lesson's line; a part's title stands above its first and above the
    numbers to come before it, for each of which a row is left."""
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
    Lanes count from the lessons outwards; lines that share one never meet."""
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
    """From a lesson down at x and to each that needs it, at these heights; a white rim parts it
    from lines that it crosses."""
    path = f"M{left} {start}H{x}V{max(ends)}" + "".join(f"M{x} {end}H{left - 7}" for end in ends)
    look = f'd="{path}" fill="none" stroke-linejoin="round"'
    return [
        f'<path {look} stroke="white" stroke-width="6"/>',
        f'<path {look} stroke="{colour}" stroke-width="2"/>',
        *(f'<path d="M{left - 8} {end - 4}v8l8 -4z" fill="{colour}"/>' for end in ends),
    ]


def named(left: float, middle: float, lesson: Lesson) -> list[str]:
    """A lesson's line: number, title and the minutes of its core."""
    return [
        words(left + 8, middle, lesson.number, INK, "bold"),
        words(left + 48, middle, lesson.title, INK),
        words(left + WIDE, middle, f"{lesson.minutes.core} min", QUIET, anchor="end"),
    ]


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
