"""Schematics of who talks to whom: ranks in a ring, and ranks in a grid with its groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.patches import Circle, Rectangle
from helpers.course.plots.style import PARTS, STYLE, Plot, arrow, bare, new_figure, rounded, swatch, write

LIGHT = ("#88CCEE", "#DDCC77")  # of the parts' colours, those on which black is read


def ring(rounds: Mapping[str, Sequence[int]], title: str) -> Plot:
    """Ranks in a ring, and which part of its tensor each sends to its right neighbour: a panel for each
    round.

    Args:
        rounds: {caption of the panel: for each rank the number of the part that it sends}.
        title: what the figure shows.
    """
    count = len(next(iter(rounds.values())))
    places = [
        (math.sin(2 * math.pi * rank / count), math.cos(2 * math.pi * rank / count)) for rank in range(count)
    ]
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(len(rounds), figsize=(3.2 * len(rounds), 3.5))
        figure.suptitle(title, fontsize=11)
        for axes, (caption, sent) in zip([panels] if len(rounds) == 1 else panels, rounds.items()):
            for rank, (part, here, there) in enumerate(zip(sent, places, [*places[1:], places[0]])):
                colour = PARTS[part % len(PARTS)]
                arrow(
                    axes,
                    here,
                    there,
                    connectionstyle="arc3,rad=0.18",
                    shrinkA=21,
                    shrinkB=21,
                    lw=2.5,
                    color=colour,
                    arrowstyle="-|>",
                    mutation_scale=16,
                )
                middle = [0.62 * (one + other) for one, other in zip(here, there)]
                box = {"boxstyle": "round,pad=0.25", "facecolor": colour, "edgecolor": "none"}
                axes.text(
                    *middle,
                    f"part {part}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    bbox=box,
                    color="black" if colour in LIGHT else "white",
                )
                axes.add_patch(Circle(here, 0.28, facecolor="white", edgecolor="#444444", zorder=3))
                axes.text(*here, f"rank {rank}", ha="center", va="center", fontsize=8, zorder=4)
            axes.set(xlim=(-1.45, 1.45), ylim=(-1.4, 1.4), aspect="equal")
            axes.set_title(caption, fontsize=9)
            axes.axis("off")
    said = "; ".join(
        f"{caption}: {', '.join(f'rank {rank} sends part {part}' for rank, part in enumerate(sent))}"
        for caption, sent in rounds.items()
    )
    return Plot(figure, f"{title}. {said}.")


def rank_grid(grid: Sequence[Sequence[int]], names: Sequence[str], title: str) -> Plot:
    """Ranks in a grid: a frame around each row, a group along the second dimension, and a line through each
    column, a group along the first.

    Args:
        grid: rows of ranks.
        names: of the two dimensions, the first goes down and the second across; as for `init_device_mesh`.
        title: what the figure shows.
    """
    rows, columns = len(grid), len(grid[0])
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(2.0 + 1.35 * columns, 0.9 + 0.95 * rows))
        for column in range(columns):
            axes.plot(
                [column, column],
                [0, rows - 1],
                color="#E69F00",
                linewidth=9,
                alpha=0.75,
                solid_capstyle="round",
                zorder=1,
            )
        for row, ranks in enumerate(grid):
            rounded(
                axes,
                (-0.33, row - 0.27),
                columns - 1 + 0.66,
                0.54,
                pad=0.06,
                facecolor="#56B4E933",
                zorder=0,
                edgecolor="#0072B2",
                linewidth=2,
            )
            for column, rank in enumerate(ranks):
                axes.add_patch(Circle((column, row), 0.24, facecolor="white", edgecolor="#444444", zorder=3))
                write(axes, column, row, f"rank {rank}", fontsize=8, zorder=4)
        handles = [swatch(f'a group along "{names[1]}"', "#56B4E933", edgecolor="#0072B2", linewidth=2)]
        handles.append(
            Rectangle((0, 0), 1, 1, color="#E69F00", alpha=0.75, label=f'a group along "{names[0]}"')
        )
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
        axes.set(title=title, xlim=(-0.6, columns - 0.4), ylim=(rows - 0.5, -0.5), aspect="equal")
        axes.set_xticks(range(columns), [f"{names[1]} {column}" for column in range(columns)])
        axes.set_yticks(range(rows), [f"{names[0]} {row}" for row in range(rows)])
        axes.tick_params(length=0)
        bare(axes)
    across, down = (
        "; ".join(", ".join(str(rank) for rank in group) for group in groups) for groups in (grid, zip(*grid))
    )
    return Plot(
        figure,
        f"{title}. Groups across, of one {names[0]}: {across}. Groups down, of one {names[1]}: {down}.",
    )
