"""The picture of what ranks entered."""

import pytest
from matplotlib.colors import to_hex
from helpers.course.plots.meeting import MEETS, ODD, meeting

STEP, LOG = "all_reduce in step", "all_reduce in log"


def boxes(picture):
    """Each box and its color, rank by rank; a framed place is white."""
    return [(patch, to_hex(patch.get_facecolor()).upper()) for patch in picture.figure.axes[0].patches]


def colours(picture):
    return [colour for _, colour in boxes(picture)]


def test_it_says_who_waits_and_who_is_missing():
    picture = meeting([[STEP, STEP], [STEP, "returned"]], "A hang")
    assert picture.sentence == (
        "Figure: A hang. rank 0 all_reduce in step, all_reduce in step (waits); "
        "rank 1 all_reduce in step, then returned."
    )
    assert colours(picture) == [MEETS, ODD, MEETS, "#FFFFFF"]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ([STEP, LOG], [ODD, ODD]),
        ([STEP, LOG, STEP], [ODD, ODD, ODD]),
        ([STEP, STEP, STEP], [MEETS, MEETS, MEETS]),
        ([STEP, STEP], [MEETS, MEETS]),
    ],
)
def test_what_meets_something_else_stands_out(second, found):
    notes = [[STEP, name, "returned"] for name in second]  # the first is the same on all ranks
    picture = meeting(notes, "Orders")
    assert colours(picture)[1::2] == found
    legends = [text.get_text() for legend in picture.figure.legends for text in legend.get_texts()]
    assert ("ranks of a group differ" in legends) == (ODD in found)


def test_collectives_of_a_group_stand_under_each_other_whatever_else_their_ranks_entered():
    pair, everybody = "all_reduce in pair among ranks 2, 3", "all_reduce in all"
    first = ["all_reduce in pair among ranks 0, 1", everybody]
    picture = meeting([first, first, [pair], [everybody]], "Pairs")
    places = {(patch.get_x() // 1, patch.get_y() // 1): colour for patch, colour in boxes(picture)}
    missing = {place for place, colour in places.items() if colour == "#FFFFFF"}
    assert missing == {(0, 3), (1, 2)}  # (column, rank)
    assert places[0, 0] == places[0, 1] == MEETS and places[0, 2] == places[1, 3] == ODD


def test_two_orders_of_two_groups_are_drawn_as_each_rank_entered_them():
    one, other = "all_reduce in a among ranks 0, 1", "all_reduce in b"
    assert (
        "rank 1 all_reduce in b, all_reduce in a" in meeting([[one, other], [other, one], []], "X").sentence
    )


def test_a_job_that_sent_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="no rank entered a collective"):
        meeting([["returned"], []], "Nothing")
