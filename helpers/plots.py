"""The course's figures, drawn from plain data.  Each comes with a sentence that holds its key numbers.

A notebook stores the picture as PNG and the sentence as text, so that a reader without sight has the numbers and nbval compares them.
The same category has the same colour and hatch in every lesson.  MB = 10^6 bytes.
"""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib
import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from helpers.schedules import idle_fraction

STYLE = Path(__file__).with_name("course.mplstyle")
# Okabe and Ito's colours, distinct for colour-blind readers, with a hatch for print.
LOOK = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#D55E00", "//"),
    "master weights": ("#009E73", ""),
    "optimizer states": ("#56B4E9", "\\\\"),
    "buffers": ("#999999", "xx"),
    "activations": ("#E69F00", ".."),
    "inputs": ("#CC79A7", "--"),
    "other": ("#444444", ""),
}
PARTS = ("#332288", "#88CCEE", "#DDCC77", "#AA4499", "#117733")  # Paul Tol's, for what is no memory category
ACTIONS = {  # of a pipeline
    "F": ("#0072B2", "forward"),
    "B": ("#D55E00", "backward"),
    "I": ("#CC79A7", "backward: input"),
    "W": ("#009E73", "backward: weights"),
}
VISIBLE = 0.002  # a category that is a smaller part of the tallest bar cannot be seen, and is left out of the legend
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Plot:
    """A matplotlib figure and the sentence that says what it shows; the last expression of a cell displays both."""

    def __init__(self, figure, sentence):
        self.figure, self.sentence = figure, sentence

    def _repr_mimebundle_(self, include=None, exclude=None):
        file = io.BytesIO()
        self.figure.savefig(file, format="png", bbox_inches="tight", metadata={"Software": None})  # tight: nothing is cut off
        return {"image/png": file.getvalue(), "text/plain": f"Figure: {self.sentence}"}


def new_figure(columns=1, **options):
    """A figure in the course's style, and its axes (one, or a list where there are several columns)."""
    with matplotlib.style.context(STYLE):
        figure = Figure(**options)
        axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    return figure, axes[0] if columns == 1 else axes


def unit(largest):
    """The unit that keeps numbers short: (divisor, name)."""
    for divisor, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= divisor:
            return divisor, name
    return 1, "bytes"


def amount(size):
    """A number of bytes for a sentence: '3,528,912 bytes' or '3.5 GB'."""
    divisor, name = unit(size)
    return f"{size:,.0f} bytes" if size < 1e9 else f"{size / divisor:,.1f} {name}"


