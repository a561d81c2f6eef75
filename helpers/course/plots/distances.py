"""Distances and the tolerances that judge them: of a training from the right one, and of faults in tests."""

from __future__ import annotations

from collections.abc import Mapping
from math import log10
from textwrap import fill
from typing import TYPE_CHECKING

from helpers.course.plots.cards import verdict
from helpers.course.plots.drawing import EMPTY, box, ink, name_rows, new_figure, write
from helpers.course.plots.style import RIGHT, WIDE, WRONG, Plot, in_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST, MOST = 1e-10, 10.0  # ends of the axis
CLOSE = 10.0  # a distance within so many times of its tolerance depends on it
CLEAR, NEAR = (
    5.0,
    2.0,
)  # times the noise that a fault exceeds; the same as CLOSE where a tolerance is of noise
EPSILON = 2.0**-23  # of fp32: an answer is rounded at least so far
DOUBTFUL = "#F0E442"
LETTERS = 80  # beside each other, above the columns of tests
Found = float | str  # a distance, or the error that stood in its place


def number(distance: float) -> str:
    return f"{distance:.2g}"


@in_style
def distance_bars(
    rows: Mapping[str, float], tolerance: float | Mapping[str, float], title: str, note: str
) -> Plot:
    """Distances on a logarithmic axis, the tolerance as a line, and a mark for each.

    Args:
        rows: {name: distance}; a NaN is beyond every tolerance.
        tolerance: of all rows, or {name: its tolerance}.
        note: what stands below the axis, and in the sentence.
    """
    figure, axes = new_figure(WIDE, 1.0 + 0.34 * len(rows))
    wrong, said = 0, []
    each = dict(tolerance) if isinstance(tolerance, Mapping) else dict.fromkeys(rows, tolerance)
    for row, (name, distance) in enumerate(rows.items()):
        fine = distance <= each[name]
        axes.plot([log10(each[name] / LEAST)] * 2, [row, row + 1], color="black", linestyle="--", linewidth=1)
        wrong += not fine
        end = min(max(distance, LEAST), MOST) if distance == distance else MOST
        colour, mark = (RIGHT, "✓") if fine else (WRONG, "✗")
        axes.barh(row + 0.5, log10(end / LEAST), 0.55, color=colour)
        words, look = f"{mark} {number(distance)}", {"ha": "left", "color": colour, "weight": "bold"}
        write(axes, log10(MOST / LEAST) + 0.15, row + 0.5, words, fontsize=9, **look)
        said.append(f"{name} {'within' if fine else 'beyond'}" + ("" if fine else f", {number(distance)}"))
    ticks = range(0, round(log10(MOST / LEAST)) + 1, 2)
    axes.set_xticks(ticks, [f"$10^{{{tick + round(log10(LEAST))}}}$" for tick in ticks])
    axes.set(title=title, xlim=(0, log10(MOST / LEAST) + 1.5), ylim=(len(rows), 0))
    allowed = ", ".join(f"{one:g}" for one in dict.fromkeys(each[name] for name in rows))
    axes.set_xlabel(f"relative distance; dashed: tolerance, {allowed}\n{note}")
    name_rows(axes, rows)
    return Plot(
        figure, f"{title}. {note}. Tolerance {allowed}: {'; '.join(said)}. {verdict(wrong, len(rows))}."
    )


def is_caught(found: Found, tolerance: float) -> bool:
    """Whether a test noticed a fault: it raised an error, or its distance is beyond the tolerance."""
    return isinstance(found, str) or not found <= tolerance


def clear_of(noise: Found) -> float:
    """The tolerance above a test's noise: how far two right answers are apart."""
    return noise if isinstance(noise, str) else CLEAR * max(noise, EPSILON)


def is_close(found: Found, tolerance: float, times: float = CLOSE) -> bool:
    """Whether another tolerance, up to so many times larger or smaller, could turn a verdict."""
    return not isinstance(found, str) and tolerance / times < found < tolerance * times


class Catches(Plot):
    """The picture of `catches`.

    Attributes:
        tests: {fault: the tests that caught it}.
        distances: {fault: {test: distance, or the error that was raised}}.
    """

    tests: dict[str, list[str]]
    distances: dict[str, dict[str, Found]]


@in_style
def catches(
    distances: Mapping[str, Mapping[str, Found]],
    tolerances: Mapping[str, float],
    title: str,
    control: Mapping[str, float],
    noisy: bool = False,
    right: str = "the right one, again",
) -> Catches:
    """Faults in rows, tests in columns: in each cell how far the fault's answer is from the right one, and
    whether that is beyond the test's tolerance.

    A distance that is less than ten times larger or smaller than its tolerance is yellow: whether the test
    catches the fault depends on a number that somebody chose.  Where noise gives the tolerance, so is one
    less than twice as large or small.

    Args:
        control: {test: the distance of the right function's second try}, within every tolerance.
        noisy: whether that distance is the test's noise, and gave the tolerance.
        right: what the first row is called.
    """
    figure, axes = new_figure(WIDE, 1.5 + 0.5 * len(distances))
    said, tests, times = [], {}, NEAR if noisy else CLOSE
    first, words = ("the right one", "noise") if noisy else (right, "passes")
    for row, (fault, found) in enumerate([(first, control), *distances.items()]):
        close = [test for test, one in found.items() if row and is_close(one, tolerances[test], times)]
        for column, (test, distance) in enumerate(found.items()):
            caught = is_caught(distance, tolerances[test])
            colour = DOUBTFUL if test in close else RIGHT if caught else EMPTY
            _draw_cell(axes, column, row, distance, colour, "✓ caught" if caught else words)
        words = "not caught"
        tests[fault] = [test for test, one in found.items() if is_caught(one, tolerances[test])]
        doubt = f" (depends on the tolerance of {_listed(close)})" * bool(close)
        said.append(f"{fault}: {_listed(tests[fault]) or 'no test'}{doubt}")
    room = LETTERS // len(tolerances)
    heads = [fill(test, room) for test in tolerances]
    if noisy:
        rounding = f"{CLEAR:g} times fp32's rounding, {CLEAR * EPSILON:.0e}"
        axes.set_xlabel(f"caught: more than {CLEAR:g} times the noise, and than {rounding}")
    else:
        heads = [head + f"\nbeyond {each:g}" * bool(each) for head, each in zip(heads, tolerances.values())]
    axes.set(xlim=(0, len(tolerances)), ylim=(len(said), 0))
    axes.set_xticks([column + 0.5 for column in range(len(heads))], heads, fontsize=9)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("bottom")
    axes.tick_params(length=0)
    axes.set_title(title, pad=12)
    name_rows(axes, tests)
    plot = Catches(figure, f"{title}. Caught by: {'; '.join(said)}.")
    plot.tests = {fault: tests[fault] for fault in distances}
    plot.distances = {fault: dict(found) for fault, found in distances.items()}
    return plot


def _listed(tests: list[str]) -> str:
    return ", ".join(f'"{test}"' for test in tests)


def _draw_cell(axes: Axes, column: int, row: int, found: Found, colour: str, words: str) -> None:
    box(axes, column + 0.03, row + 0.06, 0.94, 0.88, colour)
    far = found.partition(":")[0] if isinstance(found, str) else number(found)
    write(axes, column + 0.5, row + 0.5, f"{words}\n{far}", fontsize=8.5, color=ink(colour))
