"""Schematics of tensor parallelism: a product cut by columns and by rows, a fused matrix, and which tokens
and channels a rank has in a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helpers.course.plots.drawing import (
    blank,
    box,
    legend_below,
    legend_beside,
    name_rows,
    new_figure,
    rank_swatches,
    swatch,
    write,
)
from helpers.course.plots.style import LINES, Plot, in_style, owner_colour

REPLICATED, SUMMED = "#BBBBBB", "#444444"
STEPS = (  # matrix, width, height, (columns, rows) of its parts, their colours, what stands before it
    ("X", 0.9, 1.2, (1, 1), [REPLICATED], ""),
    ("A", 1.8, 0.9, (2, 1), [owner_colour(0), owner_colour(1)], "·"),
    ("Y = XA", 1.8, 1.2, (2, 1), [owner_colour(0), owner_colour(1)], "="),
    ("Z = GELU(Y)", 1.8, 1.2, (2, 1), [owner_colour(0), owner_colour(1)], "→"),
    ("B", 0.9, 1.8, (1, 2), [owner_colour(1), owner_colour(0)], "·"),
    ("$Z_{1}B_{1}$", 0.9, 1.2, (1, 1), [owner_colour(0)], "="),
    ("$Z_{2}B_{2}$", 0.9, 1.2, (1, 1), [owner_colour(1)], "+"),
    ("ZB", 0.9, 1.2, (1, 1), [SUMMED], "="),
)
PLAIN = {"edgecolor": "white"}
LANES = {  # what a rank has at a place: words, colour, outline
    "all": ("all tokens and channels, replicated", REPLICATED, PLAIN),
    "channels": ("all tokens, 1/t of the channels or heads", LINES[0], PLAIN),
    "tokens": ("1/t of the tokens, all channels", LINES[2], PLAIN),
    "message": ("sent between the ranks", "white", {"edgecolor": LINES[1]}),
    "silent": ("nothing is sent", "white", {"edgecolor": "#888888", "linestyle": "--"}),
}


@in_style
def sharded_products(title: str) -> Plot:
    """The two ways to cut a matrix for two ranks, one after the other: a column-parallel product, a function
    of each element, a row-parallel product.  Grey is replicated on all, black a sum over all."""
    figure, axes = new_figure(9, 2.8)
    left = 0.0
    for name, width, height, (columns, rows), colours, before in STEPS:
        if before:
            write(axes, left + 0.22, 0, before, fontsize=15)
            left += 0.45
        wide, high = width / columns, height / rows
        for part, colour in enumerate(colours):
            x, y = left + part % columns * wide, part // columns * high - height / 2
            box(axes, x, y, wide, high, colour, edgecolor="white", linewidth=1.5)
        write(axes, left + width / 2, -height / 2 - 0.12, name, va="top", fontsize=10)
        left += width
    blank(axes, title=title, xlim=(-0.1, left + 0.1), ylim=(-1.35, 1.05), aspect="equal")
    others = [swatch("replicated on every rank", REPLICATED), swatch("a sum over the ranks", SUMMED)]
    legend_below(axes, 0.02, 4, [*rank_swatches(range(2)), *others])
    said = (
        "A is cut by columns and B by rows, one part for each of 2 ranks; X is replicated, and "
        "ZB is the sum of the ranks' parts"
    )
    return Plot(figure, f"{title}. {said}.")


@in_style
def token_lanes(rows: Mapping[str, Sequence[tuple[str, str]]], title: str) -> Plot:
    """What a rank has at each place of a block: a row for each kind of parallelism, a box for each place.

    Args:
        rows: {kind of parallelism: [(place, "all" | "tokens" | "channels" | "message" | "silent"), ...]}; as
            many places in each.
    """
    figure, axes = new_figure(9, 0.9 + 0.75 * len(rows))
    for row, places in enumerate(rows.values()):
        for column, (place, kind) in enumerate(places):
            _, colour, outline = LANES[kind]
            box(axes, column + 0.04, row + 0.1, 0.92, 0.8, colour, place, linewidth=1.5, **outline)
    blank(axes, title=title, xlim=(0, max(map(len, rows.values()))), ylim=(len(rows), 0))
    name_rows(axes, rows)
    used = {kind for places in rows.values() for _, kind in places}
    handles = [swatch(name, colour, **look) for kind, (name, colour, look) in LANES.items() if kind in used]
    legend_below(axes, -0.02, 2, handles)
    said = "; ".join(
        f"{name}: ".replace("\n", " ")
        + ", ".join(place.replace("-\n", "-").replace("\n", " ") for place, _ in places)
        for name, places in rows.items()
    )
    return Plot(figure, f"{title}. {said}.")


@in_style
def fused_rows(cuts: Mapping[str, Sequence[int]], names: Sequence[str], rows: int, title: str) -> Plot:
    """Which rows of a matrix, in which several are stacked, each rank takes: a strip for each way to cut it,
    from its first row to its last.

    Args:
        cuts: {way to cut: [rank of each of equally many parts of the rows, in order]}.
        names: of the stacked matrices, equally large, in order.
        rows: of the stacked matrix.
    """
    figure, axes = new_figure(8, 0.9 + 0.7 * len(cuts))
    said = []
    for strip, (way, ranks) in enumerate(cuts.items()):
        wide, taken = rows // len(ranks), {}
        for place, rank in enumerate(ranks):
            box(axes, place * wide, strip + 0.15, wide, 0.7, owner_colour(rank), edgecolor="white")
            taken.setdefault(rank, []).append(f"{place * wide} to {(place + 1) * wide - 1}")
        parts = (f"rank {rank} rows {' and '.join(taken[rank])}" for rank in sorted(taken))
        said.append(f"{way}: {', '.join(parts)}")
    for place, name in enumerate(names):
        write(axes, (place + 0.5) * rows / len(names), -0.12, name, va="bottom", fontsize=11)
    ends = [place * rows // len(names) for place in range(len(names) + 1)]
    for end in ends:
        axes.axvline(end, color="#444444", linestyle="--", linewidth=1)
    axes.set(xlim=(-1, rows + 1), ylim=(len(cuts), -0.55), xlabel="row of the stacked matrix")
    axes.set_title(title, pad=8)
    axes.set_xticks(ends)
    name_rows(axes, cuts)
    axes.tick_params(length=0)
    legend_beside(axes, rank_swatches(sorted({rank for ranks in cuts.values() for rank in ranks})))
    return Plot(figure, f"{title}, {', '.join(names)} stacked. {'; '.join(said)}.".replace("\n", " "))
