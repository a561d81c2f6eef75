"""A schematic of several machines: their ranks, their network cards, the cable, and the ring that a
collective goes round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib
from helpers.course.plots.style import STYLE, Plot, arrow, new_figure, rounded, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSIDE, ACROSS = "#888888", "#D55E00"


def cluster(placements: Mapping[str, Sequence[int]], title: str) -> Plot:
    """Machines with ranks in them, and the ring from each rank to the next: what crosses the cable is drawn
    thick, dashed and in colour.

    Args:
        placements: {name of a panel: for each rank the number of its machine}.
        title: what the figure shows.
    """
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(placements), figsize=(4.4 * len(placements), 3.4))
        said = []
        for axes, (name, place) in zip(panels if len(placements) > 1 else [panels], placements.items()):
            said.append(draw(axes, name, place))
        figure.suptitle(title, fontsize=11)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def draw(axes: Axes, name: str, place: Sequence[int]) -> str:
    """One panel; returns its part of the sentence."""
    count, ranks = max(place) + 1, len(place)
    inside = {machine: [rank for rank in range(ranks) if place[rank] == machine] for machine in range(count)}
    most = max(map(len, inside.values()))
    centre = {}
    for machine, there in inside.items():
        left = 2.6 * machine
        rounded(
            axes,
            (left - 0.8, -0.55),
            1.6,
            most + 0.35,
            pad=0.08,
            facecolor="white",
            edgecolor="#0072B2",
            linewidth=2,
        )
        write(axes, left, most + 0.02, f"machine {machine}", va="bottom", fontsize=9, weight="bold")
        rounded(axes, (left - 0.4, -0.78), 0.8, 0.3, 0.03, facecolor="#F0E442", edgecolor="#444444")
        write(axes, left, -0.63, "card", fontsize=8)
        axes.plot(
            [left, left, 1.3 * (count - 1)], [-0.8, -1.25, -1.25], color="#444444", linewidth=2, zorder=0
        )
        for line, rank in enumerate(there):
            centre[rank] = left, most - 0.75 - line
            rounded(axes, (left - 0.45, centre[rank][1] - 0.2), 0.9, 0.4, 0.03, facecolor="#E8F1F8")
            write(axes, left, centre[rank][1], f"rank {rank}", fontsize=9)
    hops = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    across = [hop for hop in hops if place[hop[0]] != place[hop[1]]]
    for hop in hops if ranks > 1 else ():
        (x, y), (to_x, to_y) = centre[hop[0]], centre[hop[1]]
        side = 0.55 if to_x > x else -0.55 if to_x < x else 0.0
        bend = 0.16 if side else (0.45 if to_y < y else -0.45)
        down = 0.0 if side else -0.24 if to_y < y else 0.24
        if not side and abs(y - to_y) <= 1.5:
            bend = 0
        arrow(
            axes,
            (x + side, y + down),
            (to_x - side, to_y - down),
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=12,
            color=ACROSS if hop in across else INSIDE,
            linewidth=2.2 if hop in across else 1.4,
            linestyle="--" if hop in across else "-",
        )
    write(
        axes,
        1.3 * (count - 1),
        -1.3,
        f"cable: {len(across)} of {ranks} hops cross it",
        va="top",
        fontsize=9,
        color=ACROSS,
    )
    axes.set(title=name, xlim=(-1.1, 2.6 * (count - 1) + 1.1), ylim=(-1.75, most + 0.4))
    axes.axis("off")
    who = ", ".join(
        f"machine {machine} has {'rank' if len(there) == 1 else 'ranks'} {', '.join(map(str, there))}"
        for machine, there in inside.items()
    )
    return f"{name}: {who}; {len(across)} of {ranks} hops of the ring cross the cable"
