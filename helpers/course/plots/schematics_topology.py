"""Ranks of several axes on machines: who talks to whom along which axis, and over which lines the cable is
crossed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import matplotlib
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from helpers.course.plots.style import LINES, STYLE, Plot, arrow, new_figure, rounded, write
from helpers.tools.theory.combined import coordinates, groups_along

LOOKS = {"pipe": (LINES[1], "-"), "data": (LINES[2], "--"), "model": (LINES[0], ":")}


def placements(orders: Sequence[dict[str, int]], each: int, title: str) -> Plot:
    """Ranks in rows, a row for each machine, and a line between neighbours in each group: a panel for each
    order of the axes.

    Args:
        orders: list of axes, each {name: size} from the outermost to the innermost; the names are pipe, data,
            model.
        each: ranks on a machine.
        title: what the figure shows.
    """
    ranks, one = prod(orders[0].values()), len(orders) == 1
    height = 1.2 + 1.25 * (ranks // each) if one else 0.6 + 1.05 * (ranks // each)
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(orders), figsize=(max(6.4, 0.85 * each * len(orders) + 0.8), height))
        for axes, panel in zip(orders, [panels] if one else panels):
            _draw_order(panel, axes, each, ranks)
        names = {"pipe": "pipeline", "data": "data parallel", "model": "tensor parallel"}
        handles = [
            Line2D(
                [],
                [],
                color=LOOKS[name][0],
                linestyle=LOOKS[name][1],
                linewidth=2.5,
                label=f"{name}: {names[name]}",
            )
            for name in orders[0]
        ]
        figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.04), ncols=3, fontsize=9)
        figure.suptitle(title, fontsize=11)
    said = "; ".join(f"{', '.join(axes)}: {_crossing(axes, each)}" for axes in orders)
    return Plot(
        figure, f"{title}. Pairs of neighbours on different machines, axes from the outermost: {said}."
    )


def _pairs(name, axes):
    for group in groups_along(name, axes):
        yield from zip(group, group[1:])


def _crossing(axes, each):
    counts = {name: sum(here // each != there // each for here, there in _pairs(name, axes)) for name in axes}
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _draw_order(panel, axes, each, ranks):
    places = {rank: (rank % each, -1.25 * (rank // each)) for rank in range(ranks)}
    for machine in range(ranks // each):
        rounded(
            panel,
            (-0.45, -1.25 * machine - 0.36),
            each - 0.1,
            0.78,
            pad=0.04,
            facecolor="#8888881A",
            edgecolor="#888888",
        )
        write(panel, -0.62, -1.25 * machine, f"machine {machine}", rotation=90, fontsize=8)
    for name in axes:
        colour, dash = LOOKS[name]
        for here, there in _pairs(name, axes):
            near = here // each == there // each
            bend = 0 if not near or there - here == 1 else -0.36 if here % 2 == 0 else 0.36
            arrow(
                panel,
                places[here],
                places[there],
                arrowstyle="-",
                connectionstyle=f"arc3,rad={bend}",
                color=colour,
                linestyle=dash,
                linewidth=1.6 if near else 3.2,
                zorder=1,
            )
    for rank, (x, y) in places.items():
        panel.add_patch(Circle((x, y), 0.24, facecolor="white", edgecolor="#444444", zorder=3))
        place = coordinates(rank, axes)
        write(panel, x, y + 0.07, str(rank), fontsize=9, weight="bold", zorder=4)
        write(panel, x, y - 0.1, " ".join(str(place[name]) for name in axes), fontsize=7, zorder=4)
    panel.set(xlim=(-0.8, each - 0.4), ylim=(-1.25 * (ranks // each - 1) - 0.5, 0.55), aspect="equal")
    panel.set_title(", ".join(axes), fontsize=9)
    panel.axis("off")
