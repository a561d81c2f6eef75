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
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib.style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

in_style = matplotlib.style.context(Path(__file__).with_name("course.mplstyle"))  # decorates what draws
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
# What comes and goes, by the names of `rehearsal.naming`: each has the colour of what it is a copy or a part
# of, lighter.
TEMPORARIES = {
    "activations": LOOK["activations"],
    "logits": ("#F0E442", ""),
    "gradients of activations": ("#F5C95C", "--"),
    "gathered weights": ("#7FB8DA", "//"),
    "bucket": LOOK["buffers"],
    "copy to be sent": ("#CCCCCC", "xx"),
    "gradients in fp32": ("#F2A679", ""),
    "flattened gradients": ("#F2A679", "\\\\"),
    "norm in fp64": ("#CC79A7", "//"),
    "Adam's temporaries": ("#56B4E9", "xx"),
    "not told apart": ("#BBBBBB", "//"),
    "other": LOOK["other"],
}
LAYERS = {  # of a transformer
    "embedding": ("#CC79A7", ""),
    "norm": ("#999999", "xx"),
    "attention": ("#56B4E9", ""),
    "feed-forward": ("#E69F00", ".."),
    "head": ("#CC79A7", ""),
}
# Ranks that own something: shades of violet alone, neighbours light and dark, so that no owner looks like a
# category.
OWNERS = ("#3B1F6B", "#CDB4E4", "#7B3FA0", "#B08AD0", "#55208A", "#DCC8EC", "#9A6BC4", "#C3A6DE")
PARTS = (
    "#332288",
    "#88CCEE",
    "#DDCC77",
    "#AA4499",
    "#117733",
)  # Paul Tol's, for what is no category and no rank
RIGHT, WRONG = "#007A54", "#C23B00"  # marks ✓ and ✗, and words beside them, readable on white
CAUTION = "#7A5C00"  # words on what works only in one way
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES, MARKERS = ("-", "--", ":", "-."), "os^D"  # of lines and points whose colour is taken
WIDE = 8.0  # inches of a figure that fills a page of 900 pixels
# a category that is a smaller part of the tallest bar cannot be seen, and is left out of the legend
VISIBLE = 0.002


class Plot:
    """A matplotlib figure and the sentence that says what it shows; the last expression of a cell displays
    both."""

    def __init__(self, figure: Figure, sentence: str) -> None:
        self.figure, self.sentence = figure, f"Figure: {sentence}"

    def __str__(self) -> str:
        """In words alone, where a picture would say no more."""
        return fill(self.sentence.removeprefix("Figure: "), 90)

    @cached_property
    def png(self) -> bytes:
        """The picture in at most 256 colours: a third of the size, and the eye sees no difference."""
        from PIL import Image

        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", bbox_inches="tight")  # tight: nothing is cut off
        colours = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        colours.save(small, "png", optimize=True)
        return small.getvalue()

    def _repr_mimebundle_(self, include=None, exclude=None):
        """A figure with its caption, and the sentence.

        Only HTML carries the picture: JupyterLab, nbconvert and GitHub prefer it to `image/png`, and only
        there does an alternative text reach the reader.  A screen reader finds the sentence in `alt`; the
        caption shows it to all others.
        """
        said, picture = html.escape(" ".join(self.sentence.split())), base64.b64encode(self.png).decode()
        image = f'<img alt="{said}" src="data:image/png;base64,{picture}">'
        caption = f'<figcaption aria-hidden="true" style="font-size: smaller">{said}</figcaption>'
        return {
            "text/html": f'<figure style="margin: 0">{image}{caption}</figure>',
            "text/plain": self.sentence,
        }


def picture(page: str) -> bytes | None:
    """The PNG in a figure's HTML; None where it has none."""
    source = re.search(r'src="data:image/png;base64,([A-Za-z0-9+/=]+)"', page)
    return base64.b64decode(source[1]) if source else None


def part_colour(number: int) -> str:
    """The colour of a part by its number, which is no rank."""
    return PARTS[number % len(PARTS)]


def owner_colour(rank: int) -> str:
    """The colour of what a rank owns."""
    return OWNERS[rank % len(OWNERS)]


def check_told_apart(names: Collection[str], most: int, what: str) -> None:
    """Refuse more lines, points or the like than there are looks: zip would leave the others undrawn."""
    if len(names) > most:
        listed = " ".join(", ".join(map(str, names)).split())
        raise ValueError(
            f"{most} {what} can be told apart, not {len(names)} ({listed}): draw fewer, or several figures"
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


def told(groups: Mapping[str, Mapping[str, object]], words: Callable[[object], str]) -> str:
    """{group: {name: value}} in a sentence: "group: name value, name value; group: name value"."""
    said = []
    for group, values in groups.items():
        parts = ", ".join(f"{name} {words(value)}" for name, value in values.items())
        said.append(f"{group}: {parts}")
    return "; ".join(said)
