"""Numbers that were expected beside those that were found, with marks that turn red; and what messages
carried."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from helpers.course.digits import shown, shown_apart
from helpers.course.plots.drawing import blank, legend_under, name_rows, new_figure, pointer, swatches, write
from helpers.course.plots.pointing import formula_lines
from helpers.course.plots.style import LOOK, RIGHT, VISIBLE, WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EXPECTED, FOUND = "#BBBBBB", "#555555"  # bars: of what was expected; of what was found and is no category
ROOM, BOLD = 7.9, 0.094  # inches between the edges of a card, and that a bold letter takes
LETTER = 0.0645  # inches that a letter of a formula's line takes
SOLUTION, ANSWER = "_solution", re.compile(r"((?<=\": )|(?<= = )).+")  # of a formula that is the course's
LONG = 10  # letters of a number that needs a line of its own
STATES = ("gradients", "parameters", "master weights", "optimizer states", "other")  # what messages carry


def equal(expected: float, found: float, within: float = 0.0) -> bool:
    """Whether two numbers differ by at most a part of the expected one; a NaN equals nothing."""
    return found == expected or abs(found - expected) <= within * abs(expected)


def verdict(differing: int, count: int) -> str:
    """The last words of a card's sentence."""
    if not differing:
        return "They agree" if count == 1 else "Both agree" if count == 2 else f"All {count} agree"
    return f"{differing} of {count} {'differs' if differing == 1 else 'differ'}"


def checked(pairs: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """The pairs as plain numbers; a ValueError where there are none, or one is no pair of numbers."""
    if not pairs:
        raise ValueError("there is nothing to compare: give at least one {name: (expected, found)}")
    for name, pair in pairs.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"{name}: give a pair (expected, found), not {pair!r}")
    return {
        name: tuple(number.item() if hasattr(number, "item") else number for number in pair)
        for name, pair in pairs.items()
    }


def words_on(expected: float, found: float, within: float) -> str:
    """What stands at the end of a pair's bars; beside what is expected, how far that is off, if it is."""
    if equal(expected, found, within):
        off = f"{shown(expected)}, {(expected - found) / found:+.1%}\n" if expected != found else ""
        return f"{off if shown(expected) != shown(found) else ''}✓ {shown(found)}"
    there, due = shown_apart(found, expected)
    return f"✗ {there}{' ' if len(there) < LONG else chr(10)}instead of {due}"


def draw_pair(
    axes: Axes,
    left: float,
    row: float,
    scale: float,
    pair: tuple[float, float],
    look: tuple[str, str],
    within: float,
) -> None:
    """Two bars from `left` on, the found one below the expected one, in a row of height 1, and the mark."""
    widths = [scale * number if 0 <= number < float("inf") else 0.0 for number in pair]
    colour, hatch = look
    axes.barh(row + 0.32, widths[0], 0.3, left=left, color=EXPECTED)
    axes.barh(
        row + 0.66, widths[1], 0.3, left=left, color=colour, hatch=hatch, edgecolor="white", linewidth=0
    )
    words = words_on(*pair, within)
    mark = {"color": RIGHT if equal(*pair, within) else WRONG, "weight": "bold"}
    size = 7 if "\n" in words else 9
    write(axes, left + max(widths) + 0.08, row + 0.5, words, ha="left", fontsize=size, **mark)


@in_style
def compare(
    pairs: Mapping[str, tuple[float, float]],
    title: str,
    unit: str,
    within: float = 0.0,
    sides: tuple[str, str] = ("formula", "measured"),
) -> Plot:
    """What was expected beside what was found: two bars for each name, and a mark that says whether they are
    equal.

    Args:
        pairs: {name: (expected, found)}, in one unit; a category of memory has its colour.
        within: the part of the expected number by which the two may differ, such as 0.01.  A number that is
            expected to be 0 must be 0.
        sides: what the two are.

    Raises:
        ValueError: without pairs, or for what is no pair.
    """
    pairs = checked(pairs)
    figure, axes = new_figure(WIDE, 0.9 + 0.4 * len(pairs))
    most = max([number for pair in pairs.values() for number in pair if number < float("inf")], default=0)
    for row, (name, pair) in enumerate(pairs.items()):
        draw_pair(axes, 0, row, 3.6 / most if most > 0 else 0, pair, LOOK.get(name, (FOUND, "")), within)
    axes.set(title=title, xlim=(0, 6.4), ylim=(len(pairs), 0), xticks=[])
    allowed = f"; ✓ within {100 * within:g} %" if within else ""
    axes.set_xlabel(f"{unit}: upper bar {sides[0]}, lower bar {sides[1]}{allowed}")
    name_rows(axes, pairs)
    said = [f"{name} {sides[0]} {shown(a)}, {sides[1]} {shown(b)}" for name, (a, b) in pairs.items()]
    wrong = sum(not equal(*pair, within) for pair in pairs.values())
    return Plot(figure, f"{title}, {unit}. {'; '.join(said)}{allowed}. {verdict(wrong, len(pairs))}.")


