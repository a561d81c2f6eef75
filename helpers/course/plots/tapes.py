"""Tapes: who holds which elements of a flat tensor, row by row and moment by moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from helpers.course.plots.drawing import EDGE, EMPTY, blank, box, ink, name_rows, rank_names, write
from helpers.course.plots.style import LOOK, WIDE, Plot, in_style, owner_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BOXES = 64  # of a row; more cannot be seen
PADDING = "pad"  # in a box of it, where it has room
NEW = "#E69F00"  # frame of what has just come
LETTER = 0.009  # of a row: room that a letter needs; words without room are left out
Rows = Sequence[Sequence] | Mapping[str, Sequence]  # of every row its elements


@in_style
def tapes(
    panels: Mapping[str, Rows],
    title: str,
    owners: int | Sequence[int] | None = None,
    part: str = "shard of rank",
    colour: Callable[[object], str] | None = None,
    mark_new: bool = False,
) -> Plot:
    """A flat tensor as several ranks hold it, at several moments below each other: a box for each run of
    equal elements, in the color of the rank that owns them; elements that a row does not hold stay empty.

    Args:
        panels: {moment: for each rank its elements}, or {moment: {row: elements}}.  An element is a number or
            a text, which stands in its box (a category of memory has its color); None where the row does not
            hold it, and "" for padding.
        owners: the rank that owns each element, or the number of ranks that own equal parts; by default the
            rows of the first panel.
        part: what stands above an owner's elements, before its number.
        colour: of an element, where it is not its owner's.
        mark_new: whether what the panel above does not show at the same place has a frame.

    Raises:
        ValueError: without rows, for rows of different lengths, or of more boxes than can be seen.
    """
    panels = {moment: _named(rows) for moment, rows in panels.items()}
    all_rows = [row for rows in panels.values() for row in rows.values()]
    if not all_rows or len(set(map(len, all_rows))) != 1 or not all_rows[0]:
        raise ValueError("give at least one row, and all rows with the same number of elements")
    width, parts = len(all_rows[0]), owners or len(next(iter(panels.values())))
    owner = [at * parts // width for at in range(width)] if isinstance(parts, int) else list(parts)
    if len(owner) != width:
        raise ValueError(f"name an owner for each of {width} elements, not {len(owner)}")
    heights = [0.55 + 0.34 * len(rows) for rows in panels.values()]
    figure = Figure(figsize=(WIDE, 0.45 + sum(heights)))
    figure.suptitle(title, fontsize=11)
    every = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    said, above = [], {}
    for axes, (moment, rows) in zip(every, panels.items()):
        for row, (name, values) in enumerate(rows.items()):
            box(axes, 0, row + 0.1, width, 0.8, EMPTY, edgecolor=EDGE, linewidth=0.5)
            _draw(axes, row, values, owner, colour, above.get(name) if mark_new else None)
        _draw_owners(axes, owner, len(rows), part)
        blank(axes, xlim=(-0.004 * width, 1.004 * width), ylim=(len(rows), -0.45))
        axes.set_title(moment, fontsize=10, loc="left")
        name_rows(axes, rows)
        said.append(_told(moment, rows))
        above = rows
    return Plot(figure, f"{title}. {'. '.join(said)}.")


def _named(rows):
    """{row: its elements as a list}."""
    named = rows.items() if isinstance(rows, Mapping) else zip(rank_names(len(rows)), rows)
    return {name: values.tolist() if hasattr(values, "tolist") else list(values) for name, values in named}


def _runs(elements: Iterable) -> list[tuple[int, int, object]]:
    """[(first, number, element)] of neighbours that are equal."""
    found, at = [], 0
    for element, run in groupby(elements):
        number = len(list(run))
        found.append((at, number, element))
        at += number
    return found


def _words(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _draw(
    axes: Axes,
    row: int,
    values: Sequence,
    owner: Sequence[int],
    colour_of: Callable | None,
    above: Sequence | None,
) -> None:
    """A row's boxes: of each owner one for every run of equal elements, with the words in the widest."""
    boxes = _runs(zip(map(_words, values), values, owner))
    if len(boxes) > MOST_BOXES:
        few = "give elements that are equal where they belong together, such as the number of a rank"
        raise ValueError(f"a row has at most {MOST_BOXES} runs of equal elements, not {len(boxes)}: {few}")
    for at, number, (words, value, rank) in boxes:
        if value is None:
            continue
        colour, hatch = LOOK.get(words, (colour_of(value) if colour_of else owner_colour(rank), ""))
        look = {"edgecolor": "white", "hatch": hatch, "linewidth": 1}
        if words == "":
            words, colour, hatch = PADDING, "white", "xxx"
            look = {"edgecolor": EDGE, "hatch": hatch, "linewidth": 0}
        if above and above[at] != value:
            look |= {"edgecolor": NEW, "linewidth": 2.5, "zorder": 2.5}
        box(axes, at, row + 0.1, number, 0.8, colour, **look)
        if _has_room(words, number, values):
            behind = {"facecolor": colour, "edgecolor": "none", "pad": 1} if hatch else None
            write(axes, at + number / 2, row + 0.5, words, fontsize=8.5, color=ink(colour), bbox=behind)


def _has_room(words: str, number: int, row: Sequence) -> bool:
    return number > LETTER * len(row) * len(words)


def _draw_owners(axes: Axes, owner: Sequence[int], rows: int, part: str) -> None:
    """Lines between two owners' elements, and above them who owns what."""
    for at, number, rank in _runs(owner):
        if at:
            axes.plot([at, at], [0.03, rows - 0.03], color="black", linewidth=1.4)
        names = (f"{part} {rank}", f"{part.split()[0]} {rank}", str(rank))
        name = next((name for name in names if _has_room(name, number, owner)), "")
        if number < len(owner):
            write(axes, at + number / 2, -0.2, name, fontsize=8)


def _told(moment: str, rows: Mapping[str, Sequence]) -> str:
    """What each row holds, in words; once where it is the same in all, and one by one where no two neighbours
    are equal anywhere."""
    runs = {name: _runs(values) for name, values in rows.items()}
    single = all(number == 1 or value is None for row in runs.values() for _, number, value in row)
    held = {name: _listed(rows[name]) if single else _in_runs(row) for name, row in runs.items()}
    if len(held) > 1 and len(set(held.values())) == 1:
        held = {"every row": next(iter(held.values()))}
    words = "; ".join(f"{name} {parts}" for name, parts in held.items())
    return f"{moment}: {words}" if moment else words


def _listed(values: Sequence) -> str:
    return f"({', '.join('–' if value is None else _words(value) or 'padding' for value in values)})"


def _in_runs(runs: Sequence[tuple[int, int, object]]) -> str:
    parts = [
        f"{number} × {_words(value) or 'padding'} from {at}"
        for at, number, value in runs
        if value is not None
    ]
    return ", ".join(parts) or "nothing"
