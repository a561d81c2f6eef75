"""Schematics of one model: its layers along the residual stream, what its blocks keep and when, and the
copies of its weights in a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

from helpers.course.plots.drawing import (
    BEHIND,
    blank,
    box,
    legend_below,
    legend_beside,
    new_figure,
    pointer,
    rounded,
    swatch,
    write,
)
from helpers.course.plots.style import LAYERS, LOOK, Plot, in_style
from helpers.course.plots.timeline import LETTER

BEHIND_LABEL = {**BEHIND, "pad": 0.8}
MIXED = {  # tensors of a step in mixed precision: left end, floor, words
    "parameters": (0.0, 1, "weights\nbf16"),
    "gradients": (7.2, 1, "gradients\nbf16"),
    "master weights": (0.0, 0, "master weights, fp32"),
    "optimizer states": (5.6, 0, "momentum and variance, fp32"),
}
ACROSS = (  # words above an arrow, and its ends
    ("forward and backward pass, in bf16", (2.1, 1.3), (7.1, 1.3)),
    ("to fp32", (9.25, 1.3), (10.7, 1.3)),
    ("Adam steps", (5.5, 0.3), (4.1, 0.3)),
)
DOWN = (  # words beside an arrow, and its ends
    ("read by Adam", (12.0, 0.95), (12.0, 0.67)),
    ("rounded to bf16", (1.0, 0.65), (1.0, 0.94)),
)


@in_style
def transformer(shares: Mapping[str, str], blocks: int, title: str) -> Plot:
    """A GPT's layers from left to right along the residual stream; a frame around what is repeated.

    Args:
        shares: {"embedding", "norm", "attention", "feed-forward", "head": words below the layer's box, such
            as a share of the parameters}.
        blocks: how often the block is repeated.
    """
    if missing := set(LAYERS) - set(shares):
        raise ValueError(f"words are missing for {', '.join(sorted(missing))}")
    figure, axes = new_figure(9, 3.1)
    axes.plot([0.2, 14.6], [0, 0], color="black", linewidth=2.5, zorder=1)
    pointer(axes, (14.4, 0), (14.9, 0), color="black", linewidth=2)
    write(axes, 0.1, 0, "token\nids", ha="right")
    write(axes, 15.0, 0, "logits", ha="left")
    _layer(axes, "embedding", 1.3, 0, shares["embedding"], 1.6)
    for start, layer in ((3.0, "attention"), (7.4, "feed-forward")):
        _branch(axes, start, layer, shares)
    rounded(axes, 2.6, -0.75, 8.9, 3.35, pad=0.05, fill=False, linestyle="--", edgecolor="black")
    write(axes, 11.4, 2.55, f"block, {blocks} times", ha="right", va="top", fontsize=9)
    write(axes, 5.2, -0.25, "residual stream", va="top", fontsize=9, style="italic")
    _layer(axes, "norm", 12.3, 0, "")
    _layer(axes, "head", 13.6, 0, shares["head"])
    blank(axes, title=title, xlim=(-0.8, 16), ylim=(-0.95, 2.75))
    order = "embedding; in each block norm, attention, add, norm, feed-forward, add; norm; head"
    said = ", ".join(f"{layer} {words}" for layer, words in shares.items() if words).replace("\n", " ")
    return Plot(figure, f"{title}. {order}; {blocks} blocks. {said}.")


@in_style
def opened_block(letters: Mapping[str, int], tokens: int, title: str) -> Plot:
    """A Llama block in two rows, attention and feed-forward: its matrices with shapes and millions of
    elements, and the tensors between them with shapes and MB in bf16.

    Args:
        letters: h, a, k, d and f, as in `theory.LlamaSize.letters`.
        tokens: of the one sequence.
    """
    h, a, k, d, f = (letters[name] for name in "hakdf")
    rows = [  # columns of (kind, name, shape); a matrix leads from the column before
        [
            [("tensor", "normed", (tokens, h))],
            [("matrix", f"$W_{x}$", (h, n * d)) for x, n in (("q", a), ("k", k), ("v", k))],
            [("tensor", x, (tokens, n * d)) for x, n in (("q", a), ("k", k), ("v", k))],
            [
                ("unstored", "scores", (a, tokens, tokens)),
                ("tensor", "result", (tokens, a * d)),
                ("tensor", "logsumexp", (a, tokens)),
            ],
            [("matrix", "$W_o$", (a * d, h))],
        ],
        [
            [("tensor", "normed", (tokens, h))],
            [("matrix", name, (h, f)) for name in ("gate", "up")],
            [("tensor", name, (tokens, f)) for name in ("g", "SiLU(g)", "u")],
            [("tensor", "SiLU(g) · u", (tokens, f))],
            [("matrix", "down", (f, h))],
        ],
    ]
    between = (("norm", "", "RoPE", "fused\nkernel", ""), ("norm", "", "SiLU", "times", ""))
    figure, axes = new_figure(10, 5.2)
    said = []
    for line, (columns, words) in enumerate(zip(rows, between)):
        y = -4.4 * line
        write(axes, -1.55, y + 1.9, ("attention", "feed-forward")[line], fontsize=9, weight="bold", ha="left")
        write(axes, -1.05, y, f"stream\n{tokens:,} × {h:,}", fontsize=8)
        for place, column in enumerate(columns):
            x = 0.4 + 2.75 * place
            pointer(axes, (x - 0.75, y), (x - 0.15, y), color="black")
            write(axes, x - 0.45, y + 0.12, words[place], fontsize=7, va="bottom")
            for row, (kind, name, shape) in enumerate(column):
                size = math.prod(shape)
                held = (4 if name == "logsumexp" else 2) * size / 1e6  # that one is fp32
                amount = f"{held / 1e3:.1f} GB" if held >= 1e3 else f"{held:.0f} MB"
                amount = f"{size / 1e6:.1f} M" if kind == "matrix" else amount
                dashes = "--" if kind == "unstored" else "-"
                look = {"edgecolor": "#444444", "linewidth": 0.8, "linestyle": dashes}
                layer = ("attention", "feed-forward")[line]
                colour = LAYERS[layer][0] if kind == "matrix" else "white"
                top = y + 0.6 * (len(column) - 1) - 1.2 * row
                sides = " × ".join(f"{side:,}" for side in shape)
                described = f"{name}  {amount}\n{sides}"
                box(axes, x, top - 0.5, 1.85, 1.0, colour, described, fontsize=7.5, **look)
                state = " never stored" if kind == "unstored" else ""
                said.append(f"{name} {sides} {amount}{state}")
        end = 0.4 + 2.75 * 4 + 1.85
        pointer(axes, (end + 0.1, y), (end + 0.7, y), color="black")
        write(axes, end + 0.4, y + 0.12, "add", fontsize=7, va="bottom")
    handles = [
        swatch("matrix of attention", LAYERS["attention"][0]),
        swatch("of the feed-forward", LAYERS["feed-forward"][0]),
        swatch("tensor", "white", edgecolor="#444444"),
        swatch("tensor, never stored", "white", edgecolor="#444444", linestyle="--"),
    ]
    legend_below(figure, 0.02, 4, handles)
    blank(axes, xlim=(-1.7, 14.2), ylim=(-6.4, 2.2))
    axes.set_title(title)
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def _layer(axes, layer, x, y, words, width=1.15):
    """A layer's box around (x, y), with words below it."""
    colour, hatch = LAYERS[layer]
    box(axes, x - width / 2, y - 0.3, width, 0.6, colour, hatch=hatch, edgecolor="white", zorder=2)
    write(axes, x, y, layer, fontsize=8, zorder=3, bbox=BEHIND_LABEL if hatch else None)
    write(axes, x, y - 0.38, words, va="top", fontsize=8, zorder=3)