@in_style
def bytes_card(
    held: Mapping,
    formula: Callable[..., Mapping[str, float]],
    title: str,
    moment: str = "between micro-batches",
    **arguments: object,
) -> Plot:
    """The text of a formula, and beside each line that computes a category the bytes that it predicts and
    those that a rank held.

    Args:
        held: a `Snapshot`, {category: bytes}, or the report of a training, of which the `moment` is taken.  A
            category that no line predicts must be 0, and is a row of its own where it is not.
        formula: a function whose text says {category: bytes}, best each category in a line of its own: a
            dict's keys, or assignments `held["gradients"] = ...`.
        arguments: of the formula.

    Raises:
        ValueError: where the formula's text cannot be read.
    """
    held = held["moments"][moment] if isinstance(held, Mapping) and "moments" in held else held
    lines, at, pairs = _pointed(getattr(held, "categories", held), formula, arguments)
    if formula.__name__.endswith(SOLUTION):  # the learner's is still to be written: what stands where, alone
        lines = [ANSWER.sub("…", line) for line in lines]
    figure, axes = new_figure(WIDE, 0.7 + 0.3 * len(lines))
    left = 0.45 + LETTER * max(map(len, lines))
    scale = min(_room(pair, ROOM - left) / max(1, *pair) for pair in pairs.values())
    for row, line in enumerate(lines):
        write(axes, 0, row + 0.5, line, ha="left", fontsize=7.5, family="monospace")
    for name, pair in pairs.items():
        row, end = at[name] + 0.5, 0.1 + LETTER * len(lines[at[name]])
        pointer(axes, (end, row), (left, row), color=EXPECTED)
        draw_pair(axes, left, at[name], scale, pair, LOOK.get(name, (FOUND, "")), 0.0)
    blank(axes, title=title, xlim=(0, ROOM), ylim=(len(lines), 0))
    axes.set_xlabel("bytes: grey what the line computes, colored what the rank held")
    said = [f"{name} formula {shown(a)}, held {shown(b)}" for name, (a, b) in pairs.items()]
    wrong = sum(not equal(*pair) for pair in pairs.values())
    return Plot(figure, f"{title}, bytes. {'; '.join(said)}. {verdict(wrong, len(pairs))}.")


def _room(pair, inches):
    """Of so many inches what the words at the end of a pair's bars leave to these."""
    longest = max(words_on(*pair, 0.0).split("\n"), key=len)
    return max(0.4, inches - 0.1 - BOLD * len(longest))


def _pointed(held, formula, arguments):
    """(lines, {category: its line}, {category: (computed, held)}); what has no line of its own, or is not
    predicted, has one appended."""
    expected, (lines, found) = formula(**arguments), formula_lines(formula)
    at = {}
    for name in [*expected, *(name for name, size in held.items() if size and name not in expected)]:
        if name in found and found[name] not in at.values():
            at[name] = found[name]
        else:
            at[name] = len(lines)
            lines.append(f"no line {'of its own' if name in expected else 'predicts'}: {name}")
    return lines, at, checked({name: (expected.get(name, 0), held.get(name, 0)) for name in at})


@in_style
def traffic_card(
    ways: Mapping[str, Mapping], title: str, parameters: int | None = None, ranks: int | None = None
) -> Plot:
    """Elements that a rank sends, by what the messages carry: a bar for each way to train.

    Args:
        ways: {way: the report of a training, or what its `carried` is: {category: elements}, as `Carried`
            counts them}.
        parameters, ranks: Psi and N; both together make the unit Psi (N - 1) / N, what a ring sends of Psi
            elements in a reduce-scatter or an all-gather.
    """
    if not ways or (parameters is None) != (ranks is None):
        raise ValueError("give at least one way, and parameters and ranks together or not at all")
    sent = {name: way.get("carried", way) for name, way in ways.items()}
    kinds = list(dict.fromkeys([*STATES, *(kind for sizes in sent.values() for kind in sizes)]))
    each, unit = (parameters * (ranks - 1) / ranks, "Ψ (N − 1) / N") if parameters else (1, "elements")
    figure, axes = new_figure(WIDE, 1.2 + 0.42 * len(sent))
    most = max(sum(sizes.values()) for sizes in sent.values()) / each or 1
    said = []
    for row, (name, sizes) in enumerate(sent.items()):
        left = 0.0
        for kind in kinds:
            width, (colour, hatch) = sizes.get(kind, 0) / each, LOOK[kind]
            axes.barh(row + 0.5, width, 0.6, left=left, color=colour, hatch=hatch, edgecolor="white")
            left += width
        write(axes, left + 0.01 * most, row + 0.5, f"{left:,.4g}", ha="left", fontsize=9)
        parts = ", ".join(f"{kind} {_share(sizes.get(kind, 0), each)}" for kind in kinds)
        said.append(f"{name}: {parts}; together {left:,.4g}")
    axes.set(title=title, ylim=(len(sent), 0), xlim=(0, 1.12 * most))
    axes.set_xlabel(f"sent by a rank, in {unit}")
    name_rows(axes, sent)
    seen = VISIBLE * most * each
    drawn = [kind for kind in kinds if any(sizes.get(kind, 0) > seen for sizes in sent.values())]
    legend_under(figure, 5, swatches({kind: LOOK[kind] for kind in drawn}))
    return Plot(figure, f"{title}, in {unit}. {'. '.join(said)}.")


def _share(elements: float, each: float) -> str:
    """A number of units, or of elements where they are less than a thousandth of one."""
    few = 0 < elements < each / 1000
    return f"{shown(elements, 4)} elements" if few else shown(elements / each, 4)
