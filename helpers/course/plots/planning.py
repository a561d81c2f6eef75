"""Plans and estimates: which configuration fits where, and how far estimates are from what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from matplotlib.ticker import NullLocator
from helpers.course.plots.drawing import box, ink, legend_beside, new_figure, new_panels, swatch, write
from helpers.course.plots.style import MARKERS, Plot, check_told_apart, in_style, told

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
TICKS = (-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100)  # per cent
CLOSE = 1.0  # per cent: up to here the axis of errors is linear
NOTHING = "nothing fits"


@in_style
def heat_maps(
    panels: Mapping[str, Mapping[tuple[str, str], tuple[str, str] | None]], title: str, x: str, y: str
) -> Plot:
    """Maps side by side whose cells are kinds of plans, each with a few letters in it.

    Args:
        panels: {name: {(column, row): (kind, letters) or None}}, all with the same columns and rows, in
            order; None where nothing fits.
        x, y: what columns and rows are.

    Raises:
        ValueError: for more kinds than can be told apart, or panels with different cells.
    """
    cells = list(next(iter(panels.values())))
    if any(list(plans) != cells for plans in panels.values()):
        raise ValueError("all panels need the same columns and rows, in the same order")
    columns, rows = (list(dict.fromkeys(cell[side] for cell in cells)) for side in (0, 1))
    kinds = sorted({plan[0] for plans in panels.values() for plan in plans.values() if plan})
    check_told_apart(kinds, len(GROUNDS), "kinds")
    looks = {**dict(zip(kinds, GROUNDS)), NOTHING: ("white", "")}
    figure, axes = new_panels(len(panels), 0.62 * len(columns) + 0.9, 0.36 * len(rows) + 1.3)
    counts = {}
    for panel, (name, plans) in zip(axes, panels.items()):
        for (column, row), plan in plans.items():
            kind, letters = plan or (NOTHING, "")
            colour, hatch = looks[kind]
            place = columns.index(column), rows.index(row)
            box(panel, *place, 1, 1, colour, edgecolor="#888888", linewidth=0.5)
            if hatch:
                box(panel, *place, 1, 1, "none", hatch=hatch, edgecolor="white", alpha=0.45, linewidth=0)
            write(panel, place[0] + 0.5, place[1] + 0.5, letters, fontsize=7.5, color=ink(colour))
        panel.set(xlim=(0, len(columns)), ylim=(0, len(rows)), xlabel=x)
        panel.set_title(name, fontsize=10)
        panel.set_xticks([column + 0.5 for column in range(len(columns))], columns, fontsize=8)
        panel.set_yticks([row + 0.5 for row in range(len(rows))], rows, fontsize=8)
        panel.grid(False)
        counted = Counter(plan[0] if plan else NOTHING for plan in plans.values())
        counts[name] = {kind: counted[kind] for kind in looks if kind in counted}
    for panel in axes[1:]:
        panel.set_yticklabels([""] * len(rows))
    axes[0].set_ylabel(y)
    handles = [
        swatch(kind, colour, hatch=hatch, edgecolor="#888888")
        for kind, (colour, hatch) in looks.items()
        if any(kind in count for count in counts.values())
    ]
    figure.suptitle(title)
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=4, fontsize=8)
    return Plot(figure, f"{title}, {y} over {x}. Of {len(cells)} cells each: {told(counts, str)}.")


@in_style
def errors(rows: Mapping[str, Mapping[str, float | None]], title: str) -> Plot:
    """How far several estimates are from what was measured: {what was measured: {estimator: per cent, or None
    for none}}.

    Up to 1 % the axis is linear, beyond it logarithmic.  The sentence has the range of each estimator.
    """
    names = list(dict.fromkeys(name for estimates in rows.values() for name in estimates))
    check_told_apart(names, len(DOTS), "estimators")
    figure, axes = new_figure(7.6, 1.2 + 0.14 * (len(names) + 1) * len(rows))
    said, reach = [], 1.0
    for index, name in enumerate(names):
        lowered = 0.5 - (len(names) / 2 - index - 0.5) / (len(names) + 1)
        dots = [
            (estimates[name], place + lowered)
            for place, estimates in enumerate(rows.values())
            if estimates.get(name) is not None
        ]
        off, heights = zip(*dots)
        look = {"marker": (MARKERS + "vPX")[index], "color": DOTS[index], "markersize": 6}
        axes.plot(off, heights, linestyle="none", label=name, **look)
        said.append(f"{name} {min(off):+.1f} to {max(off):+.1f} %")
        reach = max(reach, *map(abs, off))
    for place in range(1, len(rows)):
        axes.axhline(place, color="#bbbbbb", linewidth=0.6)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=CLOSE, linscale=0.6)
    ticks = [tick for tick in TICKS if abs(tick) <= 1.6 * reach]
    axes.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlim=(-1.5 * reach, 1.5 * reach), ylim=(len(rows), 0))
    axes.set_yticks([place + 0.5 for place in range(len(rows))], list(rows), fontsize=9)
    axes.set(title=title, xlabel="error of the estimate, % of what was measured (linear up to 1 %)")
    axes.grid(False, axis="y")
    legend_beside(axes)
    return Plot(figure, f"{title}. Errors: {'; '.join(said)}.".replace("-0.0 ", "+0.0 "))