def legend_below(axes, distance):
    """The legend under the axes, in the order in which things are stacked from the bottom."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -distance), ncols=4)


def memory_bars(clusters, title, parameters=None):
    """Stacked bars of memory by category, measured beside predicted.

    Args:
        clusters: {cluster: {bar: {category: bytes}}}, for instance {"bf16": {"predicted": ..., "measured": ...}}; a bar that is None
            did not fit.
        title: what the figure shows.
        parameters: of the model, for bytes per parameter instead of bytes.
    """
    with matplotlib.style.context(STYLE):
        bars = [(cluster, name, sizes or {}) for cluster, group in clusters.items() for name, sizes in group.items()]
        figure, axes = new_figure(figsize=(max(7.2, len(bars)), 3.6))
        divisor, unit_name = unit(max(sum(sizes.values()) for _, _, sizes in bars))
        if parameters:
            divisor, unit_name = parameters, "bytes per parameter,"
        places, place = [], 0.0
        for index, (cluster, _, _) in enumerate(bars):
            place += 1.0 if index == 0 or bars[index - 1][0] == cluster else 1.6
            places.append(place)
        tallest = max(sum(sizes.values()) for _, _, sizes in bars)
        used = [category for category in LOOK if any(sizes.get(category, 0) > VISIBLE * tallest for _, _, sizes in bars)]
        bottoms = [0.0] * len(bars)
        for category in used:
            heights = [sizes.get(category, 0) / divisor for _, _, sizes in bars]
            colour, hatch = LOOK[category]
            axes.bar(places, heights, bottom=bottoms, width=0.8, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=category)
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
            )
        axes.set_xticks(places, [name for _, name, _ in bars], fontsize=9 if len(bars) < 6 else 8)
        for cluster in clusters if len(clusters) > 1 else ():
            own = [place for place, (name, _, _) in zip(places, bars) if name == cluster]
            below = axes.get_xaxis_transform()
            axes.annotate(cluster, (sum(own) / len(own), 0), xycoords=below, xytext=(0, -20), textcoords="offset points", ha="center", va="top")
        axes.set(title=title, ylabel=f"{unit_name} per rank", ylim=(0, 1.12 * max(bottoms)))
        axes.grid(False, axis="x")
        legend_below(axes, 0.22 if len(clusters) > 1 else 0.1)

    def words(sizes):
        total = sum((sizes or {}).values())
        return "does not fit" if not sizes else f"{total / parameters:.3f} bytes per parameter" if parameters else amount(total)

    said = "; ".join(f"{cluster}: " + ", ".join(f"{name} {words(sizes)}" for name, sizes in group.items()) for cluster, group in clusters.items())
    return Plot(figure, f"{title}. {said}.")


def phases(history):
    """Where a timeline's phases lie on the axis: every event's place, and (start, end, name) of each phase.

    A phase lasts from one mark to the next and is as wide as any other, since an optimizer step has many more allocations than a forward
    pass and would fill the picture.  Marks with next to nothing between them (a snapshot and the phase that follows) count as one.
    """
    count = len(history.total)
    marks = [(at, name) for at, name in history.marks if at < count - 1] or [(0, "")]
    starts = [mark for mark, following in zip(marks, [*marks[1:], (count, "")]) if following[0] - mark[0] > max(8, count // 100)]
    starts[0] = (0, starts[0][1])
    bounds = [*(at for at, _ in starts), count - 1]
    places = []
    for index, (first, last) in enumerate(zip(bounds, bounds[1:])):
        places += [index + step / (last - first) for step in range(last - first)]
    return [*places, len(starts)], [(index, index + 1, name) for index, (_, name) in enumerate(starts)]


def memory_over_time(history, title, predicted=None):
    """Memory by category after every allocation and release, in order, a column for each phase between two marks of the ledger.

    Args:
        history: a `helpers.ledger.History`.
        title: what the figure shows.
        predicted: {name: bytes} drawn as horizontal lines.
    """
    totals = history.total
    divisor, unit_name = unit(max(totals))
    used = [category for category in LOOK if max(history.totals.get(category, [0])) > VISIBLE * max(totals)]
    places, columns = phases(history)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        colours = [LOOK[category][0] for category in used]
        layers = [[value / divisor for value in history.totals[category]] for category in used]
        areas = axes.stackplot(places, layers, labels=used, colors=colours, step="post", linewidth=0)
        for area, category in zip(areas, used):
            area.set(hatch=LOOK[category][1], edgecolor="white")
        top = 1.18 * max(totals) / divisor
        for name, size in (predicted or {}).items():
            axes.axhline(size / divisor, color="black", linestyle="--", linewidth=1, label=f"predicted: {name}")
        for start, end, name in columns:
            axes.axvline(start, color="black", linewidth=0.6, alpha=0.5)
            axes.annotate(name, ((start + end) / 2, top), ha="center", va="top", fontsize=9)
        axes.set(title=title, xlabel="allocations and releases, in order", ylabel=f"{unit_name} on this rank", xlim=(0, len(columns)), ylim=(0, top))
        axes.set_xticks([])
        legend_below(axes, 0.08)
    lines = "".join(f", predicted {name} {amount(size)}" for name, size in (predicted or {}).items())
    return Plot(figure, f"{title}. From {amount(totals[0])} to a peak of {amount(max(totals))} and back to {amount(totals[-1])}{lines}.")


def curves(lines, title, x, y, log=False, points=None):
    """Lines over a common axis: {name: (xs, ys)}; `points` in the same form are drawn as dots (measured beside predicted).

    The sentence gives each line's last value; pass values that are the same in every run.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        for colour, (name, (xs, ys)) in zip(LINES, lines.items()):
            axes.plot(xs, ys, color=colour, label=name)
        for colour, (name, (xs, ys)) in zip(LINES, (points or {}).items()):
            axes.plot(xs, ys, "o", color=colour, label=name, markerfacecolor="white")
        axes.set(title=title, xlabel=x, ylabel=y)
        if log:
            axes.set(xscale="log", yscale="log")
        else:
            axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
            places = sorted({place for xs, _ in (points or {}).values() for place in xs})
            if 0 < len(places) <= 8:
                axes.set_xticks(places)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{name} ends at {ys[-1]:,.3g}" for name, (_, ys) in {**lines, **(points or {})}.items())
    return Plot(figure, f"{title}. {y} over {x}: {said}.")


