"""What runs when, as boxes over a common time axis: work and messages, planned or by the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby

from helpers.course.plots.drawing import box, ink, legend_beside, new_figure, swatches, write
from helpers.course.plots.style import LOOK, Plot, in_style

Box = tuple[str, str, float, float]  # kind, label, start, end
LETTER = 0.011  # of the axis: room that a letter needs; a label without room is left out
KINDS = {  # of what a rank does: colour and hatch
    "forward": ("#0072B2", ""),
    "backward": ("#D55E00", "//"),
    "recompute": ("#0072B2", ".."),
    "optimizer": ("#56B4E9", ""),
    "all-reduce": ("#009E73", "\\\\"),
    "all-gather": ("#E69F00", "\\\\"),
    "reduce-scatter": ("#CC79A7", "\\\\"),
    "broadcast": ("#444444", ""),
    "reduce": ("#444444", "//"),
    "all-to-all": ("#444444", ".."),
    "gather": ("#444444", "xx"),
    "scatter": ("#444444", "++"),
    "send": ("#332288", ""),
    "receive": ("#332288", "//"),
    "waiting": ("#999999", "xx"),
    "barrier": ("#999999", "++"),
}


def side_by_side(boxes: Iterable[Box]) -> list[int]:
    """For each box the lowest lane in which no box before it is still going on."""
    ends, lanes = [], []
    for _, _, start, end in boxes:
        lane = next((lane for lane, free in enumerate(ends) if free <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes.append(lane)
    return lanes


@in_style
def timeline(rows: Mapping[str, Sequence[Box]], title: str, x: str) -> Plot:
    """Boxes over time, a row for each thing that goes on by itself, for instance a rank's computation and its
    messages.

    Args:
        rows: {row: [(kind, label, start, end), ...]}, kinds as in `KINDS`; times share one origin.
        x: name and unit of the axis.
    """
    kinds = {kind for boxes in rows.values() for kind, *_ in boxes}
    if unknown := kinds - set(KINDS):
        raise ValueError(f"kinds of boxes are {', '.join(KINDS)}; not {', '.join(sorted(unknown))}")
    span = max(end for boxes in rows.values() for *_, end in boxes)
    figure, axes = new_figure(9, 0.9 + 0.4 * len(rows))
    for row, boxes in enumerate(rows.values()):
        lanes = side_by_side(boxes)
        height = 0.8 / (1 + max(lanes))
        look = {"fontsize": 8 if height > 0.3 else 6, "weight": "bold"}
        for lane, (kind, label, start, end) in zip(lanes, boxes):
            colour, hatch = KINDS[kind]
            bottom = row + 0.1 + lane * height
            box(axes, start, bottom, end - start, height, colour, hatch=hatch, edgecolor="white")
            if end - start > LETTER * span * len(label):
                ground = {"facecolor": colour, "edgecolor": "none", "pad": 1}  # no hatch behind words
                middle = (start + end) / 2, bottom + height / 2
                write(axes, *middle, label, color=ink(colour), bbox=ground, **look)
    axes.set(title=title, xlabel=x, xlim=(0, 1.01 * span), ylim=(len(rows), 0))
    axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
    axes.grid(False)
    legend_beside(axes, swatches({kind: look for kind, look in KINDS.items() if kind in kinds}))
    said = "; ".join(
        f"{row}: {len(boxes)} until {max(end for *_, end in boxes):.3g}" for row, boxes in rows.items()
    )
    return Plot(figure, f"{title}, {x}. {said}.")


def buckets(count: int, each: float, on_the_link: Sequence[float], title: str) -> Plot:
    """A backward pass that fills a bucket in `each` milliseconds, and the link below it: a row for each
    number of milliseconds that a bucket takes there."""
    rows = {"backward pass": [("backward", str(at + 1), at * each, (at + 1) * each) for at in range(count)]}
    for long in on_the_link:
        row, free = [], 0.0
        for at in range(count):
            start = max(free, (at + 1) * each)
            free = start + long
            row.append(("all-reduce", str(at + 1), start, free))
        rows[f"link, {long:g} ms each"] = row
    return timeline(rows, title, "milliseconds")


def reductions_in_a_step(plans: Mapping[str, Sequence[bool]], title: str) -> Plot:
    """The plan of an optimizer step in which the work waits for every message: {row: for each micro-batch
    whether its gradients are reduced}.

    The unit of time is the backward pass of one of a micro-batch's three buckets, and each bucket is reduced
    as soon as it is full.
    """
    rows = {}
    for name, sends in plans.items():
        boxes = []
        for reduces in sends:
            bucket = [("backward", "", 1.0), *[("reduce", "", 0.5)] * reduces]
            boxes += [("forward", "forward", 1.5), *bucket * 3]
        boxes += [("optimizer", "", 0.5), ("all-gather", "", 1.0)]
        ends = accumulate(length for *_, length in boxes)
        rows[name] = [(kind, label, end - length, end) for (kind, label, length), end in zip(boxes, ends)]
    return timeline(rows, title, "units of time")


def prefetching(layers: int, sending: float, title: str) -> Plot:
    """The plan of a micro-batch under ZeRO-3, gathered as needed and one layer ahead: a forward pass takes a
    unit of time per layer, a backward two, an all-gather or a reduce-scatter `sending` units.

    One layer ahead, an all-gather starts with the visit before the one that needs it, and the last layer
    stays gathered between its two passes.
    """
    visits = [("forward", layer, 1) for layer in range(1, layers + 1)]
    visits += [("backward", layer, 2) for layer in range(layers, 0, -1)]
    plan = {}
    for name, ahead in (("as needed", False), ("one ahead", True)):
        work, gathers, reduces = [], [], []
        began, ended, gathered = 0.0, 0.0, None
        for kind, layer, length in visits:
            start = ended
            if not (ahead and layer == gathered):
                begin = began if ahead else ended
                gathers.append(("all-gather", f"{layer}", begin, begin + sending))
                start = max(start, begin + sending)
            gathered, began, ended = layer, start, start + length
            work.append((kind, f"{layer}", began, ended))
            if kind == "backward":
                reduces.append(("reduce-scatter", f"{layer}", ended, ended + sending))
        plan |= {f"{name}: work": work, f"{name}: gathers": gathers, f"{name}: gradients": reduces}
    return timeline(plan, title, "units of time")


@in_style
def gathered_over_time(
    gathered: Mapping[str, list[bool]], phases: Mapping[str, int], title: str, x: str
) -> Plot:
    """When each parameter is gathered on a rank (ZeRO-3): a row per parameter, a box while it is there.

    Args:
        gathered: {parameter: [True or False at every moment]}.
        phases: {name: number of its moments}, in order; they cover all moments.
        x: what the moments are.
    """
    figure, axes = new_figure(9, 0.9 + 0.26 * len(gathered))
    times = {}
    for row, (name, moments) in enumerate(gathered.items()):
        runs = [
            [moment for moment, _ in run]
            for there, run in groupby(enumerate(moments), key=lambda pair: pair[1])
            if there
        ]
        spans = [(run[0], len(run)) for run in runs]
        axes.broken_barh(spans, (row + 0.1, 0.8), color=LOOK["parameters"][0])
        times[name] = len(runs)
    start = 0
    for name, length in phases.items():
        axes.axvline(start, color="black", linewidth=0.8)
        write(axes, start + length / 2, -0.15, name, va="bottom")
        start += length
    axes.set(xlabel=x, xlim=(0, start), ylim=(len(gathered), 0))
    axes.set_title(title, pad=18)
    axes.set_yticks([row + 0.5 for row in range(len(gathered))], list(gathered))
    axes.grid(False)
    said = ", ".join(f"{name} {count}" for name, count in times.items())
    return Plot(figure, f"{title}. How often each is gathered: {said}.")
