"""The start page: the map and the tables that stand in `notebooks/index.ipynb`, and what this learner has
passed."""

from __future__ import annotations

from helpers.course.lesson.outline import Lesson, course, directly_needs
from helpers.course.lesson.pictures import FOLDER, MAP, PARTS, next_lesson
from helpers.course.lesson.progress import passed
from helpers.paths import in_work

NOTHING = "No check passed yet. Each lesson has some, and those that you pass are listed here."


def diagram(lessons: list[Lesson]) -> str:
    """The map: a picture of what needs what, in words where it cannot be seen."""
    needs = {lesson.number: directly_needs(lesson, lessons) for lesson in lessons}
    told = [f"{number} needs {' and '.join(direct)}" for number, direct in needs.items() if direct]
    return f"![What each lesson needs: {'; '.join(told)}]({FOLDER}/{MAP})"


def tables(lessons: list[Lesson]) -> list[str]:
    """A heading and a Markdown table for each part of the course: links, questions, papers, minutes; under
    the last one the sums."""
    numbers = [lesson.number for lesson in lessons]
    begins = [numbers.index(first) for first in PARTS.values()]
    parts = [lessons[begin:end] for begin, end in zip(begins, [*begins[1:], None])]
    shown = [table(title, part) for title, part in zip(PARTS, parts)]
    core, exercises, optional = (
        sum(getattr(lesson, kind) for lesson in lessons) / 60 for kind in ("core", "exercises", "optional")
    )
    hours = f"{core:.0f} hours of core, {exercises:.0f} of exercises, {optional:.0f} of companions"
    shown[-1] += f"\n\nAll lessons: {hours}."
    return shown


def table(title: str, lessons: list[Lesson]) -> str:
    """One part of the course."""
    heads = "| |lesson|checks\N{NO-BREAK SPACE}passed|its question|paper|core|exercises|companion|"
    rows = [f"### {title}", "", heads, "|---|---|---|---|---|--:|--:|--:|"]
    for lesson in lessons:
        link, paper = f"[{lesson.title}]({lesson.file})", lesson.paper or "–"
        more = f"[{lesson.optional}]({lesson.companion})" if lesson.companion else lesson.optional or "–"
        checks = f"![{len(lesson.checks)} checks]({FOLDER}/{lesson.number}.svg)"
        minutes = f"{lesson.core}|{lesson.exercises}|{more}"
        rows.append(f"|{lesson.number}|{link}|{checks}|{lesson.question}|{paper}|{minutes}|")
    return "\n".join(rows)


class Progress:
    """Which checks were passed, lesson by lesson; a notebook shows it as a table."""

    def __init__(self, lessons: list[Lesson], passed: dict[str, list[str]]):
        self.following = next_lesson(lessons, passed)
        self.rows = [
            (lesson, [name for name in lesson.checks if name in passed.get(lesson.number, ())])
            for lesson in lessons
            if lesson.checks
        ]

    def __repr__(self):
        passed = sum(len(names) for _, names in self.rows)
        checks = sum(len(lesson.checks) for lesson, _ in self.rows)
        return f"{passed} of {checks} checks passed" if passed else NOTHING

    def _repr_markdown_(self):
        if not any(names for _, names in self.rows):
            return NOTHING
        rows = [f"**{self!r}**", "", "| | lesson | passed | checks: ✓ passed, ○ to do |", "|---|---|---|---|"]
        for lesson, names in self.rows:
            marks = [f"{'✓' if check in names else '○'} {check.replace('_', ' ')}" for check in lesson.checks]
            link, share = f"[{lesson.title}]({lesson.file})", f"{len(names)} of {len(lesson.checks)}"
            link += " ← continue here" if lesson is self.following else ""
            rows.append(f"| {lesson.number} | {link} | {share} | {', '.join(marks)} |")
        return "\n".join(rows)


def progress() -> Progress:
    """What this learner has passed; nothing in the course's own `notebooks/`, which belong to nobody."""
    return Progress(course(), passed() if in_work() else {})