def _branch(axes, start, layer, shares):
    """A sub-layer beside the stream: it reads a normalised copy, and its result is added."""
    above, end = 1.35, start + 3.4
    axes.plot([start, start, end], [0, above, above], color="black", linewidth=1)
    pointer(axes, (end, above), (end, 0.2), color="black", linewidth=1)
    _layer(axes, "norm", start + 0.85, above, shares["norm"], 0.9)
    _layer(axes, layer, start + 2.35, above, shares[layer], 1.5)
    write(axes, end, 0, "+", zorder=4, bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white"})


class KeptTensor(TypedDict):
    """A box of `kept_tensors`."""

    layer: str  # "norm", "attention" or "feed-forward"
    tensor: str  # its label
    size: float  # in the figure's unit


@in_style
def kept_tensors(blocks: Mapping[str, Sequence[KeptTensor]], title: str, unit: str) -> Plot:
    """What blocks keep for the backward pass, on one axis: a row per block, a box per tensor, as wide as the
    tensor is large, in the order of the forward pass.  `unit` is that of the sizes."""
    totals = {block: sum(tensor["size"] for tensor in row) for block, row in blocks.items()}
    widest, said = max(totals.values()), []
    figure, axes = new_figure(9, 0.9 + 1.15 * len(blocks))
    for place, (block, row) in enumerate(blocks.items()):
        left, words = 0.0, []
        for index, tensor in enumerate(row):
            (colour, hatch), size, name = LAYERS[tensor["layer"]], tensor["size"], tensor["tensor"]
            box(axes, left, place - 0.3, size, 0.6, colour, hatch=hatch, edgecolor="white", linewidth=1.5)
            if size / widest > LETTER * len(name) + 0.005:
                behind = BEHIND_LABEL if hatch else None
                write(axes, left + size / 2, place, name, fontsize=8, bbox=behind)
            else:  # a label without room stands below or above its box
                y, va = ((place + 0.36, "top"), (place - 0.36, "bottom"))[index % 2]
                write(axes, left + size / 2, y, name, fontsize=8, va=va)
            left += size
            words.append(f"{name} {size:,.3g}")
        write(axes, left + 0.01 * widest, place, f"{left:,.3g}", ha="left", fontsize=9)
        said.append(f"{block} {totals[block]:,.3g} ({', '.join(words)})")
    axes.set(title=title, xlabel=unit, xlim=(0, 1.08 * widest), ylim=(len(blocks) - 0.35, -0.65))
    axes.set_yticks(range(len(blocks)), list(blocks))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False)
    used = {tensor["layer"] for row in blocks.values() for tensor in row}
    looks = {layer: look for layer, look in LAYERS.items() if layer in used}
    handles = [
        swatch(name, colour, hatch=hatch, edgecolor="white") for name, (colour, hatch) in looks.items()
    ]
    if len(handles) > 1:
        legend_beside(axes, handles)
    return Plot(figure, f"{title}, {unit}. {'; '.join(said)}.".replace("\n", " "))


