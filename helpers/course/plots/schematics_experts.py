"""Schematic of experts: the way of tokens to the ranks that hold their experts."""

from __future__ import annotations

from collections.abc import Sequence

from helpers.course.plots.bars import DROPPED
from helpers.course.plots.drawing import EMPTY, blank, box, legend_below, new_figure, pointer, swatch, write
from helpers.course.plots.style import Plot, in_style, owner_colour


def _token(axes, x, y, token, colour, hatch=""):
    """A token's box; an empty row where it is None."""
    look = {"edgecolor": "#888888", "linewidth": 0.8, "hatch": hatch}
    if token is None:
        box(axes, x + 0.05, y + 0.05, 0.9, 0.9, EMPTY, **look)
    else:
        box(axes, x + 0.05, y + 0.05, 0.9, 0.9, colour, str(token), 9, **look)


def _rows(chosen, experts, capacity):
    """{(expert, row): token} of a rank's tokens, in order, and those that found no row."""
    taken, rows, dropped = [0] * experts, {}, []
    for token, expert in enumerate(chosen):
        if taken[expert] < capacity:
            rows[expert, taken[expert]] = token
            taken[expert] += 1
        else:
            dropped.append(token)
    return rows, dropped


@in_style
def dispatch(chosen: Sequence[Sequence[int]], experts: int, capacity: int, title: str) -> Plot:
    """The way of tokens to their experts: a rank's tokens, its rows for all experts, and after the all-to-all
    the rows of its own experts.

    Args:
        chosen: for each rank, the expert that each of its tokens chose.
        experts: E, consecutive ones on consecutive ranks, equally many on each.
        capacity: C, rows that an expert has for each rank.
    """
    ranks, tokens, said = len(chosen), max(map(len, chosen)), []
    local = experts // ranks
    filled = [_rows(wanted, experts, capacity) for wanted in chosen]
    second, third, high = tokens + 1.2, tokens + experts + 2.9, max(ranks * capacity, 2) + 1.4
    figure, axes = new_figure(9.5, 0.9 + 0.36 * high * ranks)
    for rank, (wanted, (rows, dropped)) in enumerate(zip(chosen, filled)):
        top = rank * high
        write(axes, -0.3, top + 0.5, f"rank {rank}", ha="right", fontsize=10)
        for token, expert in enumerate(wanted):
            look = (DROPPED, "xx") if token in dropped else (owner_colour(rank),)
            _token(axes, token, top, token, *look)
            write(axes, token + 0.5, top + 1.35, f"→{expert}", fontsize=8)
        for expert in range(experts):
            write(axes, second + expert + 0.5, top - 0.22, str(expert), fontsize=8)
            for row in range(capacity):
                _token(axes, second + expert, top + row, rows.get((expert, row)), owner_colour(rank))
        for place in range(local):
            expert = rank * local + place
            write(axes, third + place + 0.5, top - 0.22, str(expert), fontsize=8)
            for source, (sent, _) in enumerate(filled):
                for row in range(capacity):
                    y = top + source * capacity + row
                    _token(axes, third + place, y, sent.get((expert, row)), owner_colour(source))
        gone = f", dropped {', '.join(map(str, dropped))}" if dropped else ""
        slots = f"{len(rows)} of {experts * capacity} rows filled"
        said.append(f"rank {rank}: {len(wanted)} tokens, {slots}{gone}")
    middle = ranks * high / 2 - 0.4
    pointer(axes, (second + experts + 0.2, middle), (third - 0.3, middle), arrowstyle="<->")
    write(axes, (second + experts + third) / 2, middle - 0.4, "all-to-all", va="bottom", fontsize=9)
    headings = {
        "tokens, and the\nexpert of each": tokens / 2,
        "rows for\nevery expert": second + experts / 2,
        "rows of its\nown experts": third + local / 2,
    }
    for words, x in headings.items():
        write(axes, x, -0.75, words, va="bottom", fontsize=9)
    blank(axes, xlim=(-2.2, third + local + 0.8), ylim=(ranks * high - 0.3, -1.9))
    axes.set_title(title, pad=6)
    edge = {"edgecolor": "#888888"}
    handles = [swatch(f"token of rank {rank}", owner_colour(rank), **edge) for rank in range(ranks)]
    handles.append(swatch("dropped: its expert has no row left", DROPPED, hatch="xx", **edge))
    handles.append(swatch("empty row, sent all the same", EMPTY, **edge))
    legend_below(axes, 0.0, 2, handles)
    return Plot(figure, f"{title}. {'; '.join(said)}.")
