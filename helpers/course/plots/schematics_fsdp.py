"""Schematic of sharded parameters: which rank keeps which element, where parameters are cut by rows and where
they are cut flat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib
from helpers.course.plots.style import PARTS, STYLE, Plot, bare, new_figure, rectangle, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

APART = 2.2  # boxes between two parameters


def sharded_elements(
    ways: Mapping[str, Callable[[tuple[int, int], int], Sequence[int]]],
    shapes: Mapping[str, tuple[int, int]],
    ranks: int,
    title: str,
) -> Plot:
    """Every element of a few parameters as a box in the colour of the rank that keeps it: a panel for each
    way to cut.

    Args:
        ways: {panel: function of (shape, ranks) that returns the rank of every element, row by row}.
        shapes: {parameter: (rows, columns)}.
        ranks: N, at most 5.
        title: what the figure shows.
    """
    tall, wide = (
        max(rows for rows, _ in shapes.values()),
        sum(columns + APART for _, columns in shapes.values()),
    )
    said = []
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(ways), figsize=(0.32 * wide * len(ways), 0.7 + 0.32 * tall))
        figure.suptitle(title, fontsize=11, y=1.1)
        for axes, (way, owner) in zip([panels] if len(ways) == 1 else panels, ways.items()):
            left, words = 0.0, []
            for name, shape in shapes.items():
                owners = owner(shape, ranks)
                axes.text(left, -0.2, f"{name}\n{shape[0]} × {shape[1]}", fontsize=8, va="bottom")
                draw(axes, left, shape[1], owners)
                words.append(f"{name} " + ", ".join(f"{owners.count(rank)}" for rank in range(ranks)))
                left += shape[1] + APART
            axes.set(xlim=(-0.1, wide), ylim=(tall, -1.6), xticks=[], yticks=[], aspect="equal")
            axes.set_title(way, fontsize=9)
            bare(axes)
            said.append(f"{way}: {'; '.join(words)}")
    return Plot(figure, f"{title}. Elements on ranks 0 to {ranks - 1}. {'. '.join(said)}.")


def draw(axes: Axes, left: float, columns: int, owners: Sequence[int]) -> None:
    """A parameter's boxes, each with the number of its rank."""
    for place, rank in enumerate(owners):
        x, y = left + place % columns, place // columns
        rectangle(axes, (x, y), 0.94, 0.92, facecolor=PARTS[rank], edgecolor="none")
        ink = "black" if rank in (1, 2) else "white"
        write(axes, x + 0.47, y + 0.48, f"{rank}", color=ink, fontsize=7)