@in_style
def mixed_precision(sizes: Mapping[str, float], title: str) -> Plot:
    """The tensors of one training step in mixed precision, each as wide as its bytes, and what makes which:
    {category: bytes per parameter}, as `theory.ideal_bytes(1)` gives them."""
    figure, axes = new_figure(7.6, 3.0)
    for category, (left, floor, words) in MIXED.items():
        width = sizes[category]
        box(axes, left, floor, width, 0.6, LOOK[category][0], f"{words}\n{width:g} bytes", 9)
    copied = 2 * sizes["gradients"]  # alive in the step alone
    words = f"gradients, fp32\n{copied:g} bytes\nin the step only"
    box(axes, 10.8, 1, copied, 0.6, "white", words, 9, edgecolor="black", linestyle="--")
    for words, (x, y), end in ACROSS:
        pointer(axes, (x, y), end, arrowstyle="->", linewidth=1.4)
        write(axes, (x + end[0]) / 2, y + 0.05, words, va="bottom", fontsize=9)
    for words, (x, y), end in DOWN:
        pointer(axes, (x, y), end, arrowstyle="->", linewidth=1.4)
        write(axes, x + 0.15, (y + end[1]) / 2, words, ha="left", fontsize=9)
    write(axes, 4.6, 1.25, "activations are kept in between", va="top", fontsize=9)
    blank(axes, title=title, xlim=(-0.2, 15), ylim=(-0.1, 1.7))
    said = ", ".join(f"{category} {size:g}" for category, size in sizes.items())
    together = f"together {sum(sizes.values()):g}; in the step gradients in fp32, {copied:g}"
    return Plot(figure, f"{title}. Bytes per parameter: {said}; {together}.")


@in_style
def checkpointed_lifetimes(layers: int, title: str) -> Plot:
    """Which activations of so many blocks are alive when, all kept and checkpointed: a row for each block's
    input, its inside, and the logits, a box while they are there."""
    numbers, end = range(1, layers + 1), 2 * layers + 1
    moments = [f"forward\nblock {number}" for number in numbers]
    moments += ["loss", *(f"backward\nblock {number}" for number in reversed(numbers))]
    figure, axes = new_figure(7.6, 1.0 + 0.27 * (4 * layers + 4))
    look = {"colour": LOOK["activations"][0], "edgecolor": "white", "linewidth": 0}
    ticks, place = {}, 0
    for panel in ("all kept", "checkpointed"):
        write(axes, end / 2, place + 0.5, panel, fontsize=10, fontweight="bold")
        for number in numbers:
            first, length = number - 1, end - 2 * (number - 1)  # from its forward to its backward pass
            boxes = [(first, length)] if panel == "all kept" else [(first, 1), (end - number, 1)]
            box(axes, first, place + 1.08, length, 0.84, **look)
            for start, width in boxes:  # a forward pass that keeps nothing has one tensor after the other
                passing = panel == "checkpointed" and start == first
                tall = 0.24 if passing else 0.84
                box(axes, start, place + 2.5 - tall / 2, width, tall, hatch="" if passing else "..", **look)
            ticks |= {place + 1.5: f"input of block {number}", place + 2.5: f"inside block {number}"}
            place += 2
        box(axes, layers, place + 1.08, 1, 0.84, **look)
        ticks[place + 1.5] = "logits"
        place += 2
    for moment in range(1, end):
        axes.axvline(moment, color="black", linewidth=0.4, alpha=0.4)
    axes.set(title=title, xlim=(0, end), ylim=(place, 0))
    axes.set_xticks([moment + 0.5 for moment in range(end)], moments, fontsize=8)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(length=0)
    axes.grid(False)
    kept = f"the inside of {layers} block{'s' * (layers > 1)} at once"
    return Plot(figure, f"{title}. all kept: {kept}, checkpointed: the inside of 1 block at once.")
