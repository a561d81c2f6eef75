"""What runs when, as boxes over a common time axis: work and messages, planned or by the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib
from helpers.course.plots.style import STYLE, Plot, new_figure, rectangle, swatch

Box = tuple[str, str, float, float]  # kind, label, start, end
KINDS = {  # of what a rank does: colour and hatch
    "forward": ("#0072B2", ""),
    "backward": ("#D55E00", "//"),
    "recompute": ("#0072B2", ".."),
    "optimizer": ("#56B4E9", ""),
    "all-reduce": ("#009E73", "\\\\"),
    "all-gather": ("#E69F00", "\\\\"),
    "reduce-scatter": ("#CC79A7", "\\\\"),
    "broadcast": ("#444444", ""),
    "reduce": ("#444444", "//"),
    "all-to-all": ("#444444", ".."),
    "gather": ("#444444", "xx"),
    "scatter": ("#444444", "++"),
    "send": ("#332288", ""),
    "receive": ("#332288", "//"),
    "waiting": ("#999999", "xx"),
    "barrier": ("#999999", "++"),
}


def side_by_side(boxes: Iterable[Box]) -> list[int]:
    """For each box the lowest lane in which no box before it is still going on."""
    ends, lanes = [], []
    for _, _, start, end in boxes:
        lane = next((lane for lane, free in enumerate(ends) if free <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


def timeline(rows: Mapping[str, Sequence[Box]], title: str, x: str) -> Plot:
    """Boxes over time, a row for each thing that goes on by itself, for instance a rank's computation and its
    messages.

    Args:
        rows: {row: [(kind, label, start, end), ...]}, kinds as in `KINDS`; times share one origin.
        title: what the figure shows.
        x: name and unit of the axis.

    Returns:
        A `Plot`; its sentence gives each row's number of boxes and its end.
    """
    if unknown := {kind for boxes in rows.values() for kind, *_ in boxes} - set(KINDS):
        raise ValueError(f"kinds of boxes are {', '.join(KINDS)}; not {', '.join(sorted(unknown))}")
    span = max(end for boxes in rows.values() for *_, end in boxes)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.4 * len(rows)))
        for row, boxes in enumerate(rows.values()):
            lanes = side_by_side(boxes)
            height = 0.8 / (1 + max(lanes))
            for lane, (kind, label, start, end) in zip(lanes, boxes):
                colour, hatch = KINDS[kind]
                bottom = row + 0.1 + lane * height
                rectangle(
                    axes,
                    (start, bottom),
                    end - start,
                    height,
                    facecolor=colour,
                    hatch=hatch,
                    edgecolor="white",
                )
                if end - start > 0.011 * span * len(label):  # else it would not be read
                    middle = ((start + end) / 2, bottom + height / 2)
                    axes.text(
                        *middle,
                        label,
                        ha="center",
                        va="center",
                        fontsize=8 if height > 0.3 else 6,
                        color="white",
                        weight="bold",
                    )
        axes.set(title=title, xlabel=x, xlim=(0, 1.01 * span), ylim=(len(rows), 0))
        axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
        axes.grid(False)
        shown = [kind for kind in KINDS if any(kind == box[0] for boxes in rows.values() for box in boxes)]
        handles = [swatch(kind, KINDS[kind][0], hatch=KINDS[kind][1], edgecolor="white") for kind in shown]
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(
        f"{row}: {len(boxes)} until {max(end for *_, end in boxes):.3g}" for row, boxes in rows.items()
    )
    return Plot(figure, f"{title}, {x}. {said}.")
