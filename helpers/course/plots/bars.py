"""Bars beside each other, or stacked from parts: memory by category, times, shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import (
    BEHIND,
    dashed_line,
    legend_below,
    legend_beside,
    new_figure,
    swatch,
    write_beside,
)
from helpers.course.plots.style import (
    LAYERS,
    LINES,
    LOOK,
    VISIBLE,
    Plot,
    amount,
    in_style,
    part_colour,
    told,
    unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DROPPED = "#BBBBBB"  # tokens
HATCHES = ("", "//", "..", "xx", "\\\\")
Looks = Mapping[str, tuple[str, str]]  # colour and hatch of each part that is drawn, from the bottom


@in_style
def memory_bars(
    clusters: Mapping[str, Mapping[str, Mapping[str, float] | None]],
    title: str,
    parameters: float | None = None,
    capacity: float | None = None,
    line: str = "capacity",
) -> Plot:
    """Stacked bars of a rank's memory by category.

    Args:
        clusters: {cluster: {bar: {category: bytes}}}, for instance {"bf16": {"predicted": ..., "measured":
            ...}}; a bar that is None did not fit.
        parameters: of the model, for bytes per parameter instead of bytes.
        capacity: bytes that a rank's device has, drawn as a line; `line` says what it is.
    """
    bars = [(name, sizes or {}) for group in clusters.values() for name, sizes in group.items()]
    totals = [sum(sizes.values()) for _, sizes in bars]
    figure, axes = new_figure(max(7.2, len(bars)))
    divisor, unit_name = (parameters, "bytes per parameter,") if parameters else unit(max(totals))
    places, middles, place = [], {}, 0.4
    for cluster, group in clusters.items():
        there = [place + 0.6 + index for index in range(len(group))]
        places, place, middles[cluster] = places + there, there[-1] + 1, sum(there) / len(there)
    looks = {
        category: look
        for category, look in LOOK.items()
        if any(sizes.get(category, 0) > VISIBLE * max(totals) for _, sizes in bars)
    }
    tops = _stack(axes, places, [sizes for _, sizes in bars], looks, divisor, width=0.8, linewidth=0.5)
    behind = {**BEHIND, "pad": 1} if capacity else None  # the line may pass behind the number
    for place, top, total, (_, sizes) in zip(places, tops, totals, bars):
        words = f"{total / divisor:,.3g}" if sizes else "does not\nfit"
        look = {"ha": "center", "va": "bottom", "fontsize": 9, "bbox": behind, "zorder": 5}
        write_beside(axes, place, top, words, 0, 2, **look)
    axes.set_xticks(places, [name for name, _ in bars], fontsize=9 if len(bars) < 6 else 8)
    if len(clusters) > 1:
        for cluster, middle in middles.items():
            below = {"xycoords": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
            write_beside(axes, middle, 0, cluster, 0, -20, **below)
    axes.set(title=title, ylabel=f"{unit_name} per rank")
    axes.set_ylim(0, 1.12 * max(*tops, (capacity or 0) / divisor))
    axes.grid(False, axis="x")
    if capacity:
        dashed_line(axes, capacity / divisor, f"{line}, {amount(capacity)}")
    legend_below(axes, -0.22 if len(clusters) > 1 else -0.1, 4)

    def words_of(sizes):
        if not sizes:
            return "does not fit"
        total = sum(sizes.values())
        return f"{total / parameters:.3f} bytes per parameter" if parameters else amount(total)

    told_line = f"; {line} {amount(capacity)}" if capacity else ""
    return Plot(figure, f"{title}. {told(clusters, words_of)}{told_line}.")


def _stack(
    axes: Axes,
    places: Sequence[float | str],
    rows: Sequence[Mapping[str, float]],
    looks: Looks,
    divisor: float,
    **options: object,
) -> list[float]:
    """Draw a bar of parts for each row; returns the bars' heights."""
    tops = [0.0] * len(rows)
    for part, (colour, hatch) in looks.items():
        heights = [sizes.get(part, 0) / divisor for sizes in rows]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "label": part, **options}
        axes.bar(places, heights, bottom=tops, **look)
        tops = [top + height for top, height in zip(tops, heights)]
    return tops


@in_style
def _part_bars(rows, title, y, looks, divisor, sentence, width=7.2):
    """A figure with a stack for each row; its legend has the order of the parts."""
    figure, axes = new_figure(width)
    tops = _stack(axes, list(rows), list(rows.values()), looks, divisor, width=0.7)
    axes.set(title=title, ylabel=y, ylim=(0, 1.05 * max(tops)))
    axes.grid(False, axis="x")
    legend_beside(axes, axes.get_legend_handles_labels()[0][::-1])
    return Plot(figure, sentence)


PLAIN = {"measured": ("#999999", ""), "waiting": ("#DDDDDD", "")}  # parts of a step's time that are no work


