"""What all figures share: a look, and a sentence beside each picture that holds its key numbers.

A notebook stores the picture in a figure of HTML, whose caption and alternative text are the sentence, and
the sentence as text beside it, so that a reader without sight has the numbers and nbval compares them.
The same category has the same colour and hatch in every lesson.  MB = 10^6 bytes.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE = Path(__file__).with_name("course.mplstyle")
# Okabe and Ito's colours, distinct for colour-blind readers, with a hatch for print.
LOOK = {
    "parameters": ("#0072B2", ""),
    "gradients": ("#D55E00", "//"),
    "master weights": ("#009E73", ""),
    "optimizer states": ("#56B4E9", "\\\\"),
    "buffers": ("#999999", "xx"),
    "activations": ("#E69F00", ".."),
    "inputs": ("#CC79A7", "--"),
    "other": ("#444444", ""),
}
PARTS = ("#332288", "#88CCEE", "#DDCC77", "#AA4499", "#117733")  # Paul Tol's, for what is no memory category
ACTIONS = {  # of a pipeline
    "F": ("#0072B2", "forward"),
    "B": ("#D55E00", "backward"),
    "I": ("#CC79A7", "backward: input"),
    "W": ("#009E73", "backward: weights"),
}
# a category that is a smaller part of the tallest bar cannot be seen, and is left out of the legend
VISIBLE = 0.002
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES, MARKERS = ("-", "--", ":", "-."), "os^D"  # of lines and points whose colour is taken


class Plot:
    """A matplotlib figure and the sentence that says what it shows; the last expression of a cell displays
    both."""

    def __init__(self, figure: Figure, sentence: str) -> None:
        self.figure, self.sentence = figure, f"Figure: {sentence}"

    @cached_property
    def png(self) -> bytes:
        """The picture as bytes, in at most 256 colours: a third of the size, with nothing to be seen of
        it."""
        from PIL import Image

        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", bbox_inches="tight")  # tight: nothing is cut off
        Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
            small, "png", optimize=True
        )
        return small.getvalue()

    def _repr_mimebundle_(self, include=None, exclude=None):
        """A figure with its caption, and the sentence.

        HTML alone carries the picture, since JupyterLab, nbconvert and GitHub prefer it to `image/png`, and
        since only there an
        alternative text reaches the reader.  A screen reader finds the sentence in `alt`; the caption shows
        it to all others.
        """
        said, picture = html.escape(" ".join(self.sentence.split())), base64.b64encode(self.png).decode()
        image = f'<img alt="{said}" src="data:image/png;base64,{picture}">'
        caption = f'<figcaption aria-hidden="true" style="font-size: smaller">{said}</figcaption>'
        return {
            "text/html": f'<figure style="margin: 0">{image}{caption}</figure>',
            "text/plain": self.sentence,
        }


def picture(page: str) -> bytes | None:
    """The PNG in a figure's HTML, as bytes; None where there is none."""
    found = re.search(r'src="data:image/png;base64,([A-Za-z0-9+/=]+)"', page)
    return base64.b64decode(found[1]) if found else None


def new_figure(columns: int = 1, **options: object) -> tuple[Figure, Axes | list[Axes]]:
    """A figure in the course's style, and its axes (one, or a list where there are several columns)."""
    with matplotlib.style.context(STYLE):
        figure = Figure(**options)
        axes = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    return figure, axes[0] if columns == 1 else axes


def check_told_apart(names: Collection[str], most: int, what: str) -> None:
    """Refuse more lines, points or the like than there are looks for, since what has none would be in the
    sentence and not in the picture."""
    if len(names) > most:
        given = " ".join(", ".join(map(str, names)).split())
        raise ValueError(
            f"{most} {what} can be told apart, not {len(names)} ({given}): draw fewer, or several figures"
        )


def unit(largest: float) -> tuple[float, str]:
    """The unit that keeps numbers short: (divisor, name)."""
    for divisor, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if largest >= divisor:
            return divisor, name
    return 1, "bytes"


def amount(count: float) -> str:
    """A number of bytes for a sentence: '3,528,912 bytes' or '3.5 GB'."""
    divisor, name = unit(count)
    return f"{count:,.0f} bytes" if count < 1e9 else f"{count / divisor:,.1f} {name}"


def legend_below(axes: Axes, distance: float) -> None:
    """The legend under the axes, in the order in which things are stacked from the bottom."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -distance), ncols=4)


def dashed_line(axes: Axes, height: float, name: str) -> None:
    """A dashed line across, named in the legend."""
    axes.axhline(height, color="black", linestyle="--", linewidth=1, label=name)


def rounded(
    axes: Axes, corner: tuple[float, float], width: float, height: float, pad: float, **look: object
) -> None:
    """A box with round corners, `pad` larger on each side."""
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=f"round,pad={pad}", **look))


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look: object) -> None:
    """An arrow or, by its `arrowstyle`, a line, which may be bent."""
    axes.add_patch(FancyArrowPatch(start, end, **look))


def rectangle(axes: Axes, corner: tuple[float, float], width: float, height: float, **look: object) -> None:
    """A box; `corner` is where x and y are smallest."""
    axes.add_patch(Rectangle(corner, width, height, **look))


def write(axes: Axes, x: float, y: float, words: str, **look: object) -> None:
    """Words whose middle is at (x, y), unless `va` says otherwise."""
    axes.text(x, y, words, **{"ha": "center", "va": "center", **look})


def swatch(name: str, colour: str, **look: object) -> Rectangle:
    """A box for a legend."""
    return Rectangle((0, 0), 1, 1, facecolor=colour, label=name, **look)


def bare(axes: Axes) -> None:
    """Neither grid nor frame."""
    axes.grid(False)
    axes.spines[:].set_visible(False)
