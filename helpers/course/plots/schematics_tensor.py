"""Schematics of tensor parallelism: a product cut by columns and by rows, a fused matrix, and which tokens
and channels a rank has in a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.patches import Rectangle
from helpers.course.plots.style import LINES, PARTS, STYLE, Plot, bare, new_figure, rectangle, swatch, write

REPLICATED, SUMMED = "#BBBBBB", "#444444"


def _matrix(axes, left, width, height, name, cut, ranks):
    """A matrix around height 0: cut into ranks' "columns" or "rows", "replicated" on all, a "sum" over all,
    or of one rank, whose number `cut` is."""
    if cut in ("replicated", "sum"):
        boxes = [(left, -height / 2, width, height, REPLICATED if cut == "replicated" else SUMMED)]
    elif isinstance(cut, int):
        boxes = [(left, -height / 2, width, height, PARTS[cut % len(PARTS)])]
    elif cut == "columns":
        boxes = [
            (left + rank * width / ranks, -height / 2, width / ranks, height, PARTS[rank % len(PARTS)])
            for rank in range(ranks)
        ]
    else:
        boxes = [
            (left, height / 2 - (rank + 1) * height / ranks, width, height / ranks, PARTS[rank % len(PARTS)])
            for rank in range(ranks)
        ]
    for x, y, wide, high, colour in boxes:
        rectangle(axes, (x, y), wide, high, facecolor=colour, edgecolor="white", linewidth=1.5)
    write(axes, left + width / 2, -height / 2 - 0.12, name, va="top", fontsize=10)


def sharded_products(title: str, ranks: int = 2) -> Plot:
    """The two ways to cut a matrix, one after the other: a column-parallel product, a function of each
    element, a row-parallel product.

    Args:
        title: what the figure shows.
        ranks: t, each with a colour of its own; grey is replicated on all, black a sum over all.
    """
    steps = (  # name, width, height, how it is cut, what stands before it
        ("X", 0.9, 1.2, "replicated", ""),
        ("A", 1.8, 0.9, "columns", "·"),
        ("Y = XA", 1.8, 1.2, "columns", "="),
        ("Z = GELU(Y)", 1.8, 1.2, "columns", "→"),
        ("B", 0.9, 1.8, "rows", "·"),
        *(
            (f"$Z_{{{rank + 1}}}B_{{{rank + 1}}}$", 0.9, 1.2, rank, "+" if rank else "=")
            for rank in range(ranks)
        ),
        ("ZB", 0.9, 1.2, "sum", "="),
    )
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(5.5 + 1.75 * ranks, 2.8))
        left = 0.0
        for name, width, height, cut, before in steps:
            if before:
                write(axes, left + 0.22, 0, before, fontsize=15)
                left += 0.45
            _matrix(axes, left, width, height, name, cut, ranks)
            left += width
        axes.set(
            title=title, xlim=(-0.1, left + 0.1), ylim=(-1.35, 1.05), xticks=[], yticks=[], aspect="equal"
        )
        bare(axes)
        names = [(f"rank {rank}", PARTS[rank % len(PARTS)]) for rank in range(ranks)]
        names += [("replicated on every rank", REPLICATED), ("a sum over the ranks", SUMMED)]
        handles = [swatch(name, colour) for name, colour in names]
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=len(names), fontsize=9
        )
    said = (
        f"A is cut by columns and B by rows, one part for each of {ranks} ranks; X is replicated, and "
        "ZB is the sum of the ranks' parts"
    )
    return Plot(figure, f"{title}. {said}.")


def token_lanes(rows: Mapping[str, Sequence[tuple[str, str]]], title: str, ranks: int = 2) -> Plot:
    """What a rank has at each place of a block: a row for each kind of parallelism, a box for each place.

    Args:
        rows: {kind of parallelism: [(place, "all" | "tokens" | "channels" | "message" | "silent"), ...]}; as
            many places in each.
        title: what the figure shows.
        ranks: t, into which tokens or channels are cut; named in the legend as t.
    """
    legend = {
        "all": "all tokens and channels, replicated",
        "channels": "all tokens, 1/t of the channels or heads",
        "tokens": "1/t of the tokens, all channels",
        "message": "sent between the ranks",
        "silent": "nothing is sent",
    }
    colours = {
        "all": REPLICATED,
        "channels": LINES[0],
        "tokens": LINES[2],
        "message": "white",
        "silent": "white",
    }
    edges = {"message": LINES[1], "silent": "#888888"}
    most = max(len(places) for places in rows.values())
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9, 0.9 + 0.75 * len(rows)))
        for row, places in enumerate(rows.values()):
            for column, (place, kind) in enumerate(places):
                box = {
                    "facecolor": colours[kind],
                    "edgecolor": edges.get(kind, "white"),
                    "linestyle": "--" if kind == "silent" else "-",
                }
                rectangle(axes, (column + 0.04, row + 0.1), 0.92, 0.8, linewidth=1.5, **box)
                dark = kind in ("channels", "tokens")
                write(axes, column + 0.5, row + 0.5, place, fontsize=8, color="white" if dark else "black")
        axes.set(title=title, xlim=(0, most), ylim=(len(rows), 0), xticks=[])
        axes.set_yticks([row + 0.5 for row in range(len(rows))], list(rows))
        axes.tick_params(length=0)
        bare(axes)
        used = [kind for kind in legend if any(kind == one for places in rows.values() for _, one in places)]
        looks = [
            {
                "facecolor": colours[kind],
                "edgecolor": edges.get(kind, "white"),
                "linestyle": "--" if kind == "silent" else "-",
            }
            for kind in used
        ]
        handles = [Rectangle((0, 0), 1, 1, label=legend[kind], **look) for kind, look in zip(used, looks)]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, fontsize=9)
    said = "; ".join(
        f"{name}: ".replace("\n", " ")
        + ", ".join(place.replace("-\n", "-").replace("\n", " ") for place, _ in places)
        for name, places in rows.items()
    )
    return Plot(figure, f"{title}. {said}.")


def fused_rows(cuts: Mapping[str, Sequence[int]], names: Sequence[str], rows: int, title: str) -> Plot:
    """Which rows of a matrix, in which several are stacked, each rank takes: a strip for each way to cut it,
    from its first row to its last.

    Args:
        cuts: {way to cut: [rank of each of equally many parts of the rows, in order]}.
        names: of the stacked matrices, equally large, in order.
        rows: of the stacked matrix.
        title: what the figure shows.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(8, 0.9 + 0.7 * len(cuts)))
        for strip, ranks in enumerate(cuts.values()):
            wide = rows / len(ranks)
            for place, rank in enumerate(ranks):
                rectangle(
                    axes,
                    (place * wide, strip + 0.15),
                    wide,
                    0.7,
                    facecolor=PARTS[rank % len(PARTS)],
                    edgecolor="white",
                )
        for place, name in enumerate(names):
            write(axes, (place + 0.5) * rows / len(names), -0.12, name, va="bottom", fontsize=11)
        ends = [place * rows // len(names) for place in range(len(names) + 1)]
        for end in ends:
            axes.axvline(end, color="#444444", linestyle="--", linewidth=1)
        axes.set(xlim=(-1, rows + 1), ylim=(len(cuts), -0.55), xlabel="row of the stacked matrix")
        axes.set_title(title, pad=8)
        axes.set_xticks(ends)
        axes.set_yticks([strip + 0.5 for strip in range(len(cuts))], list(cuts))
        axes.tick_params(length=0)
        bare(axes)
        used = sorted({rank for ranks in cuts.values() for rank in ranks})
        handles = [swatch(f"rank {rank}", PARTS[rank % len(PARTS)]) for rank in used]
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(f"{way}: {_taken(ranks, rows)}" for way, ranks in cuts.items())
    return Plot(figure, f"{title}, {', '.join(names)} stacked. {said}.".replace("\n", " "))


def _taken(ranks, rows):
    """In words, which rows each rank takes: "rank 0 rows 0 to 95, rank 1 rows 96 to 191"."""
    wide, taken = rows // len(ranks), {}
    for place, rank in enumerate(ranks):
        taken.setdefault(rank, []).append(f"{place * wide} to {(place + 1) * wide - 1}")
    return ", ".join(f"rank {rank} rows {' and '.join(taken[rank])}" for rank in sorted(taken))
