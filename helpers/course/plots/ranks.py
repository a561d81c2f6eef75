"""What every rank has, or does, and when: a row per rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LOOK, PARTS, STYLE, Plot, bare, new_figure, rectangle, write


def contributors(number: int) -> list[int]:
    """The ranks that a number of the collectives lesson comes from: rank r counts in units of 10^r."""
    return [rank for rank, digit in enumerate(reversed(str(abs(number)))) if digit != "0"]


def rank_contents(
    before: Sequence[Sequence[int] | None],
    after: Sequence[Sequence[int] | None],
    title: str,
    moments: tuple[str, str] = ("before", "after"),
) -> Plot:
    """What every rank holds before and after a collective, as `contents_over_time` draws it.

    Args:
        before, after: for each rank a list of numbers; None or an empty list for a rank that holds nothing of
            interest.
        title: what the figure shows.
        moments: what the two sides are called.
    """
    return contents_over_time(dict(zip(moments, (before, after))), title)


def contents_over_time(moments: Mapping[str, Sequence[Sequence[int] | None]], title: str) -> Plot:
    """What every rank holds at some moments: a panel per moment, a row per rank, a box per element, coloured
    by the rank it comes from.

    Args:
        moments: {name: for each rank a list of whole numbers in which rank r counts in units of 10^r, so that
            the digits of a sum say
            who is in it; None or an empty list for a rank that holds nothing of interest}.
        title: what the figure shows.
    """
    names, states = list(moments), list(moments.values())
    before = states[0]
    widest = max(len(row or ()) for rows in states for row in rows)
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(states), figsize=(3.6 * len(states), 0.5 + 0.33 * len(before)))
        for axes, rows, name in zip(panels, states, names):
            for rank, row in enumerate(rows):
                for column, number in enumerate(row or ()):
                    sources = contributors(number)
                    summed = (
                        "#444444" if len(sources) == len(before) else "#888888"
                    )  # a sum of all ranks, or of some
                    colour = (
                        PARTS[sources[0] % len(PARTS)]
                        if len(sources) == 1
                        else "#EEEEEE"
                        if not sources
                        else summed
                    )
                    rectangle(axes, (column, rank + 0.06), 0.94, 0.88, facecolor=colour)
                    dark = colour in ("#444444", PARTS[0], PARTS[3], PARTS[4])
                    write(
                        axes,
                        column + 0.47,
                        rank + 0.5,
                        number,
                        fontsize=9,
                        color="white" if dark else "black",
                    )
            axes.set(title=f"{title}: {name}", xlim=(0, max(widest, 1)), ylim=(len(rows), 0), xticks=[])
            axes.set_yticks(
                [rank + 0.5 for rank in range(len(rows))], [f"rank {rank}" for rank in range(len(rows))]
            )
            axes.tick_params(length=0)
            bare(axes)
    said = "; ".join(
        f"rank {rank} {' -> '.join(str(row or 'nothing') for row in rows)}"
        for rank, rows in enumerate(zip(*states))
    )
    return Plot(figure, f"{title}. {said}.")


def gathered_over_time(
    gathered: Mapping[str, list[bool]], phases: Mapping[str, int], title: str, x: str = "moments, in order"
) -> Plot:
    """When each parameter is gathered on a rank (ZeRO-3): a row per parameter, a box while it is there.

    Args:
        gathered: {parameter: [True or False at every moment]}.
        phases: {name: number of its moments}, in order; they cover all moments.
        title: what the figure shows.
        x: what the moments are.

    Returns:
        A `Plot`; its sentence says how often each is gathered.
    """
    moments = sum(phases.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.26 * len(gathered)))
        times = {}
        for row, (name, there) in enumerate(gathered.items()):
            begins = [
                moment for moment, here in enumerate(there) if here and not (moment and there[moment - 1])
            ]
            ends = [
                moment + 1
                for moment, here in enumerate(there)
                if here and there[moment + 1 : moment + 2] != [True]
            ]
            axes.broken_barh(
                [(begin, end - begin) for begin, end in zip(begins, ends)],
                (row + 0.1, 0.8),
                color=LOOK["parameters"][0],
            )
            times[name] = len(begins)
        start = 0
        for name, length in phases.items():
            axes.axvline(start, color="black", linewidth=0.8)
            write(axes, start + length / 2, -0.15, name, va="bottom")
            start += length
        axes.set(xlabel=x, xlim=(0, moments), ylim=(len(gathered), 0))
        axes.set_title(title, pad=18)
        axes.set_yticks([row + 0.5 for row in range(len(gathered))], list(gathered))
        axes.grid(False)
    said = ", ".join(f"{name} {count}" for name, count in times.items())
    return Plot(figure, f"{title}. How often each is gathered: {said}.")
