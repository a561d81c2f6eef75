"""What figures are drawn of: words on a box are readable, names stand beside their rows."""

from helpers.course.plots.drawing import box, ink, name_rows, new_figure
from helpers.course.plots.style import LINES, PARTS


def test_words_are_white_on_dark_colours_and_black_on_light_ones():
    assert [ink(colour) for colour in PARTS] == ["white", "black", "black", "white", "white"]
    assert [ink(colour) for colour in LINES] == ["white"] + ["black"] * 5
    _, axes = new_figure()
    box(axes, 0, 0, 4, 2, PARTS[0], "words")
    (text,) = axes.texts
    assert text.get_color() == "white" and text.get_position() == (2, 1)


def test_names_stand_beside_the_middle_of_their_rows():
    _, axes = new_figure()
    name_rows(axes, ("upper", "lower"))
    assert list(axes.get_yticks()) == [0.5, 1.5]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["upper", "lower"]
