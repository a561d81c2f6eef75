"""How much of a job's time is lost, over how often it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.ticker import NullFormatter, NullLocator
from helpers.course.plots.style import LINES, STYLE, Plot, check_told_apart, new_figure

MINUTES, SHARES = (1, 2, 5, 10, 20, 60, 180), (1, 2, 5, 10, 20, 50, 100)


def lost_time(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    best: Mapping[str, tuple[float, float]],
    title: str,
) -> Plot:
    """Lost shares over the minutes between two saves, both on logarithmic axes with plain numbers; a dot at
    each line's chosen interval.

    Args:
        lines: {name: (minutes, lost shares between 0 and 1)}.
        best: {name: (minutes, lost share)} of the chosen intervals.
        title: what the figure shows.

    Raises:
        ValueError: for more lines than can be told apart.
    """
    check_told_apart(lines, len(LINES), "lines")
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        for colour, (name, (minutes, shares)) in zip(LINES, lines.items()):
            axes.plot(minutes, [100 * share for share in shares], color=colour)
            axes.annotate(
                name,
                (minutes[-1], 100 * shares[-1]),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                fontsize=9,
            )
            at, lost = best[name]
            axes.plot([at], [100 * lost], "o", color=colour, markersize=8)
        axes.set(
            title=title,
            xlabel="minutes between saves",
            ylabel="per cent of the time",
            xscale="log",
            yscale="log",
        )
        for axis, ticks in ((axes.xaxis, MINUTES), (axes.yaxis, SHARES)):
            axis.set_minor_locator(NullLocator())
            axis.set_minor_formatter(NullFormatter())
            axis.set_ticks(ticks, [f"{tick}" for tick in ticks])
        axes.set_ylim(0.9, 100)
    said = "; ".join(f"{name}: {100 * lost:.1f} % at {at:.0f} minutes" for name, (at, lost) in best.items())
    return Plot(figure, f"{title}. Least, at the intervals chosen: {said}.")
