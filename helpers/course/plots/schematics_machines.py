"""Schematics of processes on machines: a ring over a cable, the groups of several axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from math import prod
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from helpers.course.plots.drawing import (
    arrow,
    darkened,
    disc,
    legend_below,
    new_panels,
    rounded,
    write,
)
from helpers.course.plots.style import LINES, Plot, in_style
from helpers.tools.theory.combined import coordinates, groups_along

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSIDE = {"color": "#888888", "linewidth": 1.4}  # messages on one machine
ACROSS = {"color": "#D55E00", "linewidth": 2.2, "linestyle": "--"}  # messages over the cable
MACHINE = {"facecolor": "white", "edgecolor": "#0072B2", "linewidth": 2}
AXES = {
    "pipe": (LINES[1], "-", "pipeline"),
    "data": (LINES[2], "--", "data parallel"),
    "model": (LINES[0], ":", "tensor parallel"),
}


@in_style
def cluster(placements: Mapping[str, Sequence[int]], title: str) -> Plot:
    """Machines with ranks in them, and the ring from each rank to the next: what crosses the cable is drawn
    thick, dashed and in colour.

    Args:
        placements: {name of a panel: for each rank the number of its machine}.
    """
    figure, panels = new_panels(len(placements), 4.4, 3.4, title)
    said = "; ".join(_draw_ring(axes, *panel) for axes, panel in zip(panels, placements.items()))
    return Plot(figure, f"{title}. {said}.")


def _draw_ring(axes: Axes, name: str, machines: Sequence[int]) -> str:
    """One panel; returns its part of the sentence."""
    count, ranks, places, words = max(machines) + 1, len(machines), {}, []
    right, most = 2.6 * (count - 1), max(map(machines.count, machines))
    for machine in range(count):
        left = 2.6 * machine
        rounded(axes, left - 0.8, -0.55, 1.6, most + 0.35, 0.08, **MACHINE)
        write(axes, left, most + 0.02, f"machine {machine}", va="bottom", fontsize=9, weight="bold")
        rounded(axes, left - 0.4, -0.78, 0.8, 0.3, 0.03, facecolor="#F0E442", edgecolor="#444444")
        write(axes, left, -0.63, "card", fontsize=8)
        wire = {"color": "#444444", "linewidth": 2, "zorder": 0}
        axes.plot([left, left, right / 2], [-0.8, -1.25, -1.25], **wire)
        inside = [rank for rank in range(ranks) if machines[rank] == machine]
        for line, rank in enumerate(inside):
            places[rank] = left, most - 0.75 - line
            rounded(axes, left - 0.45, places[rank][1] - 0.2, 0.9, 0.4, 0.03, facecolor="#E8F1F8")
            write(axes, *places[rank], f"rank {rank}", fontsize=9)
        words.append(f"machine {machine} has rank{'s' * (len(inside) > 1)} {', '.join(map(str, inside))}")
    hops = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    crossing = [hop for hop in hops if machines[hop[0]] != machines[hop[1]]]
    for hop in hops:
        (x, y), (to_x, to_y) = (places[rank] for rank in hop)
        if hop in crossing:
            side, down, bend = (0.55 if to_x > x else -0.55), 0.0, 0.16
        else:  # past the ranks between them, if there are some
            side, down = 0.0, -0.24 if to_y < y else 0.24
            bend = 0 if abs(y - to_y) <= 1.5 else 0.45 if to_y < y else -0.45
        look = ACROSS if hop in crossing else INSIDE
        ends = (x + side, y + down), (to_x - side, to_y - down)
        arrow(axes, *ends, connectionstyle=f"arc3,rad={bend}", **look)
    cable = f"{len(crossing)} of {ranks} hops cross it"
    write(axes, right / 2, -1.3, f"cable: {cable}", va="top", fontsize=9, color=darkened(ACROSS["color"]))
    axes.set(title=name, xlim=(-1.1, right + 1.1), ylim=(-1.75, most + 0.4))
    axes.axis("off")
    return f"{name}: {', '.join(words)}; {len(crossing)} of {ranks} hops of the ring cross the cable"


@in_style
def placements(orders: Sequence[dict[str, int]], each: int, title: str) -> Plot:
    """Ranks in rows, a row for each machine, and a line between neighbours in each group: a panel for each
    order of the axes.

    Args:
        orders: list of axes, each {name: size} from the outermost to the innermost; the names are pipe, data,
            model.
        each: ranks on a machine.
    """
    count, ranks, said = len(orders), prod(orders[0].values()), []
    height = 1.2 + 1.25 * (ranks // each) if count == 1 else 0.6 + 1.05 * (ranks // each)
    figure, panels = new_panels(count, max(6.4 / count, 0.85 * each + 0.8 / count), height, title)
    for axes, order in zip(panels, orders):
        counts = _draw_order(axes, order, each, ranks)
        crossing = ", ".join(f"{name} {count}" for name, count in counts.items())
        said.append(f"{', '.join(order)}: {crossing}")
    handles = []
    for name in orders[0]:
        colour, dash, words = AXES[name]
        handles.append(Line2D([], [], color=colour, linestyle=dash, linewidth=2.5, label=f"{name}: {words}"))
    legend_below(figure, 0.04, 3, handles)
    pairs = "Pairs of neighbours on different machines, axes from the outermost"
    return Plot(figure, f"{title}. {pairs}: {'; '.join(said)}.")


def _draw_order(axes: Axes, order: dict[str, int], each: int, ranks: int) -> dict[str, int]:
    """One panel; returns of each axis how many pairs of neighbours lie on different machines."""
    places, counts = {rank: (rank % each, -1.25 * (rank // each)) for rank in range(ranks)}, {}
    for machine in range(ranks // each):
        y = -1.25 * machine
        rounded(axes, -0.45, y - 0.36, each - 0.1, 0.78, 0.04, facecolor="#8888881A", edgecolor="#888888")
        write(axes, -0.62, y, f"machine {machine}", rotation=90, fontsize=8)
    for name in order:
        colour, dash, _ = AXES[name]
        counts[name] = 0
        for here, there in chain.from_iterable(map(pairwise, groups_along(name, order))):
            near = here // each == there // each
            counts[name] += not near
            bend = 0 if not near or there - here == 1 else -0.36 if here % 2 == 0 else 0.36
            look = {"color": colour, "linestyle": dash, "linewidth": 1.6 if near else 3.2, "zorder": 1}
            curve = f"arc3,rad={bend}"
            arrow(axes, places[here], places[there], arrowstyle="-", connectionstyle=curve, **look)
    for rank, (x, y) in places.items():
        disc(axes, x, y, 0.24, "")
        place = coordinates(rank, order)
        write(axes, x, y + 0.07, str(rank), fontsize=9, weight="bold", zorder=4)
        write(axes, x, y - 0.1, " ".join(str(place[name]) for name in order), fontsize=7, zorder=4)
    axes.set(xlim=(-0.8, each - 0.4), ylim=(-1.25 * (ranks // each - 1) - 0.5, 0.55), aspect="equal")
    axes.set_title(", ".join(order), fontsize=9)
    axes.axis("off")
    return counts
