"""Memory by category: bars measured beside predicted, and one step over time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import matplotlib
from helpers.course.plots.style import (
    LINES,
    LOOK,
    STYLE,
    VISIBLE,
    Plot,
    amount,
    check_told_apart,
    dashed_line,
    legend_below,
    new_figure,
    unit,
)

if TYPE_CHECKING:
    from helpers.tools.measure.ledger import History

LASTING = ("parameters", "master weights", "optimizer states")  # through a step


def memory_bars(
    clusters: Mapping[str, Mapping[str, Mapping[str, float] | None]],
    title: str,
    parameters: float | None = None,
    capacity: float | None = None,
    per: str = "rank",
) -> Plot:
    """Stacked bars of memory by category, measured beside predicted.

    Args:
        clusters: {cluster: {bar: {category: bytes}}}, for instance {"bf16": {"predicted": ..., "measured":
            ...}}; a bar that is None
            did not fit.
        title: what the figure shows.
        parameters: of the model, for bytes per parameter instead of bytes.
        capacity: bytes that a rank's device has, drawn as a line.
        per: whose memory it is, for the axis.
    """
    with matplotlib.style.context(STYLE):
        bars = [
            (cluster, name, sizes or {})
            for cluster, group in clusters.items()
            for name, sizes in group.items()
        ]
        figure, axes = new_figure(figsize=(max(7.2, len(bars)), 3.6))
        divisor, unit_name = unit(max(sum(sizes.values()) for _, _, sizes in bars))
        if parameters:
            divisor, unit_name = parameters, "bytes per parameter,"
        places, place = [], 0.0
        for index, (cluster, _, _) in enumerate(bars):
            place += 1.0 if index == 0 or bars[index - 1][0] == cluster else 1.6
            places.append(place)
        tallest = max(sum(sizes.values()) for _, _, sizes in bars)
        used = [
            category
            for category in LOOK
            if any(sizes.get(category, 0) > VISIBLE * tallest for _, _, sizes in bars)
        ]
        bottoms = [0.0] * len(bars)
        for category in used:
            heights = [sizes.get(category, 0) / divisor for _, _, sizes in bars]
            colour, hatch = LOOK[category]
            axes.bar(
                places,
                heights,
                bottom=bottoms,
                width=0.8,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.5,
                label=category,
            )
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        for place, bottom, (_, _, sizes) in zip(places, bottoms, bars):
            axes.annotate(
                f"{sum(sizes.values()) / divisor:,.3g}" if sizes else "does not\nfit",
                (place, bottom),
                ha="center",
                va="bottom",
                fontsize=9,
                xytext=(0, 2),
                textcoords="offset points",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}
                if capacity
                else None,  # the line may pass behind it
                zorder=5,
            )
        axes.set_xticks(places, [name for _, name, _ in bars], fontsize=9 if len(bars) < 6 else 8)
        for cluster in clusters if len(clusters) > 1 else ():
            own = [place for place, (name, _, _) in zip(places, bars) if name == cluster]
            below = axes.get_xaxis_transform()
            axes.annotate(
                cluster,
                (sum(own) / len(own), 0),
                xycoords=below,
                xytext=(0, -20),
                textcoords="offset points",
                ha="center",
                va="top",
            )
        axes.set(
            title=title,
            ylabel=f"{unit_name} per {per}",
            ylim=(0, 1.12 * max(*bottoms, (capacity or 0) / divisor)),
        )
        axes.grid(False, axis="x")
        if capacity:
            dashed_line(axes, capacity / divisor, f"capacity, {amount(capacity)}")
        legend_below(axes, 0.22 if len(clusters) > 1 else 0.1)

    def words(sizes):
        total = sum((sizes or {}).values())
        return (
            "does not fit"
            if not sizes
            else f"{total / parameters:.3f} bytes per parameter"
            if parameters
            else amount(total)
        )

    said = "; ".join(
        f"{cluster}: " + ", ".join(f"{name} {words(sizes)}" for name, sizes in group.items())
        for cluster, group in clusters.items()
    )
    return Plot(figure, f"{title}. {said}{f'; capacity {amount(capacity)}' if capacity else ''}.")


def phases(history: History) -> tuple[list[float], list[tuple[int, int, str]]]:
    """Where a timeline's phases lie on the axis: every event's place, and (start, end, name) of each phase.

    A phase lasts from one mark to the next and is as wide as any other, since an optimizer step has many more
    allocations than a forward
    pass and would fill the picture; inside, a change that is too small to be seen is narrow.  Marks with next
    to nothing between them (a snapshot and the phase that follows) count as one, unless the history is so
    short that all phases are like that.

    Raises:
        ValueError: for a history of a single event.
    """
    count = len(history.total)
    if count < 2:
        raise ValueError(
            f"a history over time needs at least two events, not {count}: take more of the ledger's history"
        )
    marks = [(at, name) for at, name in history.marks if at < count - 1] or [(0, "")]
    lengths = [following - at for (at, _), (following, _) in zip(marks, [*marks[1:], (count, "")])]
    least = max(8, count // 100)
    starts = [mark for mark, length in zip(marks, lengths) if length > (least if max(lengths) > least else 0)]
    starts[0] = (0, starts[0][1])
    bounds = [*(at for at, _ in starts), count - 1]
    places, most = [], max(history.total)
    for index, (first, last) in enumerate(zip(bounds, bounds[1:])):
        widths = [
            1 if abs(after - before) > VISIBLE / 2 * most else 0.02
            for before, after in pairwise(history.total[first : last + 1])
        ]
        places += [index + done / sum(widths) for done in accumulate(widths[:-1], initial=0)]
    return [*places, len(starts)], [(index, index + 1, name) for index, (_, name) in enumerate(starts)]


def _draw_phases(axes, columns, top):
    """A column for each phase up to the height `top`, with its name there."""
    for start, end, name in columns:
        axes.axvline(start, color="black", linewidth=0.6, alpha=0.5)
        axes.annotate(name, ((start + end) / 2, top), ha="center", va="top", fontsize=9)
    axes.set(xlabel="allocations and releases, in order", xticks=[], xlim=(0, len(columns)), ylim=(0, top))


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
        history: a `helpers.tools.measure.ledger.History`.
        title: what the figure shows.
        predicted: {name: bytes} drawn as horizontal lines.
        capacity: bytes that a rank's device has for tensors, drawn as a line.
        peak: whether the highest moment is marked: it may be too short to be seen.
    """
    totals = history.total
    divisor, unit_name = unit(max(totals))
    used = [category for category in LOOK if max(history.totals.get(category, [0])) > VISIBLE * max(totals)]
    used.sort(key=lambda category: category not in LASTING)  # what stays is below, what comes and goes on top
    places, columns = phases(history)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        colours = [LOOK[category][0] for category in used]
        layers = [[value / divisor for value in history.totals[category]] for category in used]
        areas = axes.stackplot(places, layers, labels=used, colors=colours, step="post", linewidth=0)
        for area, category in zip(areas, used):
            area.set(hatch=LOOK[category][1], edgecolor="white")
        top = 1.18 * max(*totals, capacity or 0) / divisor
        if capacity:
            dashed_line(axes, capacity / divisor, f"capacity, {amount(capacity)}")
        if peak:
            highest = max(totals) / divisor
            at = places[totals.index(max(totals))]
            axes.plot(
                [at],
                [highest],
                "v",
                color="black",
                markersize=6,
                markerfacecolor="white",
                label="highest moment",
            )
            axes.annotate(
                f"{highest:,.1f} {unit_name}",
                (at, highest),
                xytext=(6, 3),
                textcoords="offset points",
                ha="left",
                va="bottom",
                fontsize=9,
            )
        for name, size in (predicted or {}).items():
            dashed_line(axes, size / divisor, f"predicted: {name}")
        axes.set(title=title, ylabel=f"{unit_name} on this rank")
        _draw_phases(axes, columns, top)
        legend_below(axes, 0.08)
    lines = "".join(f", predicted {name} {amount(size)}" for name, size in (predicted or {}).items())
    lines += f", capacity {amount(capacity)}" if capacity else ""
    return Plot(
        figure,
        f"{title}. From {amount(totals[0])} to a peak of {amount(max(totals))} and back to "
        f"{amount(totals[-1])}{lines}.",
    )


def category_over_time(
    histories: Mapping[str, History], title: str, category: str | None = "gradients"
) -> Plot:
    """One category of memory in several runs of the same phases, as lines over one axis: what is held after
    every allocation and release.

    Args:
        histories: {name: `helpers.tools.measure.ledger.History`}.
        title: what the figure shows.
        category: of the ledger; None for all of them together.

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
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        for (name, history), colour, dash in zip(histories.items(), LINES, dashes):
            places, columns = phases(history)
            axes.plot(
                places,
                [value / divisor for value in held[name]],
                dash,
                color=colour,
                label=name,
                drawstyle="steps-post",
            )
        top = 1.2 * most / divisor
        label = f"{unit_name} of {category or 'everything'} on this rank"
        axes.set(title=title, ylabel=label)
        _draw_phases(axes, columns, top)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{name} at most {amount(max(values))}" for name, values in held.items())
    return Plot(figure, f"{title}. {(category or 'everything').capitalize()} over time: {said}.")
