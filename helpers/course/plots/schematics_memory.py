"""Drawings of training memory: which copies of the weights a step in mixed precision has, and which
activations are alive when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LOOK, STYLE, Plot, bare, new_figure, rectangle, write


def mixed_precision(sizes: Mapping[str, float], title: str) -> Plot:
    """The tensors of one training step in mixed precision, each as wide as its bytes, and what makes which.

    Args:
        sizes: {category: bytes per parameter}, as `theory.ideal_bytes(1)` gives them.
        title: what the figure shows.
    """
    places = {
        "parameters": (0.0, 1),
        "gradients": (7.2, 1),
        "master weights": (0.0, 0),
        "optimizer states": (5.6, 0),
    }
    arrows = (
        ("forward and backward pass, in bf16", (2.1, 1.3), (7.1, 1.3)),
        ("to fp32", (9.25, 1.3), (10.7, 1.3)),
        ("read by Adam", (12.0, 0.95), (12.0, 0.67)),
        ("Adam steps", (5.5, 0.3), (4.1, 0.3)),
        ("rounded to bf16", (1.0, 0.65), (1.0, 0.94)),
    )
    words = {
        "optimizer states": "momentum and variance, fp32",
        "parameters": "weights\nbf16",
        "gradients": "gradients\nbf16",
    }
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(7.6, 3.0))
        for category, (left, floor) in places.items():
            width, (colour, _) = sizes[category], LOOK[category]
            rectangle(axes, (left, floor), width, 0.6, facecolor=colour)
            said = f"{words.get(category, f'{category}, fp32')}\n{width:g} bytes"
            light = category != "optimizer states"
            write(axes, left + width / 2, floor + 0.3, said, fontsize=9, color="white" if light else "black")
        copied = 2 * sizes["gradients"]  # alive in the step alone
        rectangle(axes, (10.8, 1), copied, 0.6, facecolor="none", edgecolor="black", linestyle="--")
        write(
            axes, 10.8 + copied / 2, 1.3, f"gradients, fp32\n{copied:g} bytes\nin the step only", fontsize=9
        )
        for said, start, end in arrows:
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "linewidth": 1.4})
            x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
            if start[1] == end[1]:
                write(axes, x, y + 0.05, said, va="bottom", fontsize=9)
            else:
                axes.text(x + 0.15, y, said, ha="left", va="center", fontsize=9)
        write(axes, 4.6, 1.25, "activations are kept in between", va="top", fontsize=9)
        axes.set(title=title, xlim=(-0.2, 15), ylim=(-0.1, 1.7), xticks=[], yticks=[])
        bare(axes)
    said = ", ".join(f"{category} {size:g}" for category, size in sizes.items())
    return Plot(
        figure,
        f"{title}. Bytes per parameter: {said}; together {sum(sizes.values()):g}; in the step "
        f"gradients in fp32, {copied:g}.",
    )


def lifetimes(
    panels: Mapping[str, Mapping[str, Sequence[tuple[int, int]]]], moments: Sequence[str], title: str
) -> Plot:
    """Which activations are alive when: a row for each group of tensors, a box while they are there.

    Args:
        panels: {panel: {row: [(first moment, last moment)]}}, drawn below each other on one axis; moments
        count from 0, both ends included. moments: their names.
        title: what the figure shows.
    """
    rows = sum(len(panel) for panel in panels.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(7.6, 1.0 + 0.27 * (rows + len(panels))))
        ticks, place, colour = {}, 0, LOOK["activations"][0]
        for name, panel in panels.items():
            write(axes, len(moments) / 2, place + 0.5, name, fontsize=10, fontweight="bold")
            place += 1
            for row, boxes in panel.items():
                ticks[place + 0.5] = row
                for first, last in boxes:
                    inside = row.startswith("inside")
                    hatch = ".." if inside else ""
                    rectangle(
                        axes,
                        (first, place + 0.08),
                        last - first + 1,
                        0.84,
                        facecolor=colour,
                        hatch=hatch,
                        edgecolor="white",
                        linewidth=0,
                    )
                place += 1
        for moment in range(1, len(moments)):
            axes.axvline(moment, color="black", linewidth=0.4, alpha=0.4)
        axes.set(title=title, xlim=(0, len(moments)), ylim=(place, 0))
        axes.set_xticks([moment + 0.5 for moment in range(len(moments))], moments, fontsize=8)
        axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
        axes.tick_params(length=0)
        axes.grid(False)
    most = {name: max(_alive(panel, at) for at in range(len(moments))) for name, panel in panels.items()}
    said = ", ".join(
        f"{name}: the inside of {number} block{'s' if number > 1 else ''} at once"
        for name, number in most.items()
    )
    return Plot(figure, f"{title}. {said}.")


def checkpointed_lifetimes(layers: int, title: str) -> Plot:
    """`lifetimes` of so many blocks, all activations kept and checkpointed: each block's input, its inside,
    and the logits."""
    moments = (
        [f"forward\nblock {i + 1}" for i in range(layers)]
        + ["loss"]
        + [f"backward\nblock {i + 1}" for i in reversed(range(layers))]
    )
    panels = {"all kept": {}, "checkpointed": {}}
    for i in range(layers):
        first, last = i, 2 * layers - i  # the moments of its forward and of its backward pass
        for panel, inside in (
            ("all kept", [(first, last)]),
            ("checkpointed", [(first, first), (last, last)]),
        ):
            panels[panel] |= {f"input of block {i + 1}": [(first, last)], f"inside block {i + 1}": inside}
    for rows in panels.values():
        rows["logits"] = [(layers, layers)]
    return lifetimes(panels, moments, title)


def _alive(panel, at):
    """Of how many blocks the inside is there at a moment."""
    return sum(
        first <= at <= last
        for row, boxes in panel.items()
        if row.startswith("inside")
        for first, last in boxes
    )
