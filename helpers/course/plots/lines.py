"""Lines over a common axis: curves, a number at every depth of a model, a machine's roofline, lost time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import log10
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from helpers.course.plots.drawing import darkened, legend_beside, new_figure, new_panels, write_beside
from helpers.course.plots.style import DASHES, LINES, MARKERS, WIDE, Plot, check_told_apart, in_style
from helpers.tools.theory.roofline import MachineConstants, ridge, roofline_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Line = tuple[Sequence[float], Sequence[float]]  # xs, ys
POINTS = len(LINES) * len(MARKERS)
MINUTES, SHARES = (1, 2, 5, 10, 20, 60, 180), (1, 2, 5, 10, 20, 50, 100)  # ticks of lost time
PANEL_LOOKS = ((LINES[0], "-", 3.6), (LINES[1], "-", 1.4), ("0.35", "--", 1.2))
RATES = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"))


@in_style
def curves(
    lines: Mapping[str, Line],
    title: str,
    x: str,
    y: str,
    log: bool | str = False,
    points: Mapping[str, Line] | None = None,
    peaks: bool = False,
    crossings: Mapping[str, Line] | None = None,
    ends: bool = False,
) -> Plot:
    """Lines {name: (xs, ys)}; `points` in the same form are drawn as dots (measured beside predicted),
    `crossings` as black ones (places on the lines).

    Both axes are logarithmic with `log`, with "x" the horizontal one alone.  Six colours, then the same
    with other dashes and markers.  With `ends` names stand at the ends of lines
    and beside crossings.
    The sentence gives each line's last value, or with `peaks` its largest; pass values that are the same in
    every run.

    Raises:
        ValueError: for more lines, points or crossings than can be told apart.
    """
    points, crossings = points or {}, crossings or {}
    check_told_apart(lines, len(LINES) * len(DASHES), "lines")
    check_told_apart(points, POINTS, "points")
    check_told_apart(crossings, len(MARKERS), "crossings")
    figure, axes = new_figure()
    for (dash, colour), (name, (xs, ys)) in zip(product(DASHES, LINES), lines.items()):
        axes.plot(xs, ys, dash, color=colour, label="_" + name if ends else name)
        if ends:
            _name_end(axes, name, xs, ys, colour)
    _draw_points(axes, points)
    for marker, (name, (xs, ys)) in zip(MARKERS, crossings.items()):
        axes.plot(
            xs, ys, marker, color="black", label="_" + name if ends else name, linestyle="none", zorder=3
        )
        if ends:
            write_beside(axes, xs[0], ys[0], name, 7, -4, va="top", fontsize=9)
    axes.set(title=title, xlabel=x, ylabel=y)
    if log:
        axes.set_xscale("log")
    if log is True:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    places = sorted({place for xs, _ in points.values() for place in xs})
    if (3 if log else 1) <= len(places) <= 8:  # one or two powers of ten would be no axis
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.xaxis.set_minor_formatter(NullFormatter())  # a logarithmic axis has some, which would overlap
    if not ends:
        legend_beside(axes)
    elif points:
        axes.legend(loc="upper left")
    verb, number = ("has its peak at", max) if peaks else ("ends at", lambda ys: ys[-1])
    drawn = {**lines, **points, **crossings}
    said = "; ".join(f"{name} {verb} {number(ys):,.3g}" for name, (_, ys) in drawn.items())
    return Plot(figure, f"{title}. {y} over {x}: {said}.")


@in_style
def in_panels(panels: Mapping[str, Mapping[str, Line]], title: str, x: str) -> Plot:
    """Lines in panels, two in a row: {name of the panel: {line: (xs, ys)}}, the same lines in each.  A later
    one is thinner, so that lines which coincide are seen; the third is dashed.  The sentence gives the last
    values."""
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(WIDE, 0.4 + 2.3 * rows), layout="constrained")
    figure.suptitle(title, fontsize=11)
    said = []
    for axes, (name, lines) in zip(figure.subplots(rows, 2, squeeze=False).flat, panels.items()):
        check_told_apart(lines, len(PANEL_LOOKS), "lines")
        for (colour, dash, width), (line, (xs, ys)) in zip(PANEL_LOOKS, lines.items()):
            axes.plot(xs, ys, dash, color=colour, linewidth=width, label=line)
        axes.set_title(name, fontsize=10)
        axes.set_ylim(0, 1.15 * max(max(ys) for _, ys in lines.values()))
        axes.set_xlabel(x)
        said.append(f"{name}: {', '.join(f'{line} {ys[-1]:,.3g}' for line, (_, ys) in lines.items())}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(lines))
    return Plot(figure, f"{title.removesuffix('.')}. At the end, {'; '.join(said)}.")


@in_style
def over_seeds(
    losses: Mapping[str, Sequence[Sequence[float]]], title: str, beside: str, x: str = "step"
) -> Plot:
    """How far losses lie above those of one way to train, `beside`, from the same seed: {way: [losses of each
    step, for each seed]}, a line for each seed of the others.  The sentence gives means of the last ten
    steps, to a tenth.

    Raises:
        LookupError: there is no such way.
    """
    if beside not in losses:
        raise LookupError(f"no way is called {beside!r}; there are {', '.join(losses)}")
    figure, axes = new_figure()
    said = []
    for way, colour, dash in zip([way for way in losses if way != beside], LINES, DASHES * len(LINES)):
        seeds = zip(losses[way], losses[beside], strict=True)
        above = [[one - other for one, other in zip(*pair, strict=True)] for pair in seeds]
        for at, line in enumerate(above):
            axes.plot(line, dash, color=colour, linewidth=1.3, label=f"_{at}" if at else way)
        ends = [sum(line[-10:]) / len(line[-10:]) for line in above]
        least, most = (f"{number:.1f}".replace("-0.0", "0.0") for number in (min(ends), max(ends)))
        said.append(f"{way} {least}" + (f" to {most}" if most != least else ""))
    axes.set(title=title, xlabel=x, ylabel=f"loss above that of {beside}")
    legend_beside(axes)
    return Plot(figure, f"{title}. Loss above that of {beside} at the end, by seed: {'; '.join(said)}.")


def _name_end(axes: Axes, name: str, xs: Sequence[float], ys: Sequence[float], colour: str) -> None:
    write_beside(axes, xs[-1], ys[-1], name, 8, 0, va="center", color=darkened(colour), fontsize=9)


def _draw_points(axes: Axes, points: Mapping[str, Line]) -> None:
    for (marker, colour), (name, (xs, ys)) in zip(product(MARKERS, LINES), points.items()):
        axes.plot(xs, ys, marker, color=colour, label=name, markerfacecolor="white")


@in_style
def by_depth(
    panels: Mapping[str, Mapping[str, Sequence[float]]], title: str, y: str, lowest: float, highest: float
) -> Plot:
    """A positive number at every depth, for instance the norm of a gradient: {panel: {line: [number at every
    depth]}}, on one logarithmic axis.

    A number that is not finite, or lies outside of `lowest` to `highest`, is left out; lines that coincide
    differ in dashes, width and marker.  The sentence gives the powers of ten at both ends, or that they are
    below or above what is drawn.
    """
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    figure, axes = new_panels(max(len(panels), 2), 4.5, 3.4, title)
    heights = []
    for panel, (title_of_panel, lines) in zip(axes, panels.items()):
        for name, numbers in lines.items():
            index = names.index(name)
            places = {place: number for place, number in enumerate(numbers) if lowest <= number <= highest}
            heights += places.values()
            panel.plot(
                list(places),
                list(places.values()),
                color=LINES[index % len(LINES)],
                linestyle=DASHES[index % len(DASHES)],
                linewidth=3.4 - 2 * index / len(names),
                marker=MARKERS[index % len(MARKERS)],
                markersize=5,
                markerfacecolor="white",
                markevery=(2 * index, 12),
                label=name,
            )
        panel.set(title=title_of_panel, xlabel="depth, in blocks", yscale="log")
    for panel in axes[: len(panels)]:
        panel.set_ylim(min(heights) / 10, 10 * max(heights))
    axes[0].set_ylabel(y)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", handlelength=3.5)

    def power(number):
        if number < lowest:
            return f"below 10^{round(log10(lowest))}"
        if number > highest:
            return f"above 10^{round(log10(highest))}"
        return f"10^{round(log10(number))}" if number == number else "nan"

    said = []
    for panel, lines in panels.items():
        ends = (f"{name} {power(numbers[0])} to {power(numbers[-1])}" for name, numbers in lines.items())
        said.append(f"{panel}: {', '.join(ends)}")
    return Plot(
        figure, f"{title}. {y}, from the first block to the last: {'; '.join(said)}.".replace("\n", " ")
    )


@in_style
def roofline(
    machine: MachineConstants, points: Mapping[str, tuple[float, float]], title: str, dtype: str = "bf16"
) -> Plot:
    """The roofline of a machine on logarithmic axes, with its ridge, and measured work as points (Williams et
    al., 2009).

    Args:
        machine: the roof is its best matrix rate, the slope its memory bandwidth.
        points: {name: (FLOPs per byte, FLOPs per second)}, both positive; may be empty.
        dtype: "bf16" or "fp32", of the roof.

    Raises:
        ValueError: for a point that has no place on logarithmic axes, more points than can be told apart, or
            a dtype that was not measured.
    """
    if wrong := [name for name, place in points.items() if not all(number > 0 for number in place)]:
        raise ValueError(
            f"FLOPs per byte and FLOPs per second must be positive, and are not for {', '.join(wrong)}"
        )
    check_told_apart(points, POINTS, "points")
    peak, corner = machine.peak(dtype), ridge(machine.peak(dtype), machine.memory)
    divisor, unit = next((pair for pair in RATES if peak >= pair[0]), RATES[-1])
    left = min([corner / 30, *(intensity / 2 for intensity, _ in points.values())])
    right = max([corner * 30, *(intensity * 2 for intensity, _ in points.values())])
    figure, axes = new_figure()
    roof = {place: roofline_rate(place, peak, machine.memory) for place in (left, corner, right)}
    axes.plot(list(roof), [rate / divisor for rate in roof.values()], color="black", label="at best")
    axes.axvline(corner, color="black", linestyle=":", linewidth=0.8, label="ridge")
    _draw_points(axes, {name: ([place], [rate / divisor]) for name, (place, rate) in points.items()})
    axes.set(
        title=title, xlabel="arithmetic intensity, FLOPs per byte", ylabel=unit, xscale="log", yscale="log"
    )
    axes.grid(True, axis="both")
    legend_beside(axes)
    best = f"at best {peak / divisor:,.3g} {unit}, from the ridge at {corner:,.3g} FLOPs per byte on"
    said = [f"{best}; memory {machine.memory / 1e9:,.1f} GB/s"]
    for name, (intensity, rate) in points.items():
        part = rate / roofline_rate(intensity, peak, machine.memory)
        said.append(
            f"{name}: {intensity:,.3g} FLOPs per byte, {rate / divisor:,.3g} {unit}, "
            f"{100 * part:.0f} % of what is attainable there"
        )
    return Plot(figure, f"{title}. {'; '.join(said)}.".replace("\n", " "))


@in_style
def lost_time(lines: Mapping[str, Line], best: Mapping[str, tuple[float, float]], title: str) -> Plot:
    """The share of a job's time that is lost, over the minutes between two saves, both on logarithmic axes
    with plain numbers; a dot at each line's chosen interval.

    Args:
        lines: {name: (minutes, lost shares between 0 and 1)}.
        best: {name: (minutes, lost share)} of the chosen intervals.

    Raises:
        ValueError: for more lines than can be told apart.
    """
    check_told_apart(lines, len(LINES), "lines")
    figure, axes = new_figure()
    for colour, (name, (minutes, shares)) in zip(LINES, lines.items()):
        percent, (at, lost) = [100 * share for share in shares], best[name]
        axes.plot(minutes, percent, color=colour)
        axes.plot([at], [100 * lost], "o", color=colour, markersize=8)
        _name_end(axes, name, minutes, percent, colour)
    axes.set(title=title, xlabel="minutes between saves", ylabel="per cent of the time")
    axes.set(xscale="log", yscale="log")
    for axis, ticks in ((axes.xaxis, MINUTES), (axes.yaxis, SHARES)):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
        axis.set_ticks(ticks, [f"{tick}" for tick in ticks])
    axes.set_ylim(0.9, 100)
    said = "; ".join(f"{name}: {100 * lost:.1f} % at {at:.0f} minutes" for name, (at, lost) in best.items())
    return Plot(figure, f"{title}. Least, at the intervals chosen: {said}.")