def grouped_bars(groups, title, y):
    """Numbers of one kind beside each other, without units of memory: {group: {bar: number}}, for instance a ratio predicted and measured."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    width = 0.8 / len(names)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(max(7.2, 1.4 * len(groups)), 3.6))
        for index, name in enumerate(names):
            places = [place + (index - (len(names) - 1) / 2) * width for place, bars in enumerate(groups.values()) if name in bars]
            heights = [bars[name] for bars in groups.values() if name in bars]
            axes.bar(places, heights, width=0.95 * width, color=LINES[index % len(LINES)], label=name)
        axes.set_xticks(range(len(groups)), list(groups), fontsize=9)
        axes.set(title=title, ylabel=y)
        axes.grid(False, axis="x")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{group}: " + ", ".join(f"{name} {value:.2f}" for name, value in bars.items()) for group, bars in groups.items())
    return Plot(figure, f"{title}, {y}. {said}.".replace("-\n", "-").replace("\n", ", "))


def contributors(number):
    """The ranks that a number of the collectives lesson comes from: rank r counts in units of 10^r."""
    return [rank for rank, digit in enumerate(reversed(str(abs(number)))) if digit != "0"]


def held(before, after, title, moments=("before", "after")):
    """What every rank holds before and after a collective: a row per rank, a box per element, coloured by the rank it comes from.

    Args:
        before, after: for each rank a list of whole numbers in which rank r counts in units of 10^r, so that the digits of a sum say
            who is in it; None or an empty list for a rank that holds nothing of interest.
        title: what the figure shows.
        moments: what the two sides are called.
    """
    widest = max(len(row or ()) for row in [*before, *after])
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(2, figsize=(7.2, 0.5 + 0.33 * len(before)))
        for axes, rows, name in zip(panels, (before, after), moments):
            for rank, row in enumerate(rows):
                for column, number in enumerate(row or ()):
                    sources = contributors(number)
                    colour = PARTS[sources[0] % len(PARTS)] if len(sources) == 1 else "#EEEEEE" if not sources else "#444444"
                    axes.add_patch(Rectangle((column, rank + 0.06), 0.94, 0.88, facecolor=colour))
                    dark = colour in ("#444444", PARTS[0], PARTS[3], PARTS[4])
                    axes.text(column + 0.47, rank + 0.5, number, ha="center", va="center", fontsize=9, color="white" if dark else "black")
            axes.set(title=f"{title}: {name}", xlim=(0, max(widest, 1)), ylim=(len(rows), 0), xticks=[])
            axes.set_yticks([rank + 0.5 for rank in range(len(rows))], [f"rank {rank}" for rank in range(len(rows))])
            axes.tick_params(length=0)
            axes.grid(False)
            axes.spines[:].set_visible(False)
    said = "; ".join(f"rank {rank} {first or 'nothing'} -> {last or 'nothing'}" for rank, (first, last) in enumerate(zip(before, after)))
    return Plot(figure, f"{title}. {said}.")


def pipeline_timeline(timelines, title, x, chunks=1):
    """What every rank does when: a row per rank, a box per action with its micro-batch's number.

    Args:
        timelines: for each rank a list of (kind, stage, micro, start, end), as in `helpers.schedules`.
        title: what the figure shows.
        x: the axis: "slots" or "milliseconds".
        chunks: stages per rank; boxes of a rank's second chunk are drawn lighter.
    """
    begin = min(event[3] for timeline in timelines for event in timeline)
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.42 * len(timelines)))
        for rank, timeline in enumerate(timelines):
            for kind, stage, micro, start, end in timeline:
                alpha = 1 if stage < len(timelines) or chunks == 1 else 0.55
                axes.add_patch(Rectangle((start - begin, rank + 0.06), end - start, 0.88, facecolor=ACTIONS[kind][0], alpha=alpha, edgecolor="white"))
                axes.text((start + end) / 2 - begin, rank + 0.5, micro, ha="center", va="center", fontsize=7, color="white", clip_on=True)
        span = max(event[4] for timeline in timelines for event in timeline) - begin
        axes.set(title=title, xlabel=x, xlim=(0, span), ylim=(len(timelines), 0))
        axes.set_yticks([rank + 0.5 for rank in range(len(timelines))], [f"rank {rank}" for rank in range(len(timelines))])
        axes.grid(False)
        kinds = [kind for kind in ACTIONS if any(event[0] == kind for timeline in timelines for event in timeline)]
        handles = [Rectangle((0, 0), 1, 1, facecolor=ACTIONS[kind][0], label=ACTIONS[kind][1]) for kind in kinds]
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = f"{len(timelines)} ranks, {span:,.4g} {x}, idle {100 * idle_fraction(timelines):.1f} %"
    return Plot(figure, f"{title}. {said}.")


def presence(whole, phases, title):
    """When each parameter is whole on a rank (ZeRO-3): a row per parameter, a box while it is there.

    Args:
        whole: {parameter: [True or False at every moment]}.
        phases: {name: number of its moments}, in order; they cover all moments.
        title: what the figure shows.
    """
    moments = sum(phases.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.26 * len(whole)))
        for row, there in enumerate(whole.values()):
            axes.broken_barh([(moment, 1) for moment, here in enumerate(there) if here], (row + 0.1, 0.8), color=LOOK["parameters"][0])
        start = 0
        for name, length in phases.items():
            axes.axvline(start, color="black", linewidth=0.8)
            axes.text(start + length / 2, -0.15, name, ha="center", va="bottom")
            start += length
        axes.set(xlabel="moments: before and after every layer's work", xlim=(0, moments), ylim=(len(whole), 0))
        axes.set_title(title, pad=18)
        axes.set_yticks([row + 0.5 for row in range(len(whole))], list(whole))
        axes.grid(False)
    said = ", ".join(f"{name} {sum(there)}" for name, there in whole.items())
    return Plot(figure, f"{title}. Moments of {moments} at which each is whole: {said}.")


def _stacked(rows, title, y, divisor=1.0):
    """Stacked bars without the meaning of memory categories: {bar: {part: number}}."""
    parts = list(dict.fromkeys(part for sizes in rows.values() for part in sizes))
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure()
        bottoms = [0.0] * len(rows)
        for index, part in enumerate(parts):
            heights = [sizes.get(part, 0) / divisor for sizes in rows.values()]
            axes.bar(list(rows), heights, bottom=bottoms, width=0.7, color=PARTS[index % len(PARTS)], label=part, edgecolor="white")
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
        axes.set(title=title, ylabel=y, ylim=(0, 1.05 * max(bottoms)))
        axes.grid(False, axis="x")
        if len(parts) > 1:
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def byte_bars(steps, title):
    """Bytes of several kinds beside each other, for instance what a rank sends: {bar: {part: bytes}}, or {bar: bytes} for one colour."""
    rows = {name: sizes if isinstance(sizes, dict) else {"all": sizes} for name, sizes in steps.items()}
    divisor, unit_name = unit(max(sum(sizes.values()) for sizes in rows.values()))
    said = ", ".join(f"{name} {amount(sum(sizes.values()))}" for name, sizes in rows.items()).replace("\n", " ")
    return Plot(_stacked(rows, title, f"{unit_name} per rank", divisor), f"{title}. {said}.")


def share_bars(shares, title, y):
    """What a whole consists of, in percent: {bar: {part: percent}}."""
    said = "; ".join(f"{name}: " + ", ".join(f"{part} {share:.1f} %" for part, share in parts.items()) for name, parts in shares.items())
    return Plot(_stacked(shares, title, y), f"{title}. {said}.")
