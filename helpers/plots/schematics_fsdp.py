"""Schematic of sharded parameters: which rank keeps which element, where parameters are cut by rows and where they are cut flat."""

from __future__ import annotations

import matplotlib
from matplotlib.patches import Rectangle
from helpers.plots.style import PARTS, STYLE, Plot, new_figure


def sharded_elements(ways, shapes, ranks, title):
    """Every element of a few parameters as a box in the colour of the rank that keeps it: a panel for each way to cut.

    Args:
        ways: {panel: function of (shape, ranks) that returns the rank of every element, row by row}.
        shapes: {parameter: (rows, columns)}.
        ranks: N, at most 5.
        title: what the figure shows.
    """
    tall, wide = sum(rows + 1.4 for rows, _ in shapes.values()), max(columns for _, columns in shapes.values())
    said = []
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(ways), figsize=(3.4 * len(ways), 0.8 + 0.24 * tall))
        figure.suptitle(title, fontsize=11, y=1.06)
        for axes, (way, owner) in zip([panels] if len(ways) == 1 else panels, ways.items()):
            top, words = 0.0, []
            for name, (rows, columns) in shapes.items():
                ranks_of = owner((rows, columns), ranks)
                axes.text(0, top - 0.15, f"{name}, {rows} × {columns}", fontsize=8, va="bottom")
                for place, rank in enumerate(ranks_of):
                    corner = (place % columns, top + place // columns)
                    axes.add_patch(Rectangle(corner, 0.94, 0.9, facecolor=PARTS[rank], edgecolor="none"))
                    axes.text(
                        corner[0] + 0.47,
                        corner[1] + 0.47,
                        f"{rank}",
                        color="black" if rank in (1, 2) else "white",
                        fontsize=7,
                        ha="center",
                        va="center",
                    )
                words.append(f"{name} " + ", ".join(f"{ranks_of.count(rank)}" for rank in range(ranks)))
                top += rows + 1.4
            axes.set(xlim=(-0.1, wide), ylim=(top - 1.3, -1), xticks=[], yticks=[], aspect="equal")
            axes.set_title(way, fontsize=9)
            axes.grid(False)
            axes.spines[:].set_visible(False)
            said.append(f"{way}: {'; '.join(words)}")
    return Plot(figure, f"{title}. Elements on ranks 0 to {ranks - 1}. {'. '.join(said)}.")
