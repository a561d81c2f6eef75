"""The picture of what ranks entered."""

import pytest
from matplotlib.colors import to_hex
from helpers.course.plots.meeting import MEETS, ODD, meeting

STEP, LOG = "all_reduce in step", "all_reduce in log"


def colours(picture):
    """Of each box its color, rank by rank; a framed place is white."""
    return [to_hex(patch.get_facecolor()).upper() for patch in picture.figure.axes[0].patches]


def test_it_says_who_waits_and_who_is_missing():
    picture = meeting([[STEP, STEP], [STEP, "returned"]], "A hang")
    assert picture.sentence == (
        "Figure: A hang. rank 0 all_reduce in step, all_reduce in step (waits); "
        "rank 1 all_reduce in step, then returned."
    )
    assert colours(picture) == [MEETS, MEETS, MEETS, "#FFFFFF"] and not picture.figure.legends


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ([STEP, LOG], [ODD, ODD]),
        ([STEP, LOG, STEP], [ODD, ODD, ODD]),
        ([STEP, STEP, STEP], [MEETS, MEETS, MEETS]),
    ],
)
def test_what_meets_something_else_stands_out(second, found):
    notes = [[STEP, name, "returned"] for name in second]
    picture = meeting(notes, "Orders")
    assert colours(picture)[1::2] == found
    legends = [text.get_text() for legend in picture.figure.legends for text in legend.get_texts()]
    assert ("ranks differ" in legends) == (ODD in found)


def test_a_job_that_sent_nothing_cannot_be_drawn():
    with pytest.raises(ValueError, match="no rank entered a collective"):
        meeting([["returned"], []], "Nothing")
