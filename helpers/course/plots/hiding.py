"""A step by the account of time: what works when, which messages hide behind it, and which are exposed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from helpers.course.plots.drawing import box, ink, legend_under, name_rows, swatch, swatches, write
from helpers.course.plots.style import VISIBLE, WIDE, WRONG, Plot, in_style
from helpers.course.plots.timeline import KINDS, Box

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from helpers.tools.theory.step_time import StepTime

WORK = {"forward": "forward", "backward": "backward", "step": "optimizer"}  # a pass, and the kind of its box
PASSES = ("forward", "backward")  # of each micro-batch
LETTER = 0.012  # of the longest step: room that a letter needs
FRAME = {"edgecolor": WRONG, "linewidth": 2}  # around what is exposed
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def step_boxes(step: StepTime, unit: float = 1.0, micro_batches: int = 1) -> dict[str, list[Box]]:
    """{"work", "messages", "exposed": boxes, in units of so many seconds from the beginning of the step};
    exposed is where messages have no work beside them.

    The passes follow one another.  Messages that hide go on to the end of their pass, those that do not begin
    where its work ends; what the device waits for its host comes last.  Of several micro-batches each has its
    own forward and backward pass, and messages belong to the last backward pass.
    """
    boxes, at = {"work": [], "messages": [], "exposed": []}, 0.0

    def add(row, kind, start, seconds):
        if seconds > 0:
            boxes[row].append((kind, kind, start / unit, (start + seconds) / unit))

    passes = step.passes
    if micro_batches > 1:
        each = {kind: replace(passes[kind], work=passes[kind].work / micro_batches) for kind in PASSES}
        for taken, kind in (micro_batches - 1) * [(each[kind], kind) for kind in PASSES]:
            add("work", WORK[kind], at, taken.work)
            at += taken.work
        passes = passes | each
    for name, taken in passes.items():
        add("work", WORK[name], at, taken.work)
        begin = at + taken.total - taken.messages
        for collective, seconds in taken.sent.items():
            add("messages", collective.replace("_", "-"), begin, seconds)
            begin += seconds
        add("exposed", "exposed", at + taken.work, taken.exposed)
        add("work", "waiting", at + taken.total, taken.waiting)
        at += taken.total + taken.waiting
    return boxes


@in_style
def step_timeline(
    steps: Mapping[str, StepTime | tuple[StepTime, StepTime]], title: str, micro_batches: int = 1
) -> Plot:
    """A step's work and messages over time, as `theory.step_seconds` predicts them: a row of work and one of
    messages for each way to train, on one axis; red is the time in which messages have no work beside them.

    Args:
        steps: {way: its predicted step}, or (at the fastest, which is drawn, at the slowest, where a line
            from its end ends).
        micro_batches: of a step, drawn one after the other; messages wait for the last.
    """
    if not steps:
        raise ValueError("give at least one step: {name: theory.step_seconds(...)}")
    pairs = {way: step if isinstance(step, tuple) else (step, step) for way, step in steps.items()}
    longest = max(slowest.total for _, slowest in pairs.values())
    scale, unit = next((pair for pair in UNITS if longest >= pair[0]), UNITS[-1])
    span, kinds, said = longest / scale, {}, []
    figure = Figure(figsize=(WIDE, 1.35 + 0.62 * len(steps)))
    axes = figure.subplots()
    for row, (way, (step, slowest)) in enumerate(pairs.items()):
        boxes = step_boxes(step, scale, micro_batches)
        for name, top in (("work", 2 * row + 0.14), ("messages", 2 * row + 1.04)):
            _draw(axes, top, boxes[name], LETTER * span)
            kinds |= dict.fromkeys(kind for kind, _, a, z in boxes[name] if z - a > VISIBLE * span)
        for *_, start, end in boxes["exposed"]:
            box(axes, start, 2 * row + 0.96, end - start, 0.88, "none", **FRAME)
        end, last = (one.total / scale for one in (step, slowest))
        if last > end:
            axes.plot([end, last], [2 * row + 0.95] * 2, color="black", linewidth=1, marker="|")
        words = f"{' to '.join(dict.fromkeys(f'{one:.3g}' for one in (end, last)))} {unit}"
        write(axes, last + 0.01 * span, 2 * row + 0.95, words, ha="left", fontsize=9)
        out, hidden = (seconds / scale for seconds in (step.parts["messages"], step.hidden))
        said.append(f"{way}: {words}, messages exposed {out:.3g}, hidden {hidden:.3g}")
    axes.set(title=title, xlim=(0, 1.2 * span), ylim=(2 * len(steps), -0.1))
    if any(fastest != slowest for fastest, slowest in pairs.values()):
        axes.plot([], [], color="black", linewidth=1, marker="|", label="to the slowest")
    axes.set_xlabel(f"{unit}, predicted, at the fastest; above work, below messages")
    name_rows(axes, steps)
    axes.set_yticks([2 * row + 0.95 for row in range(len(steps))], list(steps))
    looks = swatches({kind: KINDS[kind] for kind in kinds})
    whiskers = axes.get_legend_handles_labels()[0]
    legend_under(figure, 5, [*looks, swatch("exposed", "none", **FRAME), *whiskers])
    return Plot(figure, f"{title}. {'; '.join(said)}.".replace("\n", " "))


def _draw(axes: Axes, top: float, boxes: list[Box], letter: float) -> None:
    for kind, label, start, end in boxes:
        colour, hatch = KINDS[kind]
        box(axes, start, top, end - start, 0.72, colour, hatch=hatch, edgecolor="white")
        if end - start > letter * len(label):
            behind = {"facecolor": colour, "edgecolor": "none", "pad": 1} if hatch else None
            write(axes, (start + end) / 2, top + 0.36, label, fontsize=8, color=ink(colour), bbox=behind)
