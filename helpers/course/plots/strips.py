"""A step as aligned strips: what each GPU computes, of which part, and which messages all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from helpers.course.plots.drawing import EDGE, EMPTY, box, name_rows, write
from helpers.course.plots.style import WIDE, Plot, in_style
from helpers.course.plots.timeline import KINDS

Piece = tuple[str, str, float, float]  # kind as in `KINDS`, words, width, share of the model
ROW, ABOVE = 0.8, 1.0  # of a GPU's row: a box; of a panel: room for the words


@in_style
def step_strips(
    steps: Mapping[str, Sequence[Piece]], gpus: Sequence[int], title: str, x: str, total: int | None = None
) -> Plot:
    """A step in each of a few ways, on one axis: a row for each of some GPUs, and messages across all rows.

    Args:
        steps: {way: [(kind, words, width, share)]}, in order.  A message's box goes through all rows.  Of
            work, a GPU colours the share that it does, rank r the r-th; the rest of its box stays empty.
        gpus: the ranks that have a row.
        x: what the axis shows, with its unit; "" where widths mean nothing.
        total: GPUs there are; by default those that have a row.
    """
    total, said = total or len(gpus), []
    longest = max(sum(width for _, _, width, _ in pieces) for pieces in steps.values())
    figure = Figure(figsize=(WIDE, 0.7 + len(steps) * (0.75 + 0.3 * len(gpus))))
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(len(steps), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (way, pieces) in zip(panels, steps.items()):
        at, parts = 0.0, []
        for kind, words, width, share in pieces:
            _draw(axes, at, width, kind, share, gpus, total)
            write(axes, at + width / 2, -0.12, words, va="bottom", fontsize=8)
            shown = words.replace("\n", " ")
            parts.append(f"{shown} {width:.3g}" if x else shown)
            at += width
        axes.set(xlim=(0, 1.005 * longest), ylim=(len(gpus), -ABOVE))
        axes.set_title(way, fontsize=10, loc="left")
        name_rows(axes, [f"rank {gpu}" for gpu in gpus])
        if not x:
            axes.set_xticks([])
        said.append(f"{way}: {', '.join(parts)}".removeprefix(": "))
    panels[-1].set_xlabel(x)
    return Plot(figure, f"{title}. {'; '.join(said)}{f'; {x}' if x else ''}.")


def _draw(axes, at, width, kind, share, gpus, total):
    colour, hatch = KINDS[kind]
    if "-" in kind:  # a message, which all GPUs send together
        box(axes, at, 0.1, width, len(gpus) - 0.2, colour, hatch=hatch, edgecolor="white")
        return
    for row, gpu in enumerate(gpus):
        box(axes, at, row + 0.1, width, ROW, EMPTY, edgecolor=EDGE, linewidth=0.5)
        first, part = (gpu / total * ROW, share * ROW) if share < 1 else (0.0, ROW)
        look = {"hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        box(axes, at, row + 0.1 + first, width, part, colour, **look)
