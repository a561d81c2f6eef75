"""Numbers that are not memory categories: curves, bars beside each other, bars of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, product

import matplotlib
import matplotlib.ticker
from helpers.course.plots.schematics_transformer import LAYERS
from helpers.course.plots.style import (
    DASHES,
    LINES,
    MARKERS,
    PARTS,
    STYLE,
    Plot,
    amount,
    check_told_apart,
    new_figure,
    unit,
)

Line = tuple[Sequence[float], Sequence[float]]  # xs, ys


def curves(
    lines: Mapping[str, Line],
    title: str,
    x: str,
    y: str,
    log: bool = False,
    points: Mapping[str, Line] | None = None,
    peaks: bool = False,
    crossings: Mapping[str, Line] | None = None,
    ends: bool = False,
) -> Plot:
    """Lines over a common axis: {name: (xs, ys)}; `points` in the same form are drawn as dots (measured
    beside predicted),
    `crossings` as black ones (places on the lines).

    Six colours, then the same with other dashes and markers.  With `ends` each line's name stands at its end.
    The sentence gives each line's last value, or with `peaks` its largest; pass values that are the same in
    every run.

    Raises:
        ValueError: for more lines, points or crossings than can be told apart.
    """
    check_told_apart(lines, len(LINES) * len(DASHES), "lines")
    check_told_apart(points or {}, len(LINES) * len(MARKERS), "points")
    check_told_apart(crossings or {}, len(MARKERS), "crossings")
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        for (dash, colour), (name, (xs, ys)) in zip(product(DASHES, LINES), lines.items()):
            axes.plot(xs, ys, dash, color=colour, label="_" + name if ends else name)
            if ends:
                axes.annotate(
                    name,
                    (xs[-1], ys[-1]),
                    xytext=(8, 0),
                    textcoords="offset points",
                    va="center",
                    color=colour,
                    fontsize=9,
                )
        for (marker, colour), (name, (xs, ys)) in zip(product(MARKERS, LINES), (points or {}).items()):
            axes.plot(xs, ys, marker, color=colour, label=name, markerfacecolor="white")
        for marker, (name, (xs, ys)) in zip(MARKERS, (crossings or {}).items()):
            axes.plot(xs, ys, marker, color="black", label=name, linestyle="none", zorder=3)
        axes.set(title=title, xlabel=x, ylabel=y)
        if log:
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        places = sorted({place for xs, _ in (points or {}).values() for place in xs})
        if (3 if log else 1) <= len(places) <= 8:  # one or two powers of ten would be no axis
            axes.set_xticks(places, [f"{place:,}" for place in places])
            axes.xaxis.set_minor_formatter(
                matplotlib.ticker.NullFormatter()
            )  # a logarithmic axis has some, which would overlap
        if not ends:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        elif points or crossings:
            axes.legend(loc="upper left")
    told, number = ("has its peak at", max) if peaks else ("ends at", lambda ys: ys[-1])
    said = "; ".join(
        f"{name} {told} {number(ys):,.3g}"
        for name, (_, ys) in {**lines, **(points or {}), **(crossings or {})}.items()
    )
    return Plot(figure, f"{title}. {y} over {x}: {said}.")


def grouped_bars(groups: Mapping[str, Mapping[str, float]], title: str, y: str, values: str = "") -> Plot:
    """Numbers of one kind beside each other, without units of memory: {group: {bar: number}}, for instance a
    ratio predicted and measured.

    With `values`, a format such as "%.1f", each bar's number stands above it.
    """
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.8 / len(names)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(max(7.2, 1.4 * len(groups)), 3.6))
        for index, name in enumerate(names):
            places = [
                place + (index - (len(names) - 1) / 2) * width
                for place, bars in enumerate(groups.values())
                if name in bars
            ]
            heights = [bars[name] for bars in groups.values() if name in bars]
            bars = axes.bar(places, heights, width=0.95 * width, color=LINES[index % len(LINES)], label=name)
            if values:
                axes.bar_label(bars, fmt=values, fontsize=8)
        axes.set_xticks(range(len(groups)), list(groups), fontsize=9)
        axes.set(title=title, ylabel=y)
        axes.grid(False, axis="x")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(
        f"{group}: " + ", ".join(f"{name} {value:.2f}" for name, value in bars.items())
        for group, bars in groups.items()
    )
    return Plot(figure, f"{title}, {y}. {said}.".replace("-\n", "-").replace("\n", ", "))


def _stacked(rows, title, y, factor=1.0, looks=None, parts=None, **options):
    """Stacked bars without the meaning of memory categories: {bar: {part: number}}; `looks` has (colour,
    hatch) of parts that have their own, `parts` those that are drawn."""
    parts = parts or list(dict.fromkeys(part for sizes in rows.values() for part in sizes))
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(**options)
        bottoms = [0.0] * len(rows)
        for index, part in enumerate(parts):
            heights = [factor * sizes.get(part, 0) for sizes in rows.values()]
            colour, hatch = (looks or {}).get(part, (PARTS[index % len(PARTS)], ""))
            look = {"color": colour, "hatch": hatch, "edgecolor": "white", "width": 0.7}
            axes.bar(list(rows), heights, bottom=bottoms, label=part, **look)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        axes.set(title=title, ylabel=y, ylim=(0, 1.05 * max(bottoms)))
        axes.grid(False, axis="x")
        if len(parts) > 1 or options:
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def byte_bars(steps: Mapping[str, dict[str, float] | float], title: str) -> Plot:
    """Bytes of several kinds beside each other, for instance what a rank sends: {bar: {part: bytes}}, or
    {bar: bytes} for one colour."""
    rows = {name: sizes if isinstance(sizes, dict) else {"all": sizes} for name, sizes in steps.items()}
    divisor, unit_name = unit(max(sum(sizes.values()) for sizes in rows.values()))
    said = ", ".join(f"{name} {amount(sum(sizes.values()))}" for name, sizes in rows.items()).replace(
        "\n", " "
    )
    return Plot(_stacked(rows, title, f"{unit_name} per rank", 1 / divisor), f"{title}. {said}.")


def time_bars(steps: Mapping[str, dict[str, float] | float], title: str, whole: str = "measured") -> Plot:
    """What a step's time consists of, stacked, in milliseconds, from ten seconds on in seconds: {bar: {part:
    seconds}}; a bar that is a number is one part, called `whole`.

    `theory.step_seconds` gives parts; beside them stands what was measured.  A part that is zero everywhere
    is left out.
    """
    rows = {name: parts if isinstance(parts, dict) else {whole: parts} for name, parts in steps.items()}
    drawn = [
        part
        for part in dict.fromkeys(part for parts in rows.values() for part in parts)
        if any(parts.get(part) for parts in rows.values())
    ]
    longest = max(sum(parts.values()) for parts in rows.values())
    factor, unit_name = (1, "seconds") if longest >= 10 else (1e3, "milliseconds")
    looks = dict(zip(drawn, zip(cycle(LINES), cycle(("", "//", "..", "xx", "\\\\"))))) | {
        whole: ("#999999", "")
    }
    size = (max(7.2, 1.3 * len(rows)), 3.6)
    figure = _stacked(rows, title, unit_name, factor, looks, drawn, figsize=size)
    said = []
    for name, parts in rows.items():
        inside = (
            ", ".join(f"{part} {factor * parts[part]:,.3g}" for part in drawn if parts.get(part))
            if len(parts) > 1
            else ""
        )
        said.append(
            f"{name} {factor * sum(parts.values()):,.3g} {unit_name}" + (f" ({inside})" if inside else "")
        )
    return Plot(figure, f"{title}. {'; '.join(said)}.".replace("\n", " "))


def share_bars(shares: Mapping[str, Mapping[str, float]], title: str, y: str) -> Plot:
    """What a whole consists of, in percent: {bar: {part: percent}}; a transformer's layers look as in its
    schematic."""
    said = "; ".join(
        f"{name}: " + ", ".join(f"{part} {share:.1f} %" for part, share in parts.items())
        for name, parts in shares.items()
    )
    return Plot(_stacked(shares, title, y, looks=LAYERS), f"{title}. {said}.")
