"""The vocabulary of the figures: axes, boxes with words in them, arrows, rows with names, legends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from helpers.course.plots.style import owner_colour

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

EMPTY, EDGE = "#eeeeee", "#999999"  # of a box in which nothing is
READABLE = 4.5  # the least contrast of words with what lies behind them (WCAG 2.2, level AA)
BEHIND = {"facecolor": "white", "edgecolor": "none"}  # a box behind words that stand on a hatch or a line


def new_figure(width: float = 7.2, height: float = 3.6) -> tuple[Figure, Axes]:
    """A figure, sizes in inches, and its axes."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def new_panels(
    count: int, width: float, height: float, title: str = "", y: float | None = None
) -> tuple[Figure, Sequence[Axes]]:
    """A figure, sizes of each panel in inches, and its axes beside each other; `y` is the title's place in
    parts of the height, where titles of the panels need room."""
    figure = Figure(figsize=(width * count, height))
    if title:
        figure.suptitle(title, fontsize=11, y=y)
    return figure, figure.subplots(1, count, squeeze=False)[0]


def luminance(colour: str) -> float:
    """Relative luminance of a colour, 0 to 1 (WCAG 2.2)."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts))


def contrast(one: str, other: str) -> float:
    """How well one colour is read on another, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def ink(colour: str) -> str:
    """Black or white: the one that is read better on a colour, always at `READABLE` or more."""
    return max(("black", "white"), key=lambda words: contrast(words, colour))


def darkened(colour: str) -> str:
    """A colour for words on white: as it is where they can be read, else darker until they can."""
    while contrast(colour, "white") < READABLE:
        colour = to_hex([0.97 * part for part in to_rgb(colour)])
    return colour


def write(axes: Axes, x: float, y: float, words: str, **look: object) -> None:
    """Words whose middle is at (x, y), unless `ha` or `va` says otherwise."""
    axes.text(x, y, words, **{"ha": "center", "va": "center", **look})


def write_beside(axes: Axes, x: float, y: float, words: str, right: float, up: float, **look: object) -> None:
    """Words so many points to the right of (x, y) and above it."""
    axes.annotate(words, (x, y), xytext=(right, up), textcoords="offset points", **look)


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    colour: str,
    words: str = "",
    fontsize: float = 8,
    **look: object,
) -> None:
    """A box with words in its middle; `x` and `y` are its smallest."""
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, **look))
    if words:
        write(axes, x + width / 2, y + height / 2, words, fontsize=fontsize, color=ink(colour))


def rounded(axes: Axes, x: float, y: float, width: float, height: float, pad: float, **look: object) -> None:
    """A box with round corners, `pad` larger on each side."""
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=f"round,pad={pad}", **look))


def disc(axes: Axes, x: float, y: float, radius: float, words: str, colour: str = "white") -> None:
    """A disc above all lines, with words in it."""
    axes.add_patch(Circle((x, y), radius, facecolor=colour, edgecolor="#444444", zorder=3))
    write(axes, x, y, words, fontsize=8, zorder=4)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: object) -> None:
    """An arrow or, by its `arrowstyle`, a line, which may be bent."""
    axes.add_patch(FancyArrowPatch(start, end, **{"arrowstyle": "-|>", "mutation_scale": 12, **look}))


def pointer(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: object) -> None:
    """A straight arrow whose ends keep two points of distance."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", **look})


def bare(axes: Axes) -> None:
    """Neither grid nor frame."""
    axes.grid(False)
    axes.spines[:].set_visible(False)


def blank(axes: Axes, **limits: object) -> None:
    """Neither grid, frame nor ticks."""
    axes.set(xticks=[], yticks=[], **limits)
    bare(axes)


def name_rows(axes: Axes, names: Iterable[str]) -> None:
    """Names at the left of rows of height 1, from the top, without ticks, grid and frame."""
    names = list(names)
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    axes.tick_params(axis="y", length=0)
    bare(axes)


def rank_names(ranks: int) -> list[str]:
    return [f"rank {rank}" for rank in range(ranks)]


def dashed_line(axes: Axes, height: float, name: str) -> None:
    """A dashed line across, named in the legend."""
    axes.axhline(height, color="black", linestyle="--", linewidth=1, label=name)


def swatch(name: str, colour: str, **look: object) -> Rectangle:
    """A box for a legend."""
    return Rectangle((0, 0), 1, 1, facecolor=colour, label=name, **look)


def swatches(looks: Mapping[str, tuple[str, str]]) -> list[Rectangle]:
    """Boxes for a legend, of {name: (colour, hatch)}."""
    return [swatch(name, colour, hatch=hatch, edgecolor="white") for name, (colour, hatch) in looks.items()]


def rank_swatches(ranks: Collection[int]) -> list[Rectangle]:
    """Ranks' colours for a legend."""
    return [swatch(f"rank {rank}", owner_colour(rank)) for rank in ranks]


def legend_beside(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """The legend at the right of the axes."""
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))


def legend_below(
    axes: Axes | Figure, height: float, columns: int, handles: Sequence[Artist] | None = None
) -> None:
    """The legend under the axes; `height` in parts of theirs."""
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, height), ncols=columns)


def legend_under(figure: Figure, columns: int, handles: Sequence[Artist]) -> None:
    """The legend at the bottom of the figure, under all that its axes need."""
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
