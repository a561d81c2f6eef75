"""What figures are drawn of: words on a box are readable, names stand beside their rows."""

import pytest
from helpers.course.plots.distances import DOUBTFUL
from helpers.course.plots.drawing import EMPTY, box, contrast, ink, name_rows, new_figure
from helpers.course.plots.style import LINES, LOOK, OWNERS, PARTS, RIGHT, WRONG
from helpers.course.plots.timeline import KINDS


def test_words_are_white_on_dark_colours_and_black_on_light_ones():
    assert [ink(colour) for colour in PARTS] == ["white", "black", "black", "white", "white"]
    assert [ink(colour) for colour in LINES] == ["white"] + ["black"] * 5
    _, axes = new_figure()
    box(axes, 0, 0, 4, 2, PARTS[0], "words")
    (text,) = axes.texts
    assert text.get_color() == "white" and text.get_position() == (2, 1)


def test_words_can_be_read_on_every_colour_and_marks_on_white():
    looks = [look[0] for look in (*LOOK.values(), *KINDS.values())]
    for colour in {*looks, *PARTS, *OWNERS, *LINES, EMPTY, DOUBTFUL}:
        assert contrast(ink(colour), colour) >= 4.5, colour
    assert all(contrast(mark, "white") >= 4.5 for mark in (RIGHT, WRONG))


def test_contrast_is_that_of_the_guidelines():
    assert contrast("white", "black") == 21 and contrast("#777777", "white") == pytest.approx(4.48, abs=0.005)


def test_no_owner_looks_like_a_category_or_another_owner():
    looks = {look[0] for look in (*LOOK.values(), *KINDS.values())} | {*PARTS, *LINES}
    assert not looks & set(OWNERS) and len(set(OWNERS)) == len(OWNERS)


def test_names_stand_beside_the_middle_of_their_rows():
    _, axes = new_figure()
    name_rows(axes, ("upper", "lower"))
    assert list(axes.get_yticks()) == [0.5, 1.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["upper", "lower"]
