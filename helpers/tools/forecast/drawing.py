"""`--figure`: a rank's memory by category over two steps, as a PNG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ..rehearsal.allocator import Allocator
from ..rehearsal.playing import Request, play

COLOURS = {  # Okabe and Ito's, which colour-blind readers tell apart, and a hatch for print
    "parameters": ("#0072B2", ""),
    "master weights": ("#009E73", ""),
    "optimizer states": ("#56B4E9", "\\\\"),
    "gradients": ("#D55E00", "//"),
    "buffers": ("#999999", "xx"),
    "activations": ("#E69F00", ".."),
    "inputs": ("#CC79A7", "--"),
    "other": ("#444444", ""),
}
VISIBLE = 0.002  # of the highest moment: a category that is smaller is left out


def draw(report: Mapping, file: str, title: str) -> None:
    """What is held after every allocation and release, in order, and what torch's allocator has reserved for
    it; each phase is as wide as the others.

    Args:
        report: what `fitting.two_steps` returned, with its history.
    """
    from matplotlib.figure import Figure

    history = report["history"]
    totals = history.total
    marks = [mark for mark in history.marks if mark[0] < len(totals) - 1] or [(0, "")]
    places = spread([0, *(at for at, _ in marks[1:]), len(totals)])
    used = [name for name in COLOURS if max(history.totals.get(name, [0])) > VISIBLE * max(totals)]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    layers = [[held / 1e9 for held in history.totals[name]] for name in used]
    areas = axes.stackplot(places, layers, labels=used, step="post", linewidth=0)
    for area, name in zip(areas, used):
        area.set(facecolor=COLOURS[name][0], hatch=COLOURS[name][1], edgecolor="white")
    axes.plot(*reserved(report["requests"]), "k--", linewidth=1.2, drawstyle="steps-post", label="reserved")
    for phase, (_, name) in enumerate(marks):
        axes.axvline(phase, color="black", linewidth=0.6)
        axes.annotate(name, (phase + 0.5, 1.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
    axes.set(xlim=(0, len(marks)), ylim=(0, None), xticks=[], ylabel="GB on this rank")
    axes.set_xlabel("allocations and releases, in order")
    axes.set_title(title, pad=20)
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.1), frameon=False)
    figure.savefig(file, dpi=120)


def spread(starts: Sequence[int]) -> list[float]:
    """Where events are drawn: those of a phase evenly over a width of 1; a phase begins at each start but the
    last, which is the number of all events."""
    return [
        phase + event / (last - first)
        for phase, (first, last) in enumerate(pairwise(starts))
        for event in range(last - first)
    ]


def reserved(requests: Sequence[Request]) -> tuple[list[float], list[float]]:
    """Places, and GB that the allocator has reserved, of a rank's requests up to the end."""
    phases = [at for at, request in enumerate(requests) if request[0] == "phase"]
    heights = play(requests, Allocator(float("inf"))).reserved
    last = phases[-1] if requests[phases[-1]][1] == "end" else len(requests)
    starts = [at for at in phases if at < last] + [last]
    return spread(starts), [height / 1e9 for height in heights[starts[0] : last]]
