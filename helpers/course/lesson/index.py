"""The start page: the map and the tables that stand in `notebooks/index.ipynb`, and what this learner has
passed."""

from __future__ import annotations

from pathlib import Path

from helpers.course.lesson.outline import Lesson, course, directly_needs
from helpers.course.lesson.progress import passed
from helpers.paths import in_work

CLOSE = '%%{init: {"flowchart": {"rankSpacing": 24, "nodeSpacing": 24, "padding": 8}}}%%'
PARTS = {  # the course's parts, and the lesson with which each begins
    "The basics": "00",
    "The model in parts": "05",
    "ZeRO": "07",
    "Little memory, long texts": "11",
    "All together": "13",
    "The same elsewhere": "fsdp",
}
NOTHING = "No check passed yet. Each lesson has some, and those that you pass are listed here."


def diagram(lessons: list[Lesson]) -> str:
    """What needs what, as a Mermaid diagram in Markdown; an arrow leads from a lesson to one that builds on
    it."""
    # A word a line makes the boxes narrow, so that the whole fits with large letters.
    titles = {lesson.number: lesson.title.replace(" ", "<br>") for lesson in lessons}
    boxes = [f'  {number}["{number}<br>{title}"]' for number, title in titles.items()]
    needs = {lesson.number: directly_needs(lesson, lessons) for lesson in lessons}
    arrows = [f"  {need}-->{number}" for number, direct in needs.items() for need in direct]
    told = [f"{number} needs {' and '.join(direct)}" for number, direct in needs.items() if direct]
    title = ["  accTitle: What each lesson needs", "  accDescr: " + "; ".join(told)]
    return "\n".join(["```mermaid", CLOSE, "flowchart LR", *title, *boxes, *arrows, "```"])


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
    heads = "| |lesson|its question|paper|core|exercises|companion|"
    rows = [f"### {title}", "", heads, "|---|---|---|---|--:|--:|--:|"]
    for lesson in lessons:
        link, paper = f"[{lesson.title}]({lesson.file})", lesson.paper or "–"
        more = f"[{lesson.optional}]({lesson.companion})" if lesson.companion else lesson.optional or "–"
        minutes = f"{lesson.core}|{lesson.exercises}|{more}"
        rows.append(f"|{lesson.number}|{link}|{lesson.question}|{paper}|{minutes}|")
    return "\n".join(rows)


class Progress:
    """Which checks were passed, lesson by lesson; a notebook shows it as a table."""

    def __init__(self, lessons: list[Lesson], passed: dict[str, list[str]]):
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
            rows.append(f"| {lesson.number} | {link} | {share} | {', '.join(marks)} |")
        return "\n".join(rows)


def progress() -> Progress:
    """What this learner has passed; nothing in the course's own `notebooks/`, which belong to nobody."""
    return Progress(course(), passed() if in_work() else {})


def outputs(folder: Path) -> list[dict]:
    """What the learner has passed as a code cell's stored output, so that their start page shows it when it
    opens."""
    shown = Progress(course(folder), passed())
    data = {"text/markdown": [shown._repr_markdown_()], "text/plain": [repr(shown)]}
    return [{"output_type": "execute_result", "data": data, "execution_count": None, "metadata": {}}]
