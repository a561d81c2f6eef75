"""Tapes: a box for each run of equal elements, in its owner's color."""

import pytest
import torch
from matplotlib.colors import to_hex
from helpers import tapes
from helpers.course.plots.drawing import EMPTY
from helpers.course.plots.schematics_collectives import source_colour
from helpers.course.plots.style import LOOK, OWNERS

BEFORE = [[1] * 7 + [""], [2] * 7 + [""]]
AFTER = [[1.5] * 4 + [None] * 4, [None] * 4 + [1.5] * 3 + [""]]


def boxes(axes):
    """[(row, first element, elements, color)] of what is held."""
    found = [
        (int(box.get_y()), box.get_x(), box.get_width(), to_hex(box.get_facecolor()).upper())
        for box in axes.patches
    ]
    return [box for box in found if box[3] != EMPTY.upper()]


def test_what_each_row_holds_is_drawn_and_said():
    plot = tapes({"before": BEFORE, "after": AFTER}, "Title")
    above, below = plot.figure.axes
    first, second, white = OWNERS[0], OWNERS[1], "#FFFFFF"
    assert boxes(above)[:3] == [(0, 0, 4, first), (0, 4, 3, second), (0, 7, 1, white)]
    assert boxes(below) == [(0, 0, 4, first), (1, 4, 3, second), (1, 7, 1, white)]
    after = "rank 0 4 × 1.5 from 0; rank 1 3 × 1.5 from 4, 1 × padding from 7"
    assert plot.sentence.endswith(f"rank 1 7 × 2 from 0, 1 × padding from 7. after: {after}.")


def test_what_all_rows_hold_is_said_once():
    assert tapes({"": torch.ones(3, 6)}, "Title").sentence == "Figure: Title. every row 6 × 1 from 0."


def test_elements_that_all_differ_are_said_one_by_one():
    panels = {"before": [[1, 20], [10, 200]], "after": [[11, None], [None, 220]]}
    after = "after: rank 0 (11, –); rank 1 (–, 220)."
    said = f"Figure: Title. before: rank 0 (1, 20); rank 1 (10, 200). {after}"
    assert tapes(panels, "Title").sentence == said


def test_owners_may_be_given_by_number_or_one_by_one():
    rows = {"saved by one": {"rank 0": ["a"] * 8}}
    assert [box[2:] for box in boxes(tapes(rows, "Title", owners=4).figure.axes[0])] == [
        (2, OWNERS[rank]) for rank in range(4)
    ]
    in_turn = boxes(tapes(rows, "Title", owners=[0, 1] * 4).figure.axes[0])
    assert [box[2:] for box in in_turn] == [(1, OWNERS[0]), (1, OWNERS[1])] * 4


def test_a_category_keeps_its_color():
    held = tapes({"": {"flat": ["gradients"] * 4 + ["parameters"] * 4}}, "Title").figure.axes[0]
    assert [box[3] for box in boxes(held)] == [LOOK["gradients"][0], LOOK["parameters"][0]]


@pytest.mark.parametrize(
    "panels, said",
    [
        ({}, "at least one row"),
        ({"": [[]]}, "at least one row"),
        ({"": [[1, 2], [1]]}, "the same number of elements"),
        ({"": [range(65)]}, "at most 64 runs of equal elements, not 65"),
    ],
)
def test_what_cannot_be_drawn_is_refused(panels, said):
    with pytest.raises(ValueError, match=said):
        tapes(panels, "Title")


def test_as_many_owners_as_elements():
    with pytest.raises(ValueError, match="an owner for each of 2 elements, not 3"):
        tapes({"": [[1, 2]]}, "Title", owners=[0, 1, 1])


def test_elements_may_have_colors_of_their_own_and_columns_another_name():
    axes = tapes({"": [[1, 10], [10, 1]]}, "Title", part="part", colour=source_colour).figure.axes[0]
    assert [box[3] for box in boxes(axes)] == [OWNERS[0], OWNERS[1], OWNERS[1], OWNERS[0]]
    assert {"part 0", "part 1"} <= {text.get_text() for text in axes.texts}


def test_what_the_panel_above_does_not_show_is_framed():
    moments = {"before": [[1, 2], [10, None]], "after": [[1, 22], [10, 22]]}
    for marked, frames in ((True, 2), (False, 0)):
        axes = tapes(moments, "Title", mark_new=marked).figure.axes[1]
        assert sum(patch.get_linewidth() == 2.5 for patch in axes.patches) == frames
