"""A schematic of construction: what each rank holds of a model at the moment when one of its modules has just
been built."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
from helpers.course.plots.style import LOOK, STYLE, Plot, bare, new_figure, rectangle, write


def construction(modules: Mapping[str, int], ranks: int, at: str, title: str) -> Plot:
    """Two panels, a row for each rank: the model built in full, and partitioned as it is built, when module
    `at` has just been made.

    Args:
        modules: {name: elements}, in the order of construction.
        ranks: N; a module that is complete is cut in N equal shards, and rank r keeps the r-th.
        at: the name of the module that has just been built and is not yet cut.
        title: what the figure shows.
    """
    names, total = list(modules), sum(modules.values())
    if at not in names:
        raise ValueError(f"there is no module {at!r}; there are {', '.join(names)}")
    ways, now, said = ("in full on every rank", "partitioned as it is built"), names.index(at), []
    with matplotlib.style.context(STYLE):
        figure, panels = new_figure(2, figsize=(10, 1.2 + 0.4 * ranks))
        figure.suptitle(title, fontsize=11)
        for axes, way in zip(panels, ways):
            for rank in range(ranks):
                left, held = 0.0, 0.0
                for index, elements in enumerate(modules.values()):
                    dashed = index > now
                    rectangle(
                        axes,
                        (left, rank + 0.1),
                        elements,
                        0.8,
                        facecolor="white" if dashed else "#eeeeee",
                        edgecolor="#999999",
                        linewidth=0.6,
                        linestyle=":" if dashed else "-",
                    )
                    if index <= now:
                        kept = elements if index == now or way == ways[0] else elements / ranks
                        hatch = "//" if index == now else ""
                        start = left + (rank * kept if kept < elements else 0)
                        rectangle(
                            axes,
                            (start, rank + 0.1),
                            kept,
                            0.8,
                            facecolor=LOOK["parameters"][0],
                            hatch=hatch,
                            edgecolor="white",
                            linewidth=0.4,
                        )
                        held += kept
                    left += elements
            left = 0.0
            for name, elements in modules.items():
                write(
                    axes,
                    left + elements / 2,
                    -0.08,
                    name,
                    va="bottom",
                    fontsize=7,
                    weight="bold" if name == at else None,
                )
                left += elements
            axes.set_title(way, fontsize=10, pad=14)
            axes.set(xlim=(-0.01 * total, 1.01 * total), ylim=(ranks, -0.5))
            axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
            axes.set_xticks([])
            axes.tick_params(axis="y", length=0)
            bare(axes)
            said.append(f"{way}: {held:,.0f} elements on each rank")
    return Plot(
        figure, f"{title}. {at} has just been built, {now + 1} of {len(names)} modules. {'; '.join(said)}."
    )
