"""Schematics of one model: its layers along the residual stream, what its blocks keep and when, and the
copies of its weights in a step."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from helpers.course.plots.drawing import (
    BEHIND,
    blank,
    box,
    ink,
    legend_below,
    new_figure,
    pointer,
    rounded,
    swatch,
    write,
)
from helpers.course.plots.style import LAYERS, LOOK, WIDE, Plot, in_style

BEHIND_LABEL = {**BEHIND, "pad": 0.8}
GAP = 0.5  # between the boxes of an opened block, in units of the stream's channels
THIN = {"color": "#777777", "linewidth": 0.7, "mutation_scale": 6}
KEPT, NEEDLESS = "#A8DDC4", "#F4C7BC"  # tensors of an opened block: stays for the backward pass; need not
MIXED = {  # tensors of a step in mixed precision: left end, floor, words
    "parameters": (0.0, 1, "weights\nbf16"),
    "gradients": (7.2, 1, "gradients\nbf16"),
    "master weights": (0.0, 0, "master weights, fp32"),
    "optimizer states": (5.6, 0, "momentum and variance, fp32"),
}
MADE_OF = {  # boxes of an opened block, for its arrows
    "x in fp32": ("x",),
    "x / rms in fp32": ("x in fp32",),
    "x / rms": ("x / rms in fp32",),
    "y": ("x / rms",),
    **dict.fromkeys(("$W_q$", "$W_k$", "$W_v$", "$W_{gate}$", "$W_{up}$"), ("y",)),
    "queries": ("$W_q$",),
    "keys": ("$W_k$",),
    "values": ("$W_v$",),
    "queries, turned": ("queries",),
    "keys, turned": ("keys",),
    "z": ("queries, turned", "keys, turned", "values"),
    "$W_o$": ("z",),
    "o(z)": ("$W_o$",),
    "x + o(z)": ("o(z)",),
    "g": ("$W_{gate}$",),
    "u": ("$W_{up}$",),
    "silu(g)": ("g",),
    "silu(g) · u": ("silu(g)", "u"),
    "$W_{down}$": ("silu(g) · u",),
    "down(…)": ("$W_{down}$",),
    "x + down(…)": ("down(…)",),
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
def one_query(sentence: str, scores: Sequence[float], title: str) -> Plot:
    """How one head of attention mixes the values of a token and of those before it: a column for each token
    with its key, its score, the score's share of the softmax, and its value.

    Args:
        sentence: its words are the tokens.
        scores: of the query with the keys that it may read; the last one is its own.
    """
    words, at, wide, colour = sentence.split(), len(scores) - 1, 1.35, LAYERS["attention"][0]
    sums = [math.exp(score) for score in scores]
    weights = [each / sum(sums) for each in sums]
    figure, axes = new_figure(WIDE, 4.2)
    rows = {"query\n1 × d": 5.35, "keys\ns × d": 4.3, "scores\n1 × s": 3.3}
    rows |= {"softmax: weights\nthat sum to 1, 1 × s": 1.8, "values\ns × d": 0.9}
    for label, y in (rows | {"weighted sum\n1 × d": -0.2}).items():
        write(axes, -0.85, y, label, fontsize=8.5, ha="right")
    edge = {"edgecolor": "#444444", "linewidth": 0.8}
    for index, word in enumerate(words):
        x, reads = wide * index, index <= at
        write(axes, x, 5.9, word, fontsize=10, weight="bold" if index == at else "normal")
        ground = "white" if reads else "#EEEEEE"
        box(axes, x - 0.45, 4.05, 0.9, 0.5, ground, f"k{index + 1}", 9, **edge)
        box(axes, x - 0.45, 0.65, 0.9, 0.5, ground, f"v{index + 1}", 9, **edge)
        if not reads:
            write(axes, x, 3.3, "masked", fontsize=8.5, color="#666666")
            write(axes, x, 1.6, "0", fontsize=8.5, color="#666666")
            continue
        pointer(axes, (wide * at, 5.1), (x, 4.6), **THIN)
        write(axes, x, 3.3, f"{scores[index]:g}", fontsize=10)
        box(axes, x - 0.3, 1.45, 0.6, 1.3 * weights[index], colour, linewidth=0)
        write(axes, x, 1.5 + 1.3 * weights[index], f"{weights[index]:.2f}", fontsize=8.5, va="bottom")
        strength = {"color": colour, "linewidth": 0.5 + 4 * weights[index]}
        axes.plot([x, wide * at], [0.65, 0.05], zorder=0.5, **strength)
    box(axes, wide * at - 0.45, 5.1, 0.9, 0.5, colour, f"q{at + 1}", 9, **edge)
    box(axes, wide * at - 0.45, -0.45, 0.9, 0.5, colour, f"z{at + 1}", 9, **edge)
    blank(axes, title=title, xlim=(-2.9, wide * len(words) - 0.6), ylim=(-0.6, 6.2))
    told = [f"{word} {score:g} ({w:.2f})" for word, score, w in zip(words, scores, weights)]
    said = f"Scores of the query of “{words[at]}” (weights): {', '.join(told)}"
    return Plot(figure, f"{title}. {said}; masked: {', '.join(words[at + 1 :])}.")


@in_style
def opened_block(
    letters: Mapping[str, int],
    tokens: int,
    title: str,
    kept: Collection[str] = (),
    guessed: str | Sequence[str] = "",
) -> Plot:
    """A Llama block in two rows, attention and feed-forward: every tensor that its forward pass makes, with
    the matrices and the arrows between them.  All are drawn at one scale: a tensor is as wide as its tokens
    and as high as its channels, a matrix as wide as the channels that it reads and as high as those that it
    makes, and what is in fp32 is twice as wide, or as logsumexp twice as high, so that areas are bytes.

    Args:
        letters: h, a, k, d and f, as in `theory.LlamaSize.letters`.
        tokens: of the one sequence.
        kept: names of the tensors that stay for the backward pass, which are filled; their GB are told.
        guessed: which ones a learner named, with | between them; all, or none, is no guess.
    """
    h, a, d = (letters[name] for name in "had")
    rows = _columns(letters, tokens)
    figure, axes = new_figure(10, 7.4)
    drawn = (name for columns in rows.values() for _, boxes in columns for name, *_ in boxes)
    tensors = {name for name in drawn if not name.startswith("$")}
    names = guessed.split("|") if isinstance(guessed, str) else guessed
    thought = {str(name).strip() for name in names} & tensors
    thought = thought if thought != tensors else set()
    said, stays, floor = [], 0, 0.0
    for layer, columns in rows.items():
        heights = [sum(high for *_, (high, _) in boxes) / h + GAP * (len(boxes) - 1) for _, boxes in columns]
        middle, left, ends, places = floor - 1.4 - max(heights) / 2, 0.0, [], {}
        write(axes, 0, floor - 0.1, layer, fontsize=9, weight="bold", ha="left")
        for (done, boxes), height in zip(columns, heights, strict=True):
            top = middle + height / 2
            if done in ("RoPE", "SiLU"):  # each beside what it was
                top = middle + heights[columns.index((done, boxes)) - 1] / 2
            widest = max(1.0 if high < h / 2 else wide / tokens for _, (wide, _), (high, _) in boxes)
            write(axes, left + widest / 2, floor - 0.55, done, fontsize=7, style="italic")
            ends.append((left + widest / 2, top))
            for name, (wide, across), (high, along) in boxes:
                matrix, size, width = name.startswith("$"), 2 * wide * high, wide / tokens
                colour = LAYERS[layer][0] if matrix else KEPT if name in kept else "white"
                missed = bool(thought) and name in set(kept) - thought
                colour = NEEDLESS if name in thought - set(kept) else colour
                place = left + (widest - width) / 2, top - high / h, width, high / h
                words = f"{name}\n{across} × {along}\n{size / 1e6:.0f} MB"
                _box_or_below(axes, place, colour, words, high > h / 2, "//" if missed else "")
                places[name] = place
                said.append(re.sub(r"[${}]", "", words.replace("\n", " ")))
                stays += size * (name in kept)
                top -= high / h + GAP
            left += widest + 0.34
        for name, to in places.items():
            for source in MADE_OF.get(name, ()):
                _arrow(axes, places[source], to)
        (start, low), (end, high) = ends[0], ends[-1]
        axes.plot([start, start, end], [low, floor - 0.85, floor - 0.85], color="black", linewidth=1)
        pointer(axes, (end, floor - 0.85), (end, high), color="black", linewidth=1)
        floor = middle - max(heights) / 2 - 0.6
    scores, z = 2 * a * tokens**2, 2 * tokens * a * d
    more = f"Never stored: scores, {scores / 1e9:.1f} GB, {scores / z:.0f} times as high as z"
    write(axes, left - 0.34, -0.1, more, fontsize=8, ha="right")
    handles = [swatch(f"matrix of {layer}", LAYERS[layer][0]) for layer in rows]
    if kept:
        handles.append(swatch("tensor that is kept", KEPT, edgecolor="#444444"))
    if thought:
        handles.append(swatch("kept, not on your list", KEPT, edgecolor="#444444", hatch="//"))
        handles.append(swatch("on your list, not kept", NEEDLESS, edgecolor="#444444"))
    legend_below(axes, 0.02, 4, [*handles, swatch("tensor", "white", edgecolor="#444444")])
    title += f": {stays / 1e9:.1f} GB" if kept else ""
    blank(axes, xlim=(-0.1, left), ylim=(floor, 0.1), title=title)
    filled = ", ".join(name for name in kept if name in tensors)
    told = [title, "; ".join(said), more, f"Filled: {filled}: {stays / 1e6:,.0f} MB" if kept else ""]
    return Plot(figure, ". ".join(part for part in told if part) + ".")


def _columns(letters, tokens):
    """{layer: columns of (what is done, [(name, (width, its letters), (height, its letters))])} of
    `opened_block`; $ marks a matrix."""
    h, a, k, d, f = (letters[name] for name in "hakdf")
    wide, two = (tokens, "s"), (2 * tokens, "s")
    norm = [
        ("", [("x", wide, (h, "h"))]),
        ("norm", [("x in fp32", two, (h, "h")), ("x / rms in fp32", two, (h, "h"))]),
        ("", [("y", wide, (h, "h")), ("x / rms", wide, (h, "h"))]),
    ]
    q, kv = (a * d, "ad"), (k * d, "kd")
    heads = [("queries", wide, q), ("keys", wide, kv), ("values", wide, kv)]
    turned = [(f"{name}, turned", wide, high) for name, _, high in heads[:2]]
    matrices = [(f"$W_{name}$", (h, "h"), high) for name, high in (("q", q), ("k", kv), ("v", kv))]
    return {
        "attention": [
            *norm,
            ("times", matrices),
            ("", heads),
            ("RoPE", turned),
            ("fused kernel", [("z", wide, q), ("logsumexp", wide, (2 * a, "a"))]),
            ("times", [("$W_o$", q, (h, "h"))]),
            ("", [("o(z)", wide, (h, "h"))]),
            ("add", [("x + o(z)", wide, (h, "h"))]),
        ],
        "feed-forward": [
            *norm,
            ("times", [(f"$W_{{{name}}}$", (h, "h"), (f, "f")) for name in ("gate", "up")]),
            ("", [("g", wide, (f, "f")), ("u", wide, (f, "f"))]),
            ("SiLU", [("silu(g)", wide, (f, "f"))]),
            ("multiply", [("silu(g) · u", wide, (f, "f"))]),
            ("times", [("$W_{down}$", (f, "f"), (h, "h"))]),
            ("", [("down(…)", wide, (h, "h"))]),
            ("add", [("x + down(…)", wide, (h, "h"))]),
        ],
    }


def _box_or_below(axes, place, colour, words, inside, hatch):
    """A box with its name, shape and size, or these below it where it is too low; a name of two parts
    leaves no room for the shape there."""
    left, bottom, width, height = place
    box(axes, *place, colour, edgecolor="#444444", linewidth=0.8, hatch=hatch)
    name, shape, size = words.split("\n")
    if inside:
        behind = {"facecolor": colour, "edgecolor": "none", "pad": 0.3} if hatch else None
        words = words.replace(", ", ",\n")
        look = {"fontsize": 7 if width > 0.7 else 6, "color": ink(colour), "bbox": behind, "linespacing": 1.1}
        write(axes, left + width / 2, bottom + height / 2, words, **look)
        return
    below = f"{name}\n{size}" if ", " in name else f"{name}  {shape}\n{size}"
    write(axes, left + width / 2, bottom - 0.04, below, fontsize=6, va="top")


def _arrow(axes, one, to):
    """Between two boxes (left, bottom, width, height): down or up in a column, else to the right, and below
    what stands in a column between them."""
    (left, low, width, high), (left_2, low_2, _, high_2) = one, to
    if left == left_2:
        start, end = (low + high, low_2) if low < low_2 else (low, low_2 + high_2)
        pointer(axes, (left + width / 2, start), (left + width / 2, end), **THIN)
        return
    start, end, bend = (left + width, low + high / 2), (left_2, low_2 + high_2 / 2), left_2 - 0.3
    if left_2 - start[0] > 1:
        axes.plot([start[0], bend], [start[1]] * 2, color=THIN["color"], linewidth=THIN["linewidth"])
        start = bend, start[1]
    pointer(axes, start, end, **THIN)


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


LOSS = {  # tensors of the loss: bytes for each logit, and first and last of the moments
    "logits, bf16": (2, 0, 2),
    "logits, fp32": (4, 1, 2),
    "log-probabilities, fp32": (4, 2, 5),
    "gradient of the log-probabilities, fp32": (4, 4, 5),
    "gradient of the logits, fp32": (4, 5, 6),
    "gradient of the logits, bf16": (2, 6, 7),
}
LOSS_MOMENTS = ("head", "to fp32", "log-\nsoftmax", "loss")  # forward; and backward the same in reverse


@in_style
def loss_lifetimes(title: str) -> Plot:
    """Which tensors of the loss are alive when, as high as their bytes for each logit."""
    figure, axes = new_figure(7.6, 3.6)
    place, ticks, said = 0.0, {}, []
    for name, (size, first, last) in LOSS.items():
        colour = LOOK["gradients" if "gradient" in name else "activations"][0]
        height = 0.2 * size
        box(axes, first, place + 0.1, last + 1 - first, height, colour=colour, edgecolor="white", linewidth=0)
        write(axes, first + (last + 1 - first) / 2, place + 0.1 + height / 2, f"{size} bytes", fontsize=8)
        ticks[place + 0.1 + height / 2] = name
        place += height + 0.2
        said.append(f"{name}, {size} bytes, from {first + 1} to {last + 1}")
    names = [f"forward\n{name}" for name in LOSS_MOMENTS]
    names += [f"backward\n{name}" for name in reversed(LOSS_MOMENTS)]
    moments = len(names)
    for moment in range(1, moments):
        axes.axvline(moment, color="black", linewidth=1.2 if 2 * moment == moments else 0.4, zorder=0.5)
    axes.set(title=title, xlim=(0, moments), ylim=(place, 0))
    axes.set_xticks([moment + 0.5 for moment in range(moments)], names, fontsize=8)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.tick_params(length=0)
    axes.grid(False)
    return Plot(figure, f"{title}. Of {moments} moments: {'; '.join(said)}.")


STEP = {  # tensors of DeepSpeed's step by Adam: bytes per parameter, and first and last of the moments
    "with torch's fused Adam": {"gradients, bf16": (2, 0, 4), "gradients, fp32": (4, 1, 4)},
    "with torch's default Adam": {
        "gradients, bf16": (2, 0, 4),
        "gradients, fp32": (4, 1, 4),
        "square roots, fp32": (4, 4, 4),
    },
    "with DeepSpeed's FusedAdam": {
        "gradients, bf16": (2, 0, 2),
        "gradients, fp32, in pieces": (4, 1, 2),
        "gradients, fp32, in one": (4, 2, 4),
    },
}
STEP_MOMENTS = ("backward pass\nhas ended", "copies\nto fp32", "flattening", "freeing", "Adam")


@in_style
def step_lifetimes(title: str) -> Plot:
    """Which tensors of DeepSpeed's step are alive when, as high as their bytes for each parameter, beside
    what lasts: a panel for each Adam."""
    figure, axes = new_figure(7.6, 5.2)
    place, ticks, said, end = 0.0, {}, [], len(STEP_MOMENTS)
    for adam, tensors in STEP.items():
        write(axes, end / 2, place + 0.3, adam, fontsize=10, fontweight="bold")
        place += 0.6
        for name, (size, first, last) in tensors.items():
            colour, height = LOOK["gradients" if "gradient" in name else "other"][0], 0.16 * size
            box(axes, first, place, last + 1 - first, height, colour=colour, edgecolor="white", linewidth=0)
            ink = "black" if "gradient" in name else "white"
            look = {"fontsize": 8, "color": ink}
            write(axes, (first + last + 1) / 2, place + height / 2, f"{size} bytes", **look)
            ticks[place + height / 2] = name
            place += height + 0.12
        lives = (f"{name}, {size} bytes, from {a + 1} to {b + 1}" for name, (size, a, b) in tensors.items())
        said.append(f"{adam}: {', '.join(lives)}")
    for moment in range(1, end):
        axes.axvline(moment, color="black", linewidth=0.4, zorder=0.5)
    axes.set(title=title, xlim=(0, end), ylim=(place, 0))
    axes.set_xticks([moment + 0.5 for moment in range(end)], STEP_MOMENTS, fontsize=8)
    places, names = zip(*ticks.items())
    axes.set_yticks(places, names, fontsize=9)
    axes.tick_params(length=0)
    axes.grid(False)
    return Plot(figure, f"{title}. Of {end} moments: {'; '.join(said)}.")


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
                if passing and number == 1:
                    write(axes, start + 1.08, place + 2.5, "a pass that keeps nothing", fontsize=8, ha="left")
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
