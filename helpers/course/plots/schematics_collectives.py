"""Schematics of collectives: ranks in a grid with its groups, what each rank holds when, two trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from helpers.course.plots.drawing import (
    arrow,
    bare,
    blank,
    box,
    disc,
    legend_beside,
    name_rows,
    new_figure,
    new_panels,
    rank_names,
    rounded,
    swatch,
)
from helpers.course.plots.style import Plot, in_style, owner_colour

Rows = Sequence[Sequence[int] | None]  # numbers that each rank holds; None for a rank without any
NONE, SOME, ALL = "#EEEEEE", "#888888", "#444444"  # sums over so many ranks
ADDS = "#B9D7EA"  # a rank that adds up


@in_style
def rank_grid(grid: Sequence[Sequence[int]], names: Sequence[str], title: str) -> Plot:
    """Ranks in a grid: a frame around each row, a group along the second dimension, and a line through each
    column, a group along the first.

    Args:
        grid: rows of ranks.
        names: of the two dimensions, the first goes down and the second across; as for `init_device_mesh`.
    """
    rows, columns, (down, across) = len(grid), len(grid[0]), names
    line, frame = {"color": "#E69F00", "alpha": 0.75}, {"edgecolor": "#0072B2", "linewidth": 2}
    figure, axes = new_figure(2.0 + 1.35 * columns, 0.9 + 0.95 * rows)
    for column in range(columns):
        axes.plot([column] * 2, [0, rows - 1], linewidth=9, solid_capstyle="round", zorder=1, **line)
    for row, ranks in enumerate(grid):
        size = columns - 1 + 0.66, 0.54
        rounded(axes, -0.33, row - 0.27, *size, pad=0.06, facecolor="#56B4E933", zorder=0, **frame)
        for column, rank in enumerate(ranks):
            disc(axes, column, row, 0.24, f"rank {rank}")
    handles = [
        swatch(f'a group along "{across}"', "#56B4E933", **frame),
        swatch(f'a group along "{down}"', "#E69F00", edgecolor="#E69F00", alpha=0.75),
    ]
    legend_beside(axes, handles)
    axes.set(title=title, xlim=(-0.6, columns - 0.4), ylim=(rows - 0.5, -0.5), aspect="equal")
    axes.set_xticks(range(columns), [f"{across} {column}" for column in range(columns)])
    axes.set_yticks(range(rows), [f"{down} {row}" for row in range(rows)])
    axes.tick_params(length=0)
    bare(axes)

    def listed(groups):
        return "; ".join(", ".join(map(str, group)) for group in groups)

    rows_said, columns_said = listed(grid), listed(zip(*grid))
    groups = f"Groups across, of one {down}: {rows_said}. Groups down, of one {across}: {columns_said}."
    return Plot(figure, f"{title}. {groups}")


def contributors(number: int) -> list[int]:
    """The ranks that a number of the collectives lesson comes from: rank r counts in units of 10^r."""
    return [rank for rank, digit in enumerate(reversed(str(abs(number)))) if digit != "0"]


def source_colour(number: int, ranks: int = 4) -> str:
    """Of a number that comes from one rank, or is a sum over none, some or all."""
    sources = contributors(number)
    if len(sources) == 1:
        return owner_colour(sources[0])
    return NONE if not sources else ALL if len(sources) == ranks else SOME


def rank_contents(
    before: Rows, after: Rows, title: str, moments: Sequence[str] = ("before", "after")
) -> Plot:
    """`contents_over_time` of two moments, before and after a collective."""
    return contents_over_time(dict(zip(moments, (before, after))), title)


@in_style
def contents_over_time(moments: Mapping[str, Rows], title: str) -> Plot:
    """What every rank holds at some moments: a panel per moment, a row per rank, a box per element, coloured
    by the rank it comes from.

    Args:
        moments: {name: for each rank a list of whole numbers in which rank r counts in units of 10^r, so that
            the digits of a sum say who is in it; None or an empty list for a rank that holds nothing of
            interest}.
    """
    states = list(moments.values())
    ranks, widest = len(states[0]), max(len(row or ()) for rows in states for row in rows)
    figure, panels = new_panels(len(states), 3.6, 0.5 + 0.33 * ranks)
    for axes, (name, rows) in zip(panels, moments.items()):
        for rank, row in enumerate(rows):
            for column, number in enumerate(row or ()):
                box(axes, column, rank + 0.06, 0.94, 0.88, source_colour(number, ranks), str(number), 9)
        blank(axes, title=f"{title}: {name}", xlim=(0, max(widest, 1)), ylim=(len(rows), 0))
        name_rows(axes, rank_names(len(rows)))
    said = "; ".join(
        f"rank {rank} {' -> '.join(str(row or 'nothing') for row in rows)}"
        for rank, rows in enumerate(zip(*states))
    )
    return Plot(figure, f"{title}. {said}.")


def parents(ranks: int) -> dict[int, int]:
    """{rank: its parent} in a tree of 2^k ranks whose odd ranks are leaves: rank 0 is the root, with one
    child; NCCL's second tree is its mirror image."""
    found, gap = {}, ranks // 2
    while gap:
        for rank in range(gap, ranks, 2 * gap):  # a rank's lowest bit is its level
            up = rank & (rank - 1) | 2 * gap
            found[rank] = up if up < ranks else rank & (rank - 1)
        gap //= 2
    return found


@in_style
def two_trees(ranks: int, title: str) -> Plot:
    """Two trees of the same ranks, each with half of the tensor: who is a leaf in one is none in the other.

    Source: Sanders, Speck, Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan
    (2009), section 3.
    """
    tree = parents(ranks)
    trees = tree, {ranks - 1 - rank: ranks - 1 - up for rank, up in tree.items()}
    figure, panels = new_panels(2, 4, 2.9, title)
    said = []
    for axes, half, up in zip(panels, ("first", "second"), trees):
        root = (set(range(ranks)) - set(up)).pop()
        depth = {root: 0}
        while len(depth) < ranks:
            depth |= {rank: depth[over] + 1 for rank, over in up.items() if over in depth}
        for rank, over in up.items():
            look = {"shrinkA": 9, "shrinkB": 9, "color": "#888888"}
            arrow(axes, (rank, -depth[rank]), (over, -depth[over]), **look)
        leaves = sorted(set(range(ranks)) - set(up.values()))
        for rank, level in depth.items():
            disc(axes, rank, -level, 0.26, str(rank), "white" if rank in leaves else ADDS)
        said.append(f"{half} half: root {root}, leaves {', '.join(map(str, leaves))}")
        blank(axes, xlim=(-0.5, ranks - 0.5), ylim=(-max(depth.values()) - 0.5, 0.5), aspect="equal")
        axes.set_title(f"the {half} half of the tensor", fontsize=10)
    return Plot(figure, f"{title}. {'; '.join(said)}.")
