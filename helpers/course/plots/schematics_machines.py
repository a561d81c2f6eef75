"""Schematics of processes on machines: hosts and what links their GPUs, a ring over a cable, the groups of
several axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from math import prod
from typing import TYPE_CHECKING

from matplotlib.lines import Line2D
from helpers.course.plots.drawing import (
    arrow,
    blank,
    box,
    darkened,
    disc,
    legend_below,
    new_figure,
    new_panels,
    rounded,
    write,
)
from helpers.course.plots.style import LINES, LOOK, WIDE, Plot, in_style
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


NVLINK, CARD = "#009E73", "#F0E442"  # what links GPUs of one host, and a way out of it


@in_style
def host(gpus: int, inside: float, outside: float, title: str) -> Plot:
    """One host: its GPUs with a bar of gradients each, the switch between them, and a network card under
    each.

    Args:
        inside, outside: bytes per second, one way, of a GPU's NVLink and of a network card.
    """
    figure, axes = new_figure(WIDE, 3.9)
    wide = gpus - 0.16
    rounded(axes, -0.2, 0.62, gpus + 0.24, 4.0, 0.06, **MACHINE)
    write(axes, wide / 2, 4.42, f"one host of {gpus} GPUs", weight="bold")
    box(axes, 0, 3.75, wide, 0.42, NVLINK, "NVSwitch: connects every GPU with every other", 9)
    for gpu in range(gpus):
        x = gpu + 0.42
        axes.plot([x, x], [3.06, 3.75], color=NVLINK, linewidth=5, zorder=2)
        rounded(axes, gpu + 0.03, 1.86, 0.78, 1.16, 0.03, facecolor="#E8F1F8", edgecolor="#444444")
        write(axes, x, 2.82, f"GPU {gpu}", fontsize=9, weight="bold")
        for part in range(gpus):
            look = {"edgecolor": "white", "linewidth": 0.6}
            left, each = gpu + 0.06, 0.72 / gpus
            box(axes, left + part * each, 2.22, each, 0.34, LOOK["gradients"][0], **look)
        write(axes, x, 2.04, "16 GB", fontsize=8)
        axes.plot([x, x], [1.3, 1.83], color="#888888", linewidth=2, zorder=2)
        rounded(axes, gpu + 0.14, 0.92, 0.56, 0.34, 0.03, facecolor=CARD, edgecolor="#444444")
        write(axes, x, 1.09, "card", fontsize=8)
        axes.plot([x, x], [0.24, 0.88], color="#444444", linewidth=2, zorder=2)
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    words = f"NVLink: {inside / 1e9:.0f} GB/s each way"
    write(axes, wide / 2, 3.38, words, fontsize=9, color=darkened(NVLINK), bbox=ground, zorder=3)
    box(axes, 0, 0, wide, 0.24, "#DDDDDD", "network to other hosts", 9)
    write(
        axes, wide / 2, 0.46, f"{outside / 1e9:.0f} GB/s each way, a card", fontsize=9, bbox=ground, zorder=3
    )
    blank(axes, title=title, xlim=(-0.35, gpus + 0.2), ylim=(-0.1, 4.8))
    links = f"NVLink to the NVSwitch {inside / 1e9:.0f} GB/s each way, card {outside / 1e9:.0f} GB/s each way"
    return Plot(figure, f"{title}. Each of {gpus} GPUs holds 16 GB of gradients in {gpus} parts; {links}.")


@in_style
def rings_across(hosts: int, gpus: int, title: str) -> Plot:
    """One of as many rings as a host has GPUs, through all hosts: it enters each by a card, passes every GPU,
    and leaves by another card.  Under each card stands which ring enters there, and which one leaves.
    """
    figure, axes = new_figure(WIDE, 3.4)
    ring, last = {"color": LINES[1], "linewidth": 2.4, "zorder": 3}, gpus - 1
    for host in range(hosts):
        left = host * (gpus + 1)
        rounded(axes, left - 0.12, -0.14, gpus + 0.04, 2.79, 0.08, **MACHINE)
        write(axes, left + gpus / 2 - 0.1, 2.46, f"host {host}", fontsize=9, weight="bold")
        write(axes, left + gpus / 2 - 0.1, 2.06, "NVLink", fontsize=8, color=darkened(NVLINK))
        for gpu in range(gpus):
            x = left + gpu + 0.4
            box(axes, x - 0.28, 1.35, 0.56, 0.5, "#E8F1F8", f"GPU {gpu}", 8, edgecolor="#444444")
            box(axes, x - 0.28, 0.5, 0.56, 0.32, CARD, "card", 8, edgecolor="#444444")
            enters, leaves = gpu, (gpu + 1) % gpus
            write(axes, x, 0.2, f"ring {enters} in,\nring {leaves} out", fontsize=8)
            if gpu < last:
                arrow(axes, (x + 0.24, 1.6), (x + 0.76, 1.6), **ring)
        arrow(axes, (left + 0.4, 0.78), (left + 0.4, 1.39), **ring)
        arrow(axes, (left + last + 0.4, 1.39), (left + last + 0.4, 0.78), **ring)
        out, low = left + last + 0.4, -0.6 if host < hosts - 1 else -1.0
        into = (left + gpus + 1) % (hosts * (gpus + 1)) + 0.4
        axes.plot([out, out, into, into], [-0.08, low, low, -0.25], **ring)
        arrow(axes, (into, -0.4), (into, -0.04), **ring)
    middle = hosts * (gpus + 1) / 2 - 0.6
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    write(axes, middle, -1.0, "ring 0, over the network", fontsize=9, bbox=ground, zorder=4)
    blank(axes, title=title, xlim=(-0.3, hosts * (gpus + 1) - 0.9), ylim=(-1.2, 2.8))
    told = f"It enters each of {hosts} hosts by card 0, passes GPUs 0 to {last}, and leaves by card {last}"
    return Plot(figure, f"{title}. {told}; {gpus} rings use all {gpus} cards.")


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
