"""What a lesson's cells hold, counted, and the minutes that it takes by the one rule of the course.

A cell is a dict as in a notebook's file, with its source as one text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WORDS, CELLS = 120, 2  # words that one reads in a minute, cells that one runs in a minute
RULE = (
    f"Minutes follow one rule: reading {WORDS} words, writing a line, or running {CELLS} cells takes a "
    "minute; a lesson's sum is rounded to five minutes, and each exercise, like each section of a companion, "
    "states its own."
)
EXERCISES = re.compile(r"^## Exercise", re.M)  # where a lesson's core ends
STATED = re.compile(r"Difficulty \d of 5, (\d+) minutes")
STUB = re.compile(r"^\s*\.\.\.\s*#", re.M)
GIVEN_LINES = ("def ", "import ", "from ", "@")  # of a solution: its stub has them


@dataclass(frozen=True)
class Minutes:
    """Of one lesson."""

    core: int
    writing: int  # of those of the core
    exercises: int

    def row(self) -> str:
        """The row of the table with which the lesson opens."""
        return f"| Minutes | {self.core} core ({self.writing} of them writing), {self.exercises} exercises |"


def minutes_of(cells: Sequence[dict]) -> Minutes:
    """A lesson's minutes by the rule: one for each 120 words of its texts, folded ones too; one for each line
    of the course's own answers; half a one for each cell, which covers its run and a look at what it shows.
    From the heading of the exercises on, only the minutes count that each exercise states.
    """
    end = next((at for at, cell in enumerate(cells) if EXERCISES.search(cell["source"])), len(cells))
    core, exercises = cells[:end], sources(cells[end:], "text")
    reading = sum(map(words_in, sources(core, "text"))) / WORDS
    writing = len(written_lines(core))
    running = sum(kind_of(cell) in ("given", "stub", "check") for cell in core) / CELLS
    stated = sum(int(minutes) for text in exercises for minutes in STATED.findall(text))
    return Minutes(in_fives(reading + writing + running), in_fives(writing), stated)


def in_fives(minutes: float) -> int:
    """The nearest multiple of five."""
    return 5 * round(minutes / 5)


def words_in(text: str) -> int:
    """How many words one reads: neither code, tables, headings nor markup."""
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = re.sub(r"^[|#].*$|<[^>]+>", "", text, flags=re.M)
    return len(re.sub(r"\$[^$]*\$|`[^`]*`|\]\([^)]*\)", "x", text).split())


def lines_of(text: str) -> list[str]:
    """Lines of code without comments and docstrings."""
    text = re.sub(r'""".*?"""', "", text, flags=re.S)
    return [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def written_lines(cells: Iterable[dict]) -> list[str]:
    """The lines of the course's answers that a stub leaves to the learner."""
    cells = list(cells)
    shown = {line.strip() for text in sources(cells, "stub") for line in lines_of(text)}
    lines = [line for text in sources(cells, "written") for line in lines_of(text)]
    return [line for line in lines if line.strip() not in shown and not line.lstrip().startswith(GIVEN_LINES)]


def kind_of(cell: dict) -> str:
    """ "text", "written" (an answer of the course), "check", "stub" or "given"."""
    source = cell["source"]
    if cell["cell_type"] == "markdown":
        return "text"
    if "solution" in cell["metadata"].get("tags", []):
        return "written"
    if ".check(" in source and len(lines_of(source)) <= 2:
        return "check"
    return "stub" if STUB.search(source) else "given"


def sources(cells: Iterable[dict], kind: str) -> list[str]:
    """The sources of the cells of a kind."""
    return [cell["source"] for cell in cells if kind_of(cell) == kind]
