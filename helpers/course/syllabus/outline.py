"""The course as data, read from the lessons themselves: what each asks, what it needs, how long it takes,
what it checks.

A lesson's first cell holds a heading, its question and a table whose row `Needs` names lessons; its minutes
are counted.  What is optional stands in its companion, `more/` beside it under the same name.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.course.syllabus.counting import Minutes, minutes_of
from helpers.paths import MORE, NOTEBOOKS

if TYPE_CHECKING:
    from collections.abc import Iterator

CLAIMS = "appendix_claims.ipynb"
NUMBERS = re.compile(r"\b(\d\d)\b(?: to (\d\d)\b)?")


@dataclass(frozen=True)
class Lesson:
    """One lesson."""

    number: str  # "02"; of an appendix its name, "fsdp"
    file: str  # name of the notebook
    title: str  # its heading up to a colon
    question: str  # what it answers, one sentence
    minutes: Minutes
    optional: int  # minutes, of its companion
    needs: tuple[str, ...]  # numbers of the lessons to have read before
    checks: tuple[str, ...]  # names of the exercises that are checked, in order, the companion's too
    companion: str = ""  # "more/02_training_memory.ipynb", where there is one
    optional_checks: tuple[str, ...] = ()  # those of `checks` that the companion has


def course(folder: Path = NOTEBOOKS) -> list[Lesson]:
    """Every lesson of a folder in order."""
    return [read(path) for path in notebooks(folder)]


def notebooks(folder: Path = NOTEBOOKS) -> list[Path]:
    """A folder's lessons by their numbers, then its appendices that are lessons by their names."""
    appendices = sorted(path for path in folder.glob("appendix_*.ipynb") if path.name != CLAIMS)
    return [*sorted(folder.glob("[0-9][0-9]_*.ipynb")), *appendices]


def beside(folder: Path = NOTEBOOKS) -> list[Path]:
    """What stands beside a folder's lessons: companions, and whatever else is in `more/`, and the page of
    claims."""
    return [*sorted((folder / MORE).glob("*.ipynb")), *folder.glob(CLAIMS)]


def companion_of(lesson: Path) -> Path:
    """Where a lesson's companion is, or would be."""
    return lesson.parent / MORE / lesson.name


def number_of(path: Path) -> str:
    """What a page is called by: "02" of `02_training_memory.ipynb`, "more/02" of its companion, "fsdp" of
    `appendix_fsdp.ipynb`."""
    number = re.match(r"\d\d(?=_)|.+", path.stem.removeprefix("appendix_")).group()
    return f"{MORE}/{number}" if path.parent.name == MORE else number


def cells_of(path: Path) -> list[dict]:
    """The cells of a notebook, each with its source as one text."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def read(path: Path) -> Lesson:
    """Read one lesson, and of its companion the minutes and the checks; an opening without what it must say
    raises ValueError."""
    companion = companion_of(path)
    cells, more = cells_of(path), cells_of(companion) if companion.exists() else []
    rows = {
        "heading": r"^# ([^:\n]+)",
        "question": r"\*\*The question:\*\* (.+)$",
        "needs": r"^\| Needs \| (.+) \|$",
    }
    said = {name: re.search(pattern, cells[0]["source"], re.M) for name, pattern in rows.items()}
    if lacking := [name for name, match in said.items() if not match]:
        raise ValueError(f"{path.name}: its first cell lacks the {', the '.join(lacking)}")
    heading, question, needs = (match[1] for match in said.values())
    core, every = checked(cells), checked([*cells, *more])
    return Lesson(
        number=number_of(path),
        file=path.name,
        title=heading,
        question=question[0].upper() + question[1:],
        minutes=minutes_of(cells),
        optional=int(re.search(r"\| Minutes \| (\d+)", more[0]["source"])[1]) if more else 0,
        needs=tuple(between(needs)),
        checks=every,
        companion=companion.relative_to(path.parent).as_posix() if more else "",
        optional_checks=tuple(name for name in every if name not in core),
    )


def checked(cells: list[dict]) -> tuple[str, ...]:
    """Names of the exercises that cells check, in order."""
    code = "\n".join(cell["source"] for cell in cells)
    return tuple(dict.fromkeys(re.findall(r"exercises\.(\w+)\.check\(", code)))


def between(text: str) -> Iterator[str]:
    """Lessons that a text names: "lessons 00 to 02, and 07" gives 00, 01, 02, 07."""
    for first, last in NUMBERS.findall(text):
        yield from (f"{number:02}" for number in range(int(first), int(last or first) + 1))


def directly_needs(lesson: Lesson, lessons: list[Lesson]) -> list[str]:
    """What a lesson needs and none of its other needs brings along: the arrows of a map."""
    brought = {further for other in lessons if other.number in lesson.needs for further in other.needs}
    return [need for need in lesson.needs if need not in brought]
