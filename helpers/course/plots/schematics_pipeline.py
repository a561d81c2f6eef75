"""Drawings of a pipeline: which layers each stage holds and what passes between stages; a schedule's time,
and what is in flight meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from helpers.course.plots.drawing import (
    blank,
    box,
    ink,
    legend_below,
    legend_beside,
    new_figure,
    pointer,
    rank_names,
    swatch,
    write,
)
from helpers.course.plots.style import LOOK, Plot, in_style
from helpers.course.plots.timeline import LETTER
from helpers.tools.theory.schedules import held_over_time, idle_fraction

Event = tuple[str, int, int, float, float]  # kind, stage, micro, start, end
ACTIONS = {
    "F": ("#0072B2", "forward"),
    "B": ("#D55E00", "backward"),
    "I": ("#CC79A7", "backward: input"),
    "W": ("#009E73", "backward: weights"),
}


@in_style
def stages(layers: Mapping[str, Sequence[str]], title: str, message: str) -> Plot:
    """The stages of a pipeline beside each other, with what passes between neighbours: activations forward,
    their gradients back.

    Args:
        layers: {stage: [its layers, and what else is said of it]}, in order; where the first is "", the
            stage is drawn smaller.
        message: how much one message is, such as "50 MB".
    """
    tallest, forward, backward = max(map(len, layers.values())), ACTIONS["F"][0], ACTIONS["B"][0]
    pitch, wide = 1.3, 0.98
    figure, axes = new_figure(max(5, 1.24 * len(layers)), 1.5 + 0.3 * tallest)
    middle = tallest / 2 + 0.15
    for column, (stage, names) in enumerate(layers.items()):
        left = pitch * column
        top = next((row for row, name in enumerate(names) if name), 0)  # empty first lines: a smaller stage
        box(axes, left, top, wide, tallest + 0.3 - top, LOOK["parameters"][0], edgecolor="black", alpha=0.35)
        write(axes, left + wide / 2, -0.2, stage, va="bottom", fontsize=9.5, weight="bold")
        for row, name in enumerate(names):
            write(axes, left + wide / 2, row + 0.65, name, fontsize=8.5)
        if column:
            before, after = left - (pitch - wide) - 0.02, left + 0.02
            pointer(axes, (before, middle - 0.4), (after, middle - 0.4), linewidth=2, color=forward)
            pointer(axes, (after, middle + 0.4), (before, middle + 0.4), linewidth=2, color=backward)
    blank(axes, title=title, xlim=(-0.1, pitch * len(layers) - 0.2), ylim=(tallest + 0.5, -0.9))
    handles = [swatch(f"activations, {message}", forward), swatch(f"their gradients, {message}", backward)]
    legend_below(axes, 0.02, 2, handles)
    said = "; ".join(f"{stage}: {', '.join(filter(None, names))}" for stage, names in layers.items())
    between = f"Between neighbours: activations forward, gradients back, {message} each"
    return Plot(figure, f"{title}. {said}. {between}.")


@in_style
def pipeline_schedules(
    schedules: Mapping[str, list[list[Event]]], title: str, x: str, in_flight: bool = True
) -> Plot:
    """What every rank does when, and below it, unless left out, how many micro-batches it holds activations
    of meanwhile; all schedules on one axis of time.

    Args:
        schedules: {name: timelines}, timelines a list of (kind, stage, micro, start, end) for each rank, as
            in `helpers.tools.theory.schedules`.  Of a rank with several stages the later ones are drawn
            paler, and a micro-batch on one of them counts as that part of a micro-batch.
        x: the axis: "slots" or "milliseconds".
    """
    longest, ranks = max(map(_span, schedules.values())), max(map(len, schedules.values()))
    panels = len(schedules) * (1 + in_flight)
    figure = Figure(figsize=(9, 0.9 + panels * (0.45 + 0.27 * ranks)))
    axes, said = list(figure.subplots(panels, 1, squeeze=False, sharex=True)[:, 0]), []
    held = {name: [held_over_time(row) for row in timelines] for name, timelines in schedules.items()}
    top = max(count for rows in held.values() for row in rows for _, count in row)
    left = list(axes)
    for name, timelines in schedules.items():
        above, idle = left.pop(0), idle_fraction(timelines)
        _draw_actions(above, timelines, _begin(timelines), longest)
        above.set_title(f"{name}: what each rank does (idle {100 * idle:.1f} %)", fontsize=10)
        said.append(f"{name}: {_span(timelines):,.4g} {x}, idle {idle:.3f} of the time")
        if in_flight:
            below = left.pop(0)
            most = _draw_held(below, held[name], _begin(timelines), longest, top)
            below.set_title(f"{name}: micro-batches in flight", fontsize=10)
            said[-1] += f", at most {', '.join(f'{count:g}' for count in most)} in flight"
    for panel in axes:
        panel.set(xlim=(0, longest), ylim=(ranks, 0))
        panel.set_yticks([rank + 0.5 for rank in range(ranks)], rank_names(ranks))
        panel.grid(False)
    axes[-1].set_xlabel(x)
    kinds = {event[0] for timelines in schedules.values() for row in timelines for event in row}
    legend_beside(
        axes[0], [swatch(name, colour) for kind, (colour, name) in ACTIONS.items() if kind in kinds]
    )
    figure.suptitle(title, fontsize=11)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def _draw_held(axes, rows, begin, longest, top):
    """Draw what each rank holds over time; the most of each."""
    most = [max(count for _, count in row) for row in rows]
    for rank, row in enumerate(rows):
        times = [time - begin for time, _ in row] + [longest]
        heights = [rank + 0.95 - 0.8 * count / top for _, count in row]
        look = {"step": "post", "color": LOOK["activations"][0], "linewidth": 0}
        axes.fill_between(times, [*heights, heights[-1]], rank + 0.95, **look)
        write(axes, 1.008 * longest, rank + 0.55, f"at most {most[rank]:g}", ha="left", fontsize=9)
    return most


def _draw_actions(axes, timelines, begin, longest):
    for rank, timeline in enumerate(timelines):
        for kind, stage, micro, start, end in timeline:
            left, width, paler = start - begin, end - start, stage >= len(timelines)
            edge = min(1.0, 100 * width / longest)  # or it would cover a narrow box
            look = {"alpha": 0.55 if paler else 1, "edgecolor": "white", "linewidth": edge}
            box(axes, left, rank + 0.06, width, 0.88, ACTIONS[kind][0], **look)
            if width > LETTER * longest * len(str(micro)):
                colour = "black" if paler else ink(ACTIONS[kind][0])
                write(axes, left + width / 2, rank + 0.5, micro, fontsize=7, color=colour)


def _begin(timelines):
    return min(event[3] for timeline in timelines for event in timeline)


def _span(timelines):
    return max(event[4] for timeline in timelines for event in timeline) - _begin(timelines)
