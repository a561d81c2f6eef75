"""Memory over time: all categories of one run, or one category of several runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import dashed_line, legend_below, legend_beside, new_figure, write_beside
from helpers.course.plots.style import (
    LINES,
    LOOK,
    VISIBLE,
    Plot,
    amount,
    check_told_apart,
    in_style,
    unit,
)

if TYPE_CHECKING:
    from helpers.tools.measure.ledger import History

LASTING = ("parameters", "master weights", "optimizer states")  # through a step


def phases(history: History) -> tuple[list[float], list[str]]:
    """Where a history's phases lie on the axis: every event's place, and the names of the phases, of width 1.

    A phase lasts from one mark to the next and is as wide as any other, since an optimizer step has many more
    allocations than a forward pass and would fill the picture; inside, a change that is too small to be seen
    is narrow.  Marks with next to nothing between them (a snapshot and the phase that follows) count as one,
    unless the history is so short that all phases are like that.

    Raises:
        ValueError: for a history of a single event.
    """
    count = len(history.total)
    if count < 2:
        raise ValueError(
            f"a history over time needs at least two events, not {count}: take more of the ledger's history"
        )
    marks = [(at, name) for at, name in history.marks if at < count - 1] or [(0, "")]
    lengths = [end - start for start, end in pairwise([*(at for at, _ in marks), count])]
    least = max(8, count // 100)
    least = least if max(lengths) > least else 0
    starts, names = zip(*(mark for mark, length in zip(marks, lengths) if length > least))
    places, most = [], max(history.total)
    for index, (first, last) in enumerate(pairwise([0, *starts[1:], count - 1])):
        widths = [
            1 if abs(after - before) > VISIBLE / 2 * most else 0.02
            for before, after in pairwise(history.total[first : last + 1])
        ]
        width = sum(widths)
        places += [index + done / width for done in accumulate(widths[:-1], initial=0)]
    return [*places, len(names)], list(names)


def _draw_phases(axes, names, top):
    """A column for each phase up to the height `top`, with its name there."""
    for start, name in enumerate(names):
        axes.axvline(start, color="black", linewidth=0.6, alpha=0.5)
        axes.annotate(name, (start + 0.5, top), ha="center", va="top", fontsize=9)
    axes.set(xlabel="allocations and releases, in order", xticks=[], xlim=(0, len(names)), ylim=(0, top))


@in_style
def memory_over_time(
    history: History,
    title: str,
    predicted: Mapping[str, float] | None = None,
    capacity: float | None = None,
    peak: bool = False,
) -> Plot:
    """Memory by category after every allocation and release, in order, a column for each phase between two
    marks of the ledger.

    Args:
        predicted: {name: bytes} drawn as horizontal lines.
        capacity: bytes that a rank's device has for tensors, drawn as a line.
        peak: whether the highest moment is marked: it may be too short to be seen.
    """
    totals, highest = history.total, max(history.total)
    divisor, unit_name = unit(highest)
    used = [category for category in LOOK if max(history.totals.get(category, [0])) > VISIBLE * highest]
    used.sort(key=lambda category: category not in LASTING)  # what stays is below, what comes and goes on top
    places, names = phases(history)
    figure, axes = new_figure()
    colours = [LOOK[category][0] for category in used]
    layers = [[value / divisor for value in history.totals[category]] for category in used]
    areas = axes.stackplot(places, layers, labels=used, colors=colours, step="post", linewidth=0)
    for area, category in zip(areas, used):
        area.set(hatch=LOOK[category][1], edgecolor="white")
    if capacity:
        dashed_line(axes, capacity / divisor, f"capacity, {amount(capacity)}")
    if peak:
        at, height = places[totals.index(highest)], highest / divisor
        look = {"markersize": 6, "markerfacecolor": "white", "label": "highest moment"}
        axes.plot([at], [height], "v", color="black", **look)
        write_beside(axes, at, height, f"{height:,.1f} {unit_name}", 6, 3, va="bottom", fontsize=9)
    for name, size in (predicted or {}).items():
        dashed_line(axes, size / divisor, f"predicted: {name}")
    axes.set(title=title, ylabel=f"{unit_name} on this rank")
    _draw_phases(axes, names, 1.18 * max(highest, capacity or 0) / divisor)
    legend_below(axes, -0.08, 4)
    lines = "".join(f", predicted {name} {amount(size)}" for name, size in (predicted or {}).items())
    lines += f", capacity {amount(capacity)}" if capacity else ""
    course = f"From {amount(totals[0])} to a peak of {amount(highest)} and back to {amount(totals[-1])}"
    return Plot(figure, f"{title}. {course}{lines}.")


@in_style
def category_over_time(
    histories: Mapping[str, History], title: str, category: str | None = "gradients"
) -> Plot:
    """One category of memory in several runs of the same phases, after every allocation and release; `None`
    adds all categories.

    Raises:
        ValueError: for more histories than can be told apart, or one of a single event.
    """
    dashes = ("-", "--", "-.", ":")
    check_told_apart(histories, len(dashes), "histories")
    held = {
        name: history.totals[category] if category else history.total for name, history in histories.items()
    }
    most = max(max(values) for values in held.values())
    divisor, unit_name = unit(most)
    figure, axes = new_figure()
    for (name, values), colour, dash in zip(held.items(), LINES, dashes):
        places, names = phases(histories[name])
        heights = [value / divisor for value in values]
        axes.plot(places, heights, dash, color=colour, label=name, drawstyle="steps-post")
    what = category or "everything"
    axes.set(title=title, ylabel=f"{unit_name} of {what} on this rank")
    _draw_phases(axes, names, 1.2 * most / divisor)
    legend_beside(axes)
    said = "; ".join(f"{name} at most {amount(max(values))}" for name, values in held.items())
    return Plot(figure, f"{title}. {what.capitalize()} over time: {said}.")
