"""Plans and estimates: which configuration fits where, and how far estimates are from what was measured."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib
import matplotlib.patches
import matplotlib.ticker
from helpers.course.plots.style import MARKERS, STYLE, Plot, check_told_apart, new_figure

# Okabe and Ito's colours and hatches of plans, from those that send least to those that send most; nothing
# fits: white
GROUNDS = (
    ("#56B4E9", ""),
    ("#009E73", ""),
    ("#F0E442", ""),
    ("#E69F00", "//"),
    ("#CC79A7", "\\\\"),
    ("#D55E00", "xx"),
    ("#0072B2", ".."),
)
DOTS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
CLOSE = 1.0  # per cent: up to here the axis of errors is linear


def heat_maps(
    panels: Mapping[str, Mapping[tuple[str, str], tuple[str, str] | None]],
    title: str,
    x: str,
    y: str,
    nothing: str = "nothing fits",
) -> Plot:
    """Maps side by side whose cells are kinds of plans, each with a few letters in it.

    Args:
        panels: {name: {(column, row): (kind, letters) or None}}, all with the same columns and rows, in
            order; None where nothing fits.
        x, y: what columns and rows are.
        nothing: what None is called.

    Raises:
        ValueError: for more kinds than can be told apart, or panels with different cells.
    """
    cells = list(next(iter(panels.values())))
    if any(list(found) != cells for found in panels.values()):
        raise ValueError("all panels need the same columns and rows, in the same order")
    columns, rows = (list(dict.fromkeys(cell[side] for cell in cells)) for side in (0, 1))
    kinds = sorted({found[0] for panel in panels.values() for found in panel.values() if found})
    check_told_apart(kinds, len(GROUNDS), "kinds")
    looks = dict(zip(kinds, GROUNDS))
    with matplotlib.style.context(STYLE):
        wide, high = 0.62 * len(columns) + 0.9, 0.36 * len(rows) + 1.3
        figure, axes = new_figure(len(panels), figsize=(wide * len(panels), high))
        axes = [axes] if len(panels) == 1 else axes
        for place, (one, (name, found)) in enumerate(zip(axes, panels.items())):
            for (column, row), what in found.items():
                colour, hatch = looks[what[0]] if what else ("white", "")
                at = columns.index(column), rows.index(row)
                corner = at[0] - 0.5, at[1] - 0.5
                one.add_patch(
                    matplotlib.patches.Rectangle(
                        corner, 1, 1, facecolor=colour, edgecolor="#888888", linewidth=0.5
                    )
                )
                if hatch:
                    lines = matplotlib.patches.Rectangle(
                        corner, 1, 1, fill=False, hatch=hatch, edgecolor="white", alpha=0.45, linewidth=0
                    )
                    one.add_patch(lines)
                if what and what[1]:
                    light = {"#0072B2", "#D55E00", "#009E73"}
                    one.text(
                        *at,
                        what[1],
                        ha="center",
                        va="center",
                        fontsize=7.5,
                        color="white" if colour in light else "black",
                    )
            one.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel=x)
            one.set_title(name, fontsize=10)
            one.set_xticks(range(len(columns)), columns, fontsize=8)
            one.set_yticks(range(len(rows)), rows if place == 0 else [""] * len(rows), fontsize=8)
            one.grid(False)
        axes[0].set_ylabel(y)
        shown = [
            matplotlib.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="#888888", label=kind)
            for kind, (colour, hatch) in looks.items()
        ]
        if any(what is None for found in panels.values() for what in found.values()):
            shown.append(matplotlib.patches.Patch(facecolor="white", edgecolor="#888888", label=nothing))
        figure.suptitle(title)
        figure.legend(handles=shown, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, fontsize=8)
    said = "; ".join(f"{name}: {_counted(found.values(), kinds, nothing)}" for name, found in panels.items())
    return Plot(figure, f"{title}, {y} over {x}. Of {len(cells)} cells each: {said}.")


def _counted(found, kinds, nothing):
    """How often each kind is there, in words."""
    found = [what[0] if what else nothing for what in found]
    return ", ".join(f"{kind} {found.count(kind)}" for kind in (*kinds, nothing) if kind in found)


def errors(rows: Mapping[str, Mapping[str, float | None]], title: str) -> Plot:
    """How far several estimates are from what was measured: {what was measured: {estimator: per cent, or None
    for none}}.

    Up to 1 % the axis is linear, beyond it logarithmic.  The sentence has the range of each estimator.
    """
    names = list(dict.fromkeys(name for found in rows.values() for name in found))
    check_told_apart(names, len(DOTS), "estimators")
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(7.6, 1.2 + 0.14 * (len(names) + 1) * len(rows)))
        for index, name in enumerate(names):
            raised = (len(names) / 2 - index - 0.5) / (len(names) + 1)
            dots = [
                (found[name], raised - place)
                for place, found in enumerate(rows.values())
                if found.get(name) is not None
            ]
            look = {"marker": (MARKERS + "vPX")[index], "color": DOTS[index], "markersize": 6}
            axes.plot(*zip(*dots), linestyle="none", label=name, **look)
        for place in range(len(rows) - 1):
            axes.axhline(-place - 0.5, color="#bbbbbb", linewidth=0.6)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=CLOSE, linscale=0.6)
        ticks = [-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100]
        reach = max(abs(off) for found in rows.values() for off in found.values() if off is not None)
        ticks = [tick for tick in ticks if abs(tick) <= 1.6 * max(reach, 1)]
        axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.set_xlim(-1.5 * max(reach, 1), 1.5 * max(reach, 1))
        axes.set_yticks([-place for place in range(len(rows))], list(rows), fontsize=9)
        axes.set_ylim(-len(rows) + 0.5, 0.5)
        axes.set(title=title, xlabel="error of the estimate, % of what was measured (linear up to 1 %)")
        axes.grid(False, axis="y")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = []
    for name in names:
        off = [found[name] for found in rows.values() if found.get(name) is not None]
        said.append(f"{name} {min(off):+.1f} to {max(off):+.1f} %")
    return Plot(figure, f"{title}. Errors: {'; '.join(said)}.".replace("-0.0 ", "+0.0 "))
