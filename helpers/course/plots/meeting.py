"""Collectives that the ranks of a job entered, in order: which met which, and who is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.course.plots.drawing import (
    blank,
    box,
    ink,
    legend_under,
    name_rows,
    new_figure,
    rank_names,
    swatches,
    write,
)
from helpers.course.plots.style import WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDS = ("returned", "raised")  # beginnings of a last note
MEETS, ODD = "#56B4E9", "#E69F00"
AMONG = " among ranks "  # before the members of a group that has not all ranks

Event = tuple[tuple[int, ...], int]  # a group's members, and how many of its collectives came before


@dataclass(frozen=True)
class Rank:
    """What a rank entered.

    Attributes:
        names: {collective: its name}, in order.
        end: "returned", "raised ...", or "" for a rank that waits in its last collective.
    """

    names: dict[Event, str]
    end: str


@in_style
def meeting(notes: Sequence[Sequence[str]], title: str) -> Plot:
    """A row for each rank, a column for each collective, in which ranks of a group meet.  Where they entered
    different ones, or one is missing, it has another color, and the place of the missing one is framed.  A
    rank that did not end waits in its last one.

    Args:
        notes: for each rank the collectives that it entered, in order, "all_reduce in epoch", of a group that
            has not all ranks "all_reduce in step among ranks 2, 3", then "returned", "raised ..." or nothing.

    Raises:
        ValueError: no rank, or none that entered anything.
    """
    ranks = [read(rank, len(notes)) for rank in notes]
    if not any(rank.names for rank in ranks):
        raise ValueError("there is nothing to draw: no rank entered a collective")
    columns = columns_of(ranks)
    colours = {event: MEETS if met(event, ranks) else ODD for event in columns}
    last = max(columns.values()) + 1
    figure, axes = new_figure(WIDE, 1.1 + 0.55 * len(notes))
    beyond = [_draw(axes, row, rank, columns, colours) >= last for row, rank in enumerate(ranks)]
    for column in range(last):
        write(axes, column + 0.5, -0.18, f"{column + 1}.", fontsize=8)
    blank(axes, xlim=(-0.02, last + (0.9 if any(beyond) else 0.02)), ylim=(len(notes), -0.4))
    name_rows(axes, rank_names(len(notes)))
    axes.set_title(title, fontsize=11)
    if ODD in colours.values():
        looks = {"all of a group entered the same": (MEETS, ""), "ranks of a group differ": (ODD, "")}
        legend_under(figure, len(looks), swatches(looks))
    told = "; ".join(f"{name} {_told(rank)}" for name, rank in zip(rank_names(len(notes)), ranks))
    return Plot(figure, f"{title.removesuffix('.')}{'' if title.endswith('?') else '.'} {told}.")


def read(notes: Sequence[str], ranks: int) -> Rank:
    """A rank's notes, of so many ranks."""
    names: dict[Event, str] = {}
    for note in notes:
        if not note.startswith(ENDS):
            name, _, members = note.partition(AMONG)
            group = tuple(map(int, members.split(", "))) if members else tuple(range(ranks))
            names[group, sum(group == other for other, _ in names)] = name
    return Rank(names, next((note for note in notes if note.startswith(ENDS)), ""))


def columns_of(ranks: Sequence[Rank]) -> dict[Event, int]:
    """{collective: its column}, behind all that a rank entered before; where ranks enter those of two groups
    in two orders, none can be."""
    columns = {event: 0 for rank in ranks for event in rank.names}
    for _ in range(len(columns)):
        before = dict(columns)
        for rank in ranks:
            behind = 0
            for event in rank.names:
                columns[event] = max(columns[event], behind)
                behind = columns[event] + 1
        if columns == before:
            return columns
    return {event: at for rank in ranks for at, event in enumerate(rank.names)}


def met(event: Event, ranks: Sequence[Rank]) -> bool:
    """Whether all of a group entered the same."""
    return len({ranks[member].names.get(event) for member in event[0]}) == 1


def _draw(axes: Axes, row: int, rank: Rank, columns: dict[Event, int], colours: dict[Event, str]) -> int:
    """Draw a rank's row; the column in which its end stands, -1 for one that waits."""
    for event, name in rank.names.items():
        waits = not rank.end and event == list(rank.names)[-1]
        look = {"hatch": "//", "edgecolor": "white", "linewidth": 0} if waits else {}
        box(axes, columns[event] + 0.03, row + 0.1, 0.94, 0.8, colours[event], **look)
        behind = {"facecolor": colours[event], "edgecolor": "none", "pad": 1}
        words = name.replace(" in ", ": waits\nin " if waits else "\nin ", 1)
        at = columns[event] + 0.5
        write(axes, at, row + 0.5, words, fontsize=8.5, color=ink(colours[event]), bbox=behind)
    missing = sorted(columns[event] for event in columns if row in event[0] and event not in rank.names)
    for column in missing:
        frame = {"edgecolor": WRONG, "linestyle": "--", "linewidth": 2}
        box(axes, column + 0.03, row + 0.1, 0.94, 0.8, "white", **frame)
    if not rank.end:
        return -1
    end = missing[0] if missing else max((columns[event] + 1 for event in rank.names), default=0)
    write(axes, end + 0.5, row + 0.5, rank.end, fontsize=8.5)
    return end


def _told(rank: Rank) -> str:
    listed = ", ".join(rank.names.values()) or "no collective"
    return f"{listed}, then {rank.end}" if rank.end else f"{listed} (waits)"
