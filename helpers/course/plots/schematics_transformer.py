"""Schematics of a transformer: its layers along the residual stream, and what a block keeps, each tensor as
wide as it is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite, log10
from typing import TypedDict

import matplotlib
from helpers.course.plots.style import (
    DASHES,
    LINES,
    MARKERS,
    STYLE,
    Plot,
    bare,
    new_figure,
    rectangle,
    rounded,
    swatch,
    write,
)

LAYERS = {  # colour and hatch by kind of layer; Okabe and Ito's colours
    "embedding": ("#CC79A7", ""),
    "norm": ("#999999", "xx"),
    "attention": ("#56B4E9", ""),
    "feed-forward": ("#E69F00", ".."),
    "head": ("#CC79A7", ""),
}
LETTER = (
    0.011  # of the widest row: room that a letter needs; a label without room stands above or below its box
)


def transformer(shares: Mapping[str, str], blocks: int, title: str) -> Plot:
    """A GPT's layers from left to right along the residual stream; a frame around what is repeated.

    Args:
        shares: {"embedding", "norm", "attention", "feed-forward", "head": words below the layer's box, such
        as a share of the parameters}. blocks: how often the block is repeated.
        title: what the figure shows.
    """
    if missing := set(LAYERS) - set(shares):
        raise ValueError(f"words are missing for {', '.join(sorted(missing))}")
    stream, above = 0.0, 1.35
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 3.1))
        axes.plot([0.2, 14.6], [stream, stream], color="black", linewidth=2.5, zorder=1)
        axes.annotate(
            "",
            (14.9, stream),
            (14.4, stream),
            arrowprops={"arrowstyle": "-|>", "color": "black", "linewidth": 2},
        )
        for text, place, side in (("token\nids", 0.1, "right"), ("logits", 15.0, "left")):
            axes.text(place, stream, text, ha=side, va="center")
        _box(axes, "embedding", 1.3, stream, shares["embedding"], "embedding", width=1.6)
        for start, layer in ((3.0, "attention"), (7.4, "feed-forward")):
            _branch(axes, start, layer, stream, above, shares)
        rounded(axes, (2.6, -0.75), 8.9, 3.35, pad=0.05, fill=False, linestyle="--", edgecolor="black")
        axes.text(11.4, 2.55, f"block, {blocks} times", ha="right", va="top", fontsize=9)
        write(axes, 5.2, stream - 0.25, "residual stream", va="top", fontsize=9, style="italic")
        _box(axes, "norm", 12.3, stream, "", "norm")
        _box(axes, "head", 13.6, stream, shares["head"], "head")
        axes.set(title=title, xlim=(-0.8, 16), ylim=(-0.95, 2.75), xticks=[], yticks=[])
        bare(axes)
    order = "embedding; in each block norm, attention, add, norm, feed-forward, add; norm; head"
    said = ", ".join(f"{layer} {words}" for layer, words in shares.items() if words).replace("\n", " ")
    return Plot(figure, f"{title}. {order}; {blocks} blocks. {said}.")


def _box(axes, layer, x, y, words, label, width=1.15):
    colour, hatch = LAYERS[layer]
    rectangle(
        axes, (x - width / 2, y - 0.3), width, 0.6, facecolor=colour, hatch=hatch, edgecolor="white", zorder=2
    )
    boxed = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if hatch else None
    write(axes, x, y, label, fontsize=8, zorder=3, bbox=boxed)
    write(axes, x, y - 0.38, words, va="top", fontsize=8, zorder=3)


def _branch(axes, start, layer, stream, above, shares):
    """A sub-layer beside the stream: it reads a normalised copy, and its result is added."""
    arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1}
    axes.plot([start, start, start + 0.3], [stream, above, above], color="black", linewidth=1)
    axes.plot([start + 0.3, start + 3.4], [above, above], color="black", linewidth=1)
    axes.annotate("", (start + 3.4, stream + 0.2), (start + 3.4, above), arrowprops=arrow)
    _box(axes, "norm", start + 0.85, above, shares["norm"], "norm", width=0.9)
    _box(axes, layer, start + 2.35, above, shares[layer], layer, width=1.5)
    write(
        axes, start + 3.4, stream, "+", zorder=4, bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white"}
    )


class KeptTensor(TypedDict):
    """A box of `kept_tensors`."""

    layer: str  # "norm", "attention" or "feed-forward"
    tensor: str  # its label
    size: float  # in the figure's unit


def kept_tensors(blocks: Mapping[str, Sequence[KeptTensor]], title: str, unit: str) -> Plot:
    """What blocks keep for the backward pass, on one axis: a row per block, a box per tensor, as wide as the
    tensor is large.

    Args:
        blocks: {block: [{"layer": "norm", "attention" or "feed-forward", "tensor": label, "size": in the
        unit}]}, in the order of the forward pass. title: what the figure shows.
        unit: of the sizes, for the axis.
    """
    widest = max(sum(box["size"] for box in row) for row in blocks.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 1.15 * len(blocks)))
        for place, (_, row) in enumerate(blocks.items()):
            at = 0.0
            for index, box in enumerate(row):
                colour, hatch = LAYERS[box["layer"]]
                rectangle(
                    axes,
                    (at, place - 0.3),
                    box["size"],
                    0.6,
                    facecolor=colour,
                    hatch=hatch,
                    edgecolor="white",
                    linewidth=1.5,
                )
                wide = box["size"] / widest > LETTER * len(box["tensor"]) + 0.005
                below = 0.0 if wide else (0.36, -0.36)[index % 2]
                patch = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if wide and hatch else None
                align = "center" if wide else ("top", "bottom")[index % 2]
                write(
                    axes, at + box["size"] / 2, place + below, box["tensor"], va=align, fontsize=8, bbox=patch
                )
                at += box["size"]
            axes.text(at + 0.01 * widest, place, f"{at:,.3g}", va="center", fontsize=9)
        axes.set(title=title, xlabel=unit, xlim=(0, 1.08 * widest), ylim=(len(blocks) - 0.35, -0.65))
        axes.set_yticks(range(len(blocks)), list(blocks))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        used = [
            layer for layer in LAYERS if any(box["layer"] == layer for row in blocks.values() for box in row)
        ]
        looks = [swatch(layer, LAYERS[layer][0], hatch=LAYERS[layer][1], edgecolor="white") for layer in used]
        axes.legend(handles=looks, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = []
    for name, row in blocks.items():
        boxes = ", ".join(f"{box['tensor']} {box['size']:,.3g}" for box in row)
        said.append(f"{name} {sum(box['size'] for box in row):,.3g} ({boxes})")
    return Plot(figure, f"{title}, {unit}. {'; '.join(said)}.".replace("\n", " "))


def by_depth(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    title: str,
    y: str,
    lowest: float = 0.0,
    highest: float = inf,
) -> Plot:
    """A positive number at every depth, for instance the norm of a gradient: {panel: {line: [number at every
    depth]}}, on one logarithmic axis.

    A number that is not finite or not positive, or lies outside of `lowest` to `highest`, is left out; lines
    that coincide differ in dashes, width and marker.  The sentence gives the powers of ten at both ends, or
    that they are below or above what is drawn.
    """
    lines = list(dict.fromkeys(name for panel in panels.values() for name in panel))

    def has_place(number):
        return isfinite(number) and number > 0 and lowest <= number <= highest

    drawn = {
        panel: {
            name: {at: one for at, one in enumerate(numbers) if has_place(one)}
            for name, numbers in of.items()
        }
        for panel, of in panels.items()
    }
    heights = [one for of in drawn.values() for places in of.values() for one in places.values()]
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(max(len(panels), 2), figsize=(9, 3.4))
        for one, (panel, of) in zip(axes, drawn.items()):
            for name, places in of.items():
                index = lines.index(name)
                look = {
                    "color": LINES[index % len(LINES)],
                    "linestyle": DASHES[index % len(DASHES)],
                    "linewidth": 3.4 - 2 * index / len(lines),
                }
                look |= {
                    "marker": MARKERS[index % len(MARKERS)],
                    "markersize": 5,
                    "markerfacecolor": "white",
                    "markevery": (2 * index, 12),
                }
                one.plot(list(places), list(places.values()), label=name, **look)
            one.set(
                title=panel,
                xlabel="depth, in blocks",
                yscale="log",
                ylim=(min(heights) / 10, 10 * max(heights)),
            )
        axes[0].set_ylabel(y)
        figure.suptitle(title, fontsize=11)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", handlelength=3.5)

    def power(number):
        if number < lowest or number > highest:
            return (
                f"below 10^{round(log10(lowest))}" if number < lowest else f"above 10^{round(log10(highest))}"
            )
        return f"10^{round(log10(number))}" if has_place(number) else f"{number:g}"

    said = []
    for panel, of in panels.items():
        ends = (f"{name} {power(numbers[0])} to {power(numbers[-1])}" for name, numbers in of.items())
        said.append(f"{panel}: {', '.join(ends)}")
    return Plot(
        figure, f"{title}. {y}, from the first block to the last: {'; '.join(said)}.".replace("\n", " ")
    )
