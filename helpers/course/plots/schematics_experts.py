"""Schematics of experts: the way of tokens to the ranks that hold their experts, and how many each expert
gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from helpers.course.plots.style import LINES, PARTS, STYLE, Plot, bare, new_figure, rectangle, swatch, write

EMPTY, DROPPED = "#EEEEEE", "#BBBBBB"


def _box(axes, x, y, text="", colour=EMPTY, **look):
    rectangle(
        axes,
        (x + 0.05, y + 0.05),
        0.9,
        0.9,
        **{"facecolor": colour, "edgecolor": "#888888", "linewidth": 0.8, **look},
    )
    dark = colour in (PARTS[0], PARTS[3], PARTS[4])
    write(axes, x + 0.5, y + 0.5, text, fontsize=9, color="white" if dark else "black")


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


def dispatch(chosen: Sequence[Sequence[int]], experts: int, capacity: int, title: str) -> Plot:
    """The way of tokens to their experts: a rank's tokens, its rows for all experts, and after the all-to-all
    the rows of its own experts.

    Args:
        chosen: for each rank, the expert that each of its tokens chose.
        experts: E, consecutive ones on consecutive ranks, equally many on each.
        capacity: C, rows that an expert has for each rank.
        title: what the figure shows.
    """
    ranks = len(chosen)
    own, tokens, filled = (
        experts // ranks,
        max(map(len, chosen)),
        [_rows(one, experts, capacity) for one in chosen],
    )
    second, third, high = tokens + 1.2, tokens + experts + 2.9, max(ranks * capacity, 2) + 1.4
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(9.5, 0.9 + 0.36 * high * ranks))
        for rank, (wanted, (rows, dropped)) in enumerate(zip(chosen, filled)):
            top = rank * high
            axes.text(-0.3, top + 0.5, f"rank {rank}", ha="right", va="center", fontsize=10)
            for token, expert in enumerate(wanted):
                gone = token in dropped
                _box(
                    axes,
                    token,
                    top,
                    str(token),
                    DROPPED if gone else PARTS[rank % len(PARTS)],
                    hatch="xx" if gone else "",
                )
                write(axes, token + 0.5, top + 1.35, f"→{expert}", fontsize=8)
            for expert in range(experts):
                for row in range(capacity):
                    token = rows.get((expert, row))
                    _box(
                        axes,
                        second + expert,
                        top + row,
                        "" if token is None else str(token),
                        EMPTY if token is None else PARTS[rank % len(PARTS)],
                    )
            for place in range(own):
                expert = rank * own + place
                for source in range(ranks):
                    for row in range(capacity):
                        token, colour = filled[source][0].get((expert, row)), PARTS[source % len(PARTS)]
                        _box(
                            axes,
                            third + place,
                            top + source * capacity + row,
                            "" if token is None else str(token),
                            EMPTY if token is None else colour,
                        )
            for place in range(experts):
                write(axes, second + place + 0.5, top - 0.22, str(place), fontsize=8)
                if place < own:
                    write(axes, third + place + 0.5, top - 0.22, str(rank * own + place), fontsize=8)
        middle = (second + experts + third) / 2
        axes.annotate(
            "",
            (third - 0.3, ranks * high / 2 - 0.4),
            (second + experts + 0.2, ranks * high / 2 - 0.4),
            arrowprops={"arrowstyle": "<->"},
        )
        write(axes, middle, ranks * high / 2 - 0.8, "all-to-all", va="bottom", fontsize=9)
        headings = {
            "tokens, and the\nexpert of each": (0, tokens),
            "rows for\nevery expert": (second, experts),
            "rows of its\nown experts": (third, own),
        }
        for words, (x, wide) in headings.items():
            write(axes, x + wide / 2, -0.75, words, va="bottom", fontsize=9)
        axes.set(xlim=(-2.2, third + own + 0.8), ylim=(ranks * high - 0.3, -1.9), xticks=[], yticks=[])
        axes.set_title(title, pad=6)
        bare(axes)
        names = [(f"token of rank {rank}", PARTS[rank % len(PARTS)], "") for rank in range(ranks)]
        names += [
            ("dropped: its expert has no row left", DROPPED, "xx"),
            ("empty row, sent all the same", EMPTY, ""),
        ]
        handles = [swatch(name, colour, hatch=hatch, edgecolor="#888888") for name, colour, hatch in names]
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize=9)
    said = []
    for rank, (wanted, (rows, dropped)) in enumerate(zip(chosen, filled)):
        gone = f", dropped {', '.join(map(str, dropped))}" if dropped else ""
        said.append(
            f"rank {rank}: {len(wanted)} tokens, {len(rows)} of {experts * capacity} rows filled{gone}"
        )
    return Plot(figure, f"{title}. {'; '.join(said)}.")


def expert_loads(
    loads: Mapping[str, Sequence[tuple[int, int]]], title: str, capacity: int | None = None
) -> Plot:
    """Tokens that each expert got and that it had no room for: {case: [(taken, dropped) of each expert]}.

    Args:
        loads: a group of bars for each case.
        title: what the figure shows.
        capacity: tokens that an expert takes, drawn as a line; None for no line.
    """
    most = max(map(len, loads.values()))
    width = 0.8 / most
    with matplotlib.style.context(STYLE):
        figure, axes = new_figure(figsize=(max(7.2, 1.9 * len(loads)), 3.6))
        for expert in range(most):
            places = [case + (expert - (most - 1) / 2) * width for case in range(len(loads))]
            taken, dropped = ([rows[expert][part] for rows in loads.values()] for part in (0, 1))
            axes.bar(places, taken, width=0.92 * width, color=LINES[0])
            axes.bar(
                places,
                dropped,
                width=0.92 * width,
                bottom=taken,
                color=DROPPED,
                hatch="xx",
                edgecolor="white",
            )
            for place in places:
                axes.annotate(
                    str(expert),
                    (place, 0),
                    xytext=(0, -4),
                    textcoords="offset points",
                    ha="center",
                    va="top",
                    fontsize=8,
                )
        handles = [swatch("taken", LINES[0])]
        if any(gone for rows in loads.values() for _, gone in rows):
            handles.append(swatch("dropped", DROPPED, hatch="xx", edgecolor="white"))
        if capacity is not None:
            handles.append(axes.axhline(capacity, color=LINES[1], linestyle="--", label="capacity"))
        axes.set_xticks(range(len(loads)), list(loads), fontsize=9)
        axes.tick_params(axis="x", length=0, pad=16)
        axes.set(
            title=title,
            ylabel="tokens",
            ylim=(0, 1.05 * max(sum(one) for rows in loads.values() for one in rows)),
        )
        axes.grid(False, axis="x")
        axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    said = "; ".join(
        f"{case}: ".replace("\n", " ")
        + ", ".join(
            f"expert {number} {one + other} ({other} dropped)" for number, (one, other) in enumerate(rows)
        )
        for case, rows in loads.items()
    )
    line = "" if capacity is None else f"; an expert takes {capacity}"
    return Plot(figure, f"{title}. {said}{line}.")
