"""Drawings of a pipeline: which layers each stage holds and what passes between stages; a schedule's time,
and what is in flight meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import ACTIONS, LOOK, STYLE, Plot, bare, new_figure, rectangle, swatch, write
from helpers.tools.theory.schedules import held_over_time, idle_fraction

Event = tuple[str, int, int, float, float]  # kind, stage, micro, start, end
FORWARD, BACKWARD = ACTIONS["F"][0], ACTIONS["B"][0]


def stages(layers: Mapping[str, Sequence[str]], title: str, message: str = "") -> Plot:
    """The stages of a pipeline beside each other, with what passes between neighbours: activations forward,
    their gradients back.

    Args:
        layers: {stage: [names of its layers]}, in order.
        title: what the figure shows.
        message: how much one message is, such as "50 MB".
    """
    tallest = max(len(names) for names in layers.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(1.5 + 1.9 * len(layers), 1.3 + 0.36 * tallest))
        for column, (stage, names) in enumerate(layers.items()):
            left = 1.9 * column
            rectangle(axes, (left, 0), 1.2, tallest + 0.3, facecolor="none", edgecolor="black")
            write(axes, left + 0.6, -0.25, stage, va="bottom", fontsize=10, weight="bold")
            for row, name in enumerate(names):
                rectangle(axes, (left + 0.1, row + 0.2), 1.0, 0.8, facecolor=LOOK["parameters"][0])
                write(axes, left + 0.6, row + 0.6, name, fontsize=9, color="white")
            if column:
                middle = tallest / 2 + 0.15
                for height, colour, ends in (
                    (middle - 0.45, FORWARD, (-0.66, -0.04)),
                    (middle + 0.45, BACKWARD, (-0.04, -0.66)),
                ):
                    begin, end = ((left + offset, height) for offset in ends)
                    axes.annotate(
                        "", end, begin, arrowprops={"arrowstyle": "-|>", "linewidth": 2.2, "color": colour}
                    )
        axes.set(
            title=title,
            xlim=(-0.1, 1.9 * len(layers) - 0.6),
            ylim=(tallest + 0.5, -0.8),
            xticks=[],
            yticks=[],
        )
        bare(axes)
        words = {FORWARD: "activations", BACKWARD: "their gradients"}
        handles = [swatch(f"{name}{', ' * bool(message)}{message}", colour) for colour, name in words.items()]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=2)
    said = "; ".join(f"{stage}: {', '.join(names)}" for stage, names in layers.items())
    each = f", {message} each" if message else ""
    return Plot(figure, f"{title}. {said}. Between neighbours: activations forward, gradients back{each}.")


def pipeline_schedules(schedules: Mapping[str, list[list[Event]]], title: str, x: str) -> Plot:
    """What every rank does when, and below it how many micro-batches it holds activations of meanwhile; all
    schedules on one axis of time.

    Args:
        schedules: {name: timelines}, timelines a list of (kind, stage, micro, start, end) for each rank, as
            in `helpers.tools.theory.schedules`.  Of a rank with several stages the later ones are drawn
            paler, and a micro-batch on one of them counts as that part of a micro-batch.
        title: what the figure shows.
        x: the axis: "slots" or "milliseconds".
    """
    held = {name: [held_over_time(row) for row in timelines] for name, timelines in schedules.items()}
    most = {name: [max(count for _, count in row) for row in rows] for name, rows in held.items()}
    top, longest = (
        max(max(rows) for rows in most.values()),
        max(_span(timelines) for timelines in schedules.values()),
    )
    ranks, panels = max(len(timelines) for timelines in schedules.values()), 2 * len(schedules)
    with matplotlib.style.context(STYLE):
        figure, first = new_figure(figsize=(9, 0.9 + panels * (0.45 + 0.27 * ranks)))
        first.remove()
        axes = figure.subplots(panels, 1, sharex=True)
        for place, (name, timelines) in enumerate(schedules.items()):
            above, below, begin = axes[2 * place], axes[2 * place + 1], _begin(timelines)
            _draw_actions(above, timelines, begin, longest)
            above.set_title(
                f"{name}: what each rank does (idle {100 * idle_fraction(timelines):.1f} %)", fontsize=10
            )
            for rank, row in enumerate(held[name]):
                times = [time - begin for time, _ in row] + [longest]
                heights = [rank + 0.95 - 0.8 * count / top for _, count in row]
                below.fill_between(
                    times,
                    [*heights, heights[-1]],
                    rank + 0.95,
                    step="post",
                    color=LOOK["activations"][0],
                    linewidth=0,
                )
                below.text(
                    1.008 * longest, rank + 0.55, f"at most {most[name][rank]:g}", va="center", fontsize=9
                )
            below.set_title(f"{name}: micro-batches in flight", fontsize=10)
        for one in axes:
            one.set(xlim=(0, longest), ylim=(ranks, 0))
            one.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
            one.grid(False)
        axes[-1].set_xlabel(x)
        kinds = [
            kind
            for kind in ACTIONS
            if any(event[0] == kind for timelines in schedules.values() for row in timelines for event in row)
        ]
        handles = [swatch(ACTIONS[kind][1], ACTIONS[kind][0]) for kind in kinds]
        axes[0].legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
        figure.suptitle(title, fontsize=11)
    said = []
    for name, timelines in schedules.items():
        flight = ", ".join(f"{count:g}" for count in most[name])
        said.append(
            f"{name}: {_span(timelines):,.4g} {x}, idle {idle_fraction(timelines):.3f} of the "
            f"time, at most {flight} in flight"
        )
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def _draw_actions(axes, timelines, begin, longest):
    for rank, timeline in enumerate(timelines):
        for kind, stage, micro, start, end in timeline:
            alpha = 1 if stage < len(timelines) else 0.55
            rectangle(
                axes,
                (start - begin, rank + 0.06),
                end - start,
                0.88,
                facecolor=ACTIONS[kind][0],
                alpha=alpha,
                edgecolor="white",
            )
            if end - start > 0.011 * longest * len(str(micro)):  # else it would not be read
                write(
                    axes,
                    (start + end) / 2 - begin,
                    rank + 0.5,
                    micro,
                    fontsize=7,
                    color="white" if alpha == 1 else "black",
                )


def _begin(timelines):
    return min(event[3] for timeline in timelines for event in timeline)


def _span(timelines):
    return max(event[4] for timeline in timelines for event in timeline) - _begin(timelines)
