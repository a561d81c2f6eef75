"""Collectives that the ranks of a job entered, in order: which met which, and who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import (
    blank,
    box,
    ink,
    legend_under,
    name_rows,
    new_figure,
    rank_names,
    swatches,
    write,
)
from helpers.course.plots.style import WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDS = ("returned", "raised")  # beginnings of a last note
MEETS, ODD = "#56B4E9", "#E69F00"


@in_style
def meeting(notes: Sequence[Sequence[str]], title: str) -> Plot:
    """A row for each rank, a column for each collective: those in one column meet, and a column in which
    ranks differ has another color.  A rank that did not end waits in its last one; where others wait for a
    rank, its place is framed.

    Args:
        notes: for each rank the collectives that it entered, in order, "all_reduce in epoch", then
            "returned", "raised ..." or nothing.

    Raises:
        ValueError: no rank, or none that entered anything.
    """
    calls = [[note for note in rank if not note.startswith(ENDS)] for rank in notes]
    ends = [next((note for note in rank if note.startswith(ENDS)), "") for rank in notes]
    if not any(calls):
        raise ValueError("there is nothing to draw: no rank entered a collective")
    columns = [MEETS if len(set(column) - {None}) == 1 else ODD for column in zip_longest(*calls)]
    figure, axes = new_figure(WIDE, 1.1 + 0.55 * len(notes))
    for row, (names, end) in enumerate(zip(calls, ends)):
        _draw(axes, row, names, end, columns)
    for column in range(len(columns)):
        write(axes, column + 0.5, -0.18, f"{column + 1}.", fontsize=8)
    beyond = any(end and len(names) == len(columns) for names, end in zip(calls, ends))
    blank(axes, xlim=(-0.02, len(columns) + (0.9 if beyond else 0.02)), ylim=(len(notes), -0.4))
    name_rows(axes, rank_names(len(notes)))
    axes.set_title(title, fontsize=11)
    if ODD in columns:
        looks = {"ranks entered the same": (MEETS, ""), "ranks differ": (ODD, "")}
        legend_under(figure, len(looks), swatches(looks))
    told = [_told(names, end) for names, end in zip(calls, ends)]
    said = "; ".join(f"{name} {words}" for name, words in zip(rank_names(len(notes)), told))
    return Plot(figure, f"{title}. {said}.")


def _draw(axes: Axes, row: int, names: Sequence[str], end: str, columns: Sequence[str]) -> None:
    for column, (name, colour) in enumerate(zip(names, columns)):
        waits = not end and column == len(names) - 1
        look = {"hatch": "//", "edgecolor": "white", "linewidth": 0} if waits else {}
        box(axes, column + 0.03, row + 0.1, 0.94, 0.8, colour, **look)
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 1}
        words = name.replace(" in ", ": waits\nin " if waits else "\nin ", 1)
        write(axes, column + 0.5, row + 0.5, words, fontsize=8.5, color=ink(colour), bbox=behind)
    at = len(names)
    if end and at < len(columns):
        frame = {"edgecolor": WRONG, "linestyle": "--", "linewidth": 2}
        box(axes, at + 0.03, row + 0.1, 0.94, 0.8, "white", **frame)
    if end:
        write(axes, at + 0.5, row + 0.5, end, fontsize=8.5)


def _told(names: Sequence[str], end: str) -> str:
    listed = ", ".join(names) or "no collective"
    return f"{listed}, then {end}" if end else f"{listed} (waits)"
