"""Words can be read: 4.5 to 1 against what lies behind them, as WCAG 2 asks of text.  Figures are white on
every page; verdicts bring their own ground, so that they can be read on a dark page too."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from helpers.course.exercises import telling
from helpers.course.plots.drawing import READABLE, contrast, darkened, ink
from helpers.course.plots.planning import GROUNDS
from helpers.course.plots.schematics_pipeline import ACTIONS
from helpers.course.plots.style import LAYERS, LINES, LOOK, PARTS
from helpers.course.plots.timeline import KINDS
from tests.plots.test_plots import FIGURES

TABLES = (LOOK, LAYERS, KINDS, ACTIONS)
COLOURS = sorted(
    {colour for table in TABLES for colour, _ in table.values()}
    | {*LINES, *PARTS}
    | {row[0] for row in GROUNDS}
)


def test_the_ratio_is_wcags():
    assert contrast("black", "white") == pytest.approx(21) and contrast("red", "red") == 1
    assert contrast("#777777", "white") == pytest.approx(4.48, abs=0.005)  # the grey that just fails


@pytest.mark.parametrize("colour", COLOURS)
def test_a_label_on_a_colour_and_a_name_in_a_colour_can_be_read(colour):
    assert contrast(ink(colour), colour) >= READABLE
    assert contrast(darkened(colour), "white") >= READABLE


def test_a_colour_that_can_be_read_is_left_as_it_is():
    assert darkened("#332288") == "#332288" and darkened("#56B4E9") != "#56B4E9"


@pytest.mark.parametrize("verdict", telling.MARKS)
def test_the_words_of_a_verdict_can_be_read_on_every_page(verdict):
    look = telling.HEAD.format(colour=telling.look_of(verdict)[1])
    ground, words = (
        re.search(r"background: (#\w{6})", look)[1],
        re.search(r"(?<![-\w])color: (#?\w+)", look)[1],
    )
    assert contrast(words, ground) >= READABLE


def illegible(figure):
    """Words that differ too little from what lies behind most of them, with the colours and the ratio."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_layout_engine("none")  # nothing moves when words are hidden
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    places = [text.get_window_extent() for text in texts]
    for text in texts:
        text.set_visible(False)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    for text, place in zip(texts, places):
        text.set_visible(True)
        left, low = (max(int(edge), 0) for edge in place.min)
        right, high = (int(edge) + 1 for edge in place.max)
        seen, counts = np.unique(pixels[low:high, left:right].reshape(-1, 3), axis=0, return_counts=True)
        if not len(seen):
            continue  # outside of the canvas, which grows when the picture is stored
        ground, own = seen[counts.argmax()] / 255, text.get_bbox_patch()
        *face, alpha = own.get_facecolor() if own else (0, 0, 0, 0)
        ground = to_hex(alpha * np.array(face) + (1 - alpha) * ground)
        if (ratio := contrast(text.get_color(), ground)) < READABLE:
            yield text.get_text(), to_hex(text.get_color()), ground, round(ratio, 2)


@pytest.mark.parametrize("name", FIGURES)
def test_all_words_of_a_figure_can_be_read(name):
    assert not list(illegible(FIGURES[name][0].figure))
