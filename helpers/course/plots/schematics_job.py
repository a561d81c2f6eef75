"""A schematic of a job: the notebook, the ranks that a cell starts, and what each has for itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LOOK, STYLE, Plot, arrow, new_figure, rounded, write

HEIGHT = 0.3  # of a line in a rank's memory


def job(memories: Sequence[Mapping[str, str]], title: str) -> Plot:
    """The processes of a job: a notebook's kernel above, ranks below, each with its memory, and messages
    between them.

    Args:
        memories: for each rank {what is in its memory: a short text}; a memory category has its colour.
        title: what the figure shows.
    """
    count, lines = len(memories), max(map(len, memories))
    bottom, width = -0.75 - HEIGHT * lines, 2.0
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(1.2 + 2.1 * count, 2.4 + 0.4 * lines))
        middle = (count - 1) * 1.25
        rounded(axes, (middle - 1.1, 1.0), 2.2, 0.45, 0.06, facecolor="#F2F2F2", edgecolor="#444444")
        write(axes, middle, 1.22, "notebook: a cell calls launch", fontsize=9)
        for rank, memory in enumerate(memories):
            place, left = 2.5 * rank, 2.5 * rank - width / 2
            arrow(axes, (middle, 0.95), (place, 0.35), arrowstyle="-|>", mutation_scale=12, color="#444444")
            rounded(
                axes,
                (left, bottom),
                width,
                0.22 - bottom,
                pad=0.06,
                facecolor="white",
                edgecolor="#0072B2",
                linewidth=2,
            )
            write(axes, place, 0.08, f"rank {rank}", fontsize=10, weight="bold")
            write(axes, place, -0.2, "a process, with its own memory:", fontsize=7.5)
            for line, (what, text) in enumerate(memory.items()):
                top, colour = -0.42 - HEIGHT * line, LOOK.get(what, ("#CCCCCC", ""))[0]
                rounded(
                    axes,
                    (left + 0.08, top - 0.22),
                    width - 0.16,
                    0.18,
                    pad=0.02,
                    facecolor=colour + "55",
                    edgecolor="none",
                )
                write(axes, place, top - 0.13, f"{what}{': ' if text else ''}{text}", fontsize=8)
        for rank in range(count - 1):
            arrow(
                axes,
                (2.5 * rank + 1.08, bottom / 2),
                (2.5 * (rank + 1) - 1.08, bottom / 2),
                arrowstyle="<|-|>",
                mutation_scale=12,
                color="#D55E00",
                linewidth=2,
            )
        axes.set(title=title, xlim=(-1.3, 2.5 * (count - 1) + 1.3), ylim=(bottom - 0.25, 1.6))
        axes.axis("off")
    said = "; ".join(
        f"rank {rank} has " + ", ".join(f"{what} {text}".strip() for what, text in memory.items())
        for rank, memory in enumerate(memories)
    )
    return Plot(
        figure, f"{title}. A notebook's cell starts {count} ranks, which send messages to each other: {said}."
    )
