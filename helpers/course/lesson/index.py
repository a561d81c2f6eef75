"""The start page, `notebooks/index.ipynb`: its texts that are made from the lessons, and where this learner
goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.course.lesson import pictures
from helpers.course.lesson.progress import passed
from helpers.course.syllabus import routes
from helpers.course.syllabus.counting import RULE
from helpers.course.syllabus.numbers import TO_COME, before
from helpers.course.syllabus.outline import Lesson, course, directly_needs
from helpers.paths import in_work, replace

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.course.plots.style import Plot

SPACE = "\N{NO-BREAK SPACE}"
FOLDER, MAP, JOB = "map", "map.svg", "job.png"  # pictures beside the page
ARROWS = "An arrow leads from a lesson to one that builds on it."
Passed = dict[str, list[str]]  # {lesson: names of the checks passed}
PLANS = {"02": "1 GPU", "04": "stage 0", "07": "stage 1", "08": "stage 2", "09": "stage 3"}  # of the job


def texts(lessons: list[Lesson]) -> dict[str, list[str]]:
    """{tag: the texts of the page's cells that have it, in order}."""
    return {
        "job": [f"![{job(lessons).sentence}]({FOLDER}/{JOB})\n\n{needed()}"],
        "routes": [routes.table(lessons)],
        "diagram": [diagram(lessons)],
        "table": tables(lessons),
    }


def draw(folder: Path, lessons: list[Lesson]) -> None:
    """Write the page's pictures into a folder's `map`."""
    replace(folder / FOLDER / MAP, pictures.the_map(lessons))
    replace(folder / FOLDER / JOB, job(lessons).png)


def job(lessons: list[Lesson]) -> Plot:
    """The job's bar after each lesson that changes it."""
    from helpers.course.job import plan
    from helpers.course.job.picture import job_bars

    bars = {}
    for lesson in lessons:
        if name := PLANS.get(lesson.number):
            gpus = plan(name).gpus
            bars[f"{lesson.number} {lesson.title}\n({gpus} GPU{'s' * (gpus > 1)})"] = name
    return job_bars(bars, "From lesson 07 on the job fits")


def needed() -> str:
    """The bars' lengths, for a narrow screen."""
    from helpers.course.job.picture import budget, card_of

    _, memory = card_of(PLANS["02"])
    bars = {number: budget(plan).needed for number, plan in PLANS.items()} | {"the card": memory}
    return " · ".join(f"{name}:{SPACE}{size / 1e9:.1f}{SPACE}GB" for name, size in bars.items())


def diagram(lessons: list[Lesson]) -> str:
    """The map: a picture of what needs what, in words where it cannot be seen."""
    needs = {lesson.number: directly_needs(lesson, lessons) for lesson in lessons}
    told = [f"{number} needs {' and '.join(direct)}" for number, direct in needs.items() if direct]
    return f"{ARROWS}\n\n![What each lesson needs: {'; '.join(told)}]({FOLDER}/{MAP})"


def tables(lessons: list[Lesson]) -> list[str]:
    """A heading and a Markdown table for each part of the course; under the last the sums, and their rule."""
    shown, files = [], {lesson.number: lesson.file for lesson in lessons}
    previous = None
    for title, part in pictures.parts(lessons).items():
        shown.append(table(title, part, files, previous))
        previous = part[-1].number
    core, exercises, optional = (
        f"{sum(minutes) / 60:.0f}"
        for minutes in zip(*((one.minutes.core, one.minutes.exercises, one.optional) for one in lessons))
    )
    hours = f"{core} hours of core, {exercises} of exercises, {optional} of companions"
    shown[-1] += f"\n\nAll lessons: {hours}. {RULE}"
    return shown


def table(title: str, lessons: list[Lesson], files: dict[str, str], previous: str | None = None) -> str:
    """One part of the course: links, questions, minutes; in a row of its own, each number to come.

    Args:
        files: {number: notebook} of the whole course.
        previous: the number of the last lesson of the part before.
    """
    rows = [f"### {title}", "", "| |lesson and its question|minutes|", "|---|---|--:|"]
    for lesson in lessons:
        for empty in before(lesson.number, previous):
            name, holder = TO_COME[empty]
            rows.append(f"|{empty}|*{name}: to come; now in [lesson {holder}]({files[holder]})*||")
        previous = lesson.number
        minutes = [str(lesson.minutes.core), str(lesson.minutes.exercises)]
        minutes += [f"[{lesson.optional}]({lesson.companion})"] if lesson.companion else []
        link = f"[{lesson.title}]({lesson.file})<br>{lesson.question}"
        rows.append(f"|{lesson.number}|{link}|{f'{SPACE}+{SPACE}'.join(minutes)}|")
    return "\n".join(rows)


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


def spots(lesson: Lesson, passed: Passed) -> str:
    """A spot for each check, full where it was passed: "●○○ 1 of 3"."""
    known = done(lesson, passed)
    drawn = "".join("●" if check in known else "○" for check in lesson.checks)
    return f"{drawn} {len(known)} of {len(lesson.checks)}"


class Progress:
    """Where to go on and what is to do there, then every lesson with its spots; a notebook shows links."""

    def __init__(self, lessons: list[Lesson], passed: Passed):
        all_passed = sum(len(done(lesson, passed)) for lesson in lessons)
        every = sum(len(lesson.checks) for lesson in lessons)
        said = f"In all, {all_passed} of {every} checks are passed."
        invited, words = next_lesson(lessons, passed), invitation(lessons, passed)
        if invited:
            marks = {
                name: f"{'●' if name in done(invited, passed) else '○'} {name.replace('_', ' ')}"
                for name in invited.checks
            }
            optional = [marks.pop(name) for name in invited.optional_checks]
            marks = [*marks.values(), *([f"in its companion {', '.join(optional)}"] if optional else [])]
            link = f"[{invited.number} {invited.title}]({invited.file})"
            said = f"{words.capitalize()}: {link} ({', '.join(marks)}). {said}"
        rows = [
            f"|{lesson.number}|[{lesson.title}]({lesson.file})"
            f"|{spots(lesson, passed)}{f' **{words}**' * (lesson == invited)}|"
            for lesson in lessons
        ]
        self.said = "\n".join([said, "", "| |lesson|checks|", "|---|---|---|", *rows])

    def __repr__(self):
        return self.said

    _repr_markdown_ = __repr__


def progress() -> Progress:
    """Where this learner goes on; in the course's own `notebooks/`, which are nobody's, at the beginning."""
    return Progress(course(), passed() if in_work() else {})
