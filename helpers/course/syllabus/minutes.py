"""Write the minutes of the lessons where they are told: `python -m helpers.course.syllabus.minutes [04 ...]`.

Each lesson named gets the row of its opening table, by default all of them; the README gets every lesson's.
The start page has them after `make refresh LESSON=index`.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from helpers.course.syllabus.outline import Lesson, course, notebooks, number_of, read
from helpers.paths import ROOT, replace

if TYPE_CHECKING:
    from pathlib import Path

ROW = re.compile(r"\| Minutes \| [^|\n]* \|")


def write_row(lesson: Path) -> None:
    """Write the row of a lesson's opening table."""
    replace(lesson, ROW.sub(read(lesson).minutes.row(), lesson.read_text(encoding="utf-8"), count=1))


def in_readme(text: str, lessons: list[Lesson]) -> str:
    """The README with these lessons' minutes, core and exercises."""
    for lesson in lessons:
        place = rf"(\(notebooks/{lesson.file}\) \|[^|\n]*\|) \d+ \| \d+ \|"
        text = re.sub(place, rf"\1 {lesson.minutes.core} | {lesson.minutes.exercises} |", text)
    return text


def main(*numbers: str) -> None:
    known = {number_of(path): path for path in notebooks()}
    if unknown := set(numbers) - set(known):
        sys.exit(f"no lesson {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    for number in numbers or known:
        write_row(known[number])
    readme = ROOT / "README.md"
    replace(readme, in_readme(readme.read_text(encoding="utf-8"), course()))


if __name__ == "__main__":
    main(*sys.argv[1:])