def time_bars(
    steps: Mapping[str, Mapping[str, float] | float], title: str, x: str = "", room: float = 1.3
) -> Plot:
    """What a step's time consists of, in milliseconds, from a second on in seconds: {bar: {part:
    seconds}}; a bar that is a number is one part, called "measured".

    `theory.step_seconds` gives parts; beside them stands what was measured.  A part that is zero everywhere
    is left out.

    Args:
        x: what the bars' names are, where they do not say it themselves.
        room: inches for each bar.
    """
    rows = {name: step if isinstance(step, Mapping) else {"measured": step} for name, step in steps.items()}
    parts = dict.fromkeys(part for seconds in rows.values() for part in seconds)
    drawn = [part for part in parts if any(seconds.get(part) for seconds in rows.values())]
    looks = dict(zip(drawn, zip(cycle(LINES), cycle(HATCHES))))
    looks |= {part: look for part, look in PLAIN.items() if part in drawn}
    longest = max(sum(parts.values()) for parts in rows.values())
    factor, unit_name = (1, "seconds") if longest >= 1 else (1e3, "milliseconds")
    said = []
    for name, parts in rows.items():
        inside = ", ".join(f"{part} {factor * parts[part]:,.3g}" for part in drawn if parts.get(part))
        words = f" ({inside})" if inside and len(parts) > 1 else ""
        said.append(f"{name} {factor * sum(parts.values()):,.3g} {unit_name}{words}")
    sentence = f"{title}. {'; '.join(said)}.".replace("\n", " ")
    plot = _part_bars(rows, title, unit_name, looks, 1 / factor, sentence, max(7.2, room * len(rows)))
    plot.figure.axes[0].set_xlabel(x)
    return plot


def share_bars(wholes: Mapping[str, Mapping[str, float]], title: str, y: str) -> Plot:
    """What wholes consist of, {bar: {part: size}}, in percent; a transformer's layers look as in its
    schematic."""
    shares = {bar: {part: 100 * of[part] / sum(of.values()) for part in of} for bar, of in wholes.items()}
    parts = dict.fromkeys(part for sizes in shares.values() for part in sizes)
    looks = {part: LAYERS.get(part, (part_colour(index), "")) for index, part in enumerate(parts)}
    said = told(shares, lambda share: f"{share:.1f} %")
    plot = _part_bars(shares, title, y, looks, 1, f"{title}. {said}.")
    for parts in plot.figure.axes[0].containers:
        plot.figure.axes[0].bar_label(parts, fmt="%.0f", label_type="center", bbox=BEHIND)
    return plot


def _beside(index: int, count: int, groups: int) -> list[float]:
    """Where the bars number `index` of `count` in each group stand."""
    return [group + (index - (count - 1) / 2) * 0.8 / count for group in range(groups)]


@in_style
def grouped_bars(groups: Mapping[str, Mapping[str, float]], title: str, y: str, values: str) -> Plot:
    """Numbers beside each other: {group: {bar: number}}, all groups with the same bars; each bar's number
    stands above it in the format `values`, such as "%.1f"."""
    names = list(next(iter(groups.values())))
    figure, axes = new_figure(max(7.2, 1.4 * len(groups)))
    for index, name in enumerate(names):
        heights, width = [bars[name] for bars in groups.values()], 0.95 * 0.8 / len(names)
        places = _beside(index, len(names), len(groups))
        bars = axes.bar(places, heights, width, color=LINES[index % len(LINES)], label=name)
        axes.bar_label(bars, fmt=values, fontsize=8)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=9)
    axes.set(title=title, ylabel=y)
    axes.grid(False, axis="x")
    if len(names) > 1:
        legend_beside(axes)
    said = told(groups, "{:.2f}".format)
    return Plot(figure, f"{title}, {y}. {said}.".replace("-\n", "-").replace("\n", ", "))


@in_style
def expert_loads(loads: Mapping[str, Sequence[tuple[int, int]]], title: str, capacity: int) -> Plot:
    """Tokens that each expert got and that it had no room for: {case: [(taken, dropped) of each expert]}, a
    group of bars for each case; `capacity`, the tokens that an expert takes, is a line."""
    most = max(map(len, loads.values()))
    figure, axes = new_figure(max(7.2, 1.9 * len(loads)))
    for expert in range(most):
        places, width = _beside(expert, most, len(loads)), 0.92 * 0.8 / most
        taken, dropped = ([experts[expert][part] for experts in loads.values()] for part in (0, 1))
        axes.bar(places, taken, width, color=LINES[0])
        axes.bar(places, dropped, width, bottom=taken, color=DROPPED, hatch="xx", edgecolor="white")
        for place in places:
            write_beside(axes, place, 0, str(expert), 0, -4, ha="center", va="top", fontsize=8)
    handles = [swatch("taken", LINES[0])]
    if any(gone for experts in loads.values() for _, gone in experts):
        handles.append(swatch("dropped", DROPPED, hatch="xx", edgecolor="white"))
    handles.append(axes.axhline(capacity, color=LINES[1], linestyle="--", label="capacity"))
    axes.set_xticks(range(len(loads)), list(loads), fontsize=9)
    axes.tick_params(axis="x", length=0, pad=16)
    axes.set(title=title, ylabel="tokens")
    axes.set_ylim(0, 1.05 * max(taken + gone for experts in loads.values() for taken, gone in experts))
    axes.grid(False, axis="x")
    legend_beside(axes, handles)
    cases = {
        case.replace("\n", " "): {
            f"expert {number}": f"{taken + gone} ({gone} dropped)"
            for number, (taken, gone) in enumerate(experts)
        }
        for case, experts in loads.items()
    }
    return Plot(figure, f"{title}. {told(cases, str)}; an expert takes {capacity}.")
