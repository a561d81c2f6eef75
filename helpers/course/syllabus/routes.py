"""Routes through the course for who has a few hours, two days, or a week."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from helpers.course.syllabus.outline import Lesson


@dataclass(frozen=True)
class Route:
    """What to take in so much time."""

    time: str  # with its hours
    take: str  # in words; a lesson's number becomes a link
    gain: str  # what you can do then
    written: tuple[str, ...] = ()  # numbers of the lessons done whole, but for their exercises
    read: tuple[str, ...] = ()  # of those in which every stub stays open
    everything: bool = False  # all lessons, with their exercises

    def minutes(self, lessons: list[Lesson]) -> int:
        """How long it takes."""
        of = {lesson.number: lesson.minutes for lesson in lessons}
        if self.everything:
            return sum(each.core + each.exercises for each in of.values())
        written = sum(of[number].core for number in self.written)
        return written + sum(of[number].core - of[number].writing for number in self.read)


ROUTES = (
    Route(
        "3 hours",
        "read and run 00, 02 and 07, without writing",
        "know what a rank is and what fills a GPU, and have seen how the job comes to fit",
        read=("00", "02", "07"),
    ),
    Route(
        "two long days, 11 hours in all",
        "00, 01, 02, 03, 04, 07 and 08, without their exercises",
        "have written data parallelism, ZeRO-1 and ZeRO-2, and know why they are right",
        written=("00", "01", "02", "03", "04", "07", "08"),
    ),
    Route(
        "a week of 30 hours",
        "every lesson with its exercises, in order",
        "can plan a training on many hosts, and say where it goes wrong",
        everything=True,
    ),
)


def table(lessons: list[Lesson]) -> str:
    """The routes as a Markdown table, with links and hours."""
    files = {lesson.number: lesson.file for lesson in lessons}
    rows = ["|you have|take|then you|", "|---|---|---|"]
    for route in ROUTES:
        take = re.sub(r"\b\d\d\b", lambda found: f"[{found[0]}]({files[found[0]]})", route.take)
        hours = f"{route.minutes(lessons) / 60:.1f}\N{NO-BREAK SPACE}hours"
        rows.append(f"|{route.time}|{take}: {hours}|{route.gain}|")
    return "\n".join(rows)
