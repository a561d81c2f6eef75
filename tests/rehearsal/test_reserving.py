"""The four ways in which requests fit, or do not."""

import pytest
from helpers.tools.forecast.verdict import Verdict
from helpers.tools.rehearsal.allocator import MIB
from helpers.tools.rehearsal.reserving import (
    EXPANDABLE,
    FITS,
    NOT,
    OUTSIDE,
    RETRIES,
    Reserved,
    reserved,
    smallest_gpu,
)

# Where two tensors of 60 MiB died, two smaller ones stay: no gap is left for 80 MiB.
GAPS = [
    ("phase", "forward"),
    ("birth", "a", 60 * MIB, 0),
    ("birth", "b", 60 * MIB, 0),
    ("death", "a"),
    ("death", "b"),
    ("birth", "c", 20 * MIB, 0),
    ("birth", "d", 45 * MIB, 0),
    ("phase", "backward"),
    ("birth", "e", 80 * MIB, 0),
]


@pytest.mark.parametrize(
    "limit, how, refused",
    [
        (None, FITS, None),
        (200 * MIB, FITS, None),
        (199 * MIB, EXPANDABLE, None),
        (160 * MIB, EXPANDABLE, None),
        (144 * MIB, NOT, ("backward", 80 * MIB)),
    ],
)
def test_requests_with_gaps_between_their_blocks(limit, how, refused):
    found = reserved(GAPS, limit)
    assert (found.allocated, found.least, found.most) == (145 * MIB, 200 * MIB, 200 * MIB)
    assert found.peaks["forward"] == 120 * MIB and found.peaks["backward"] == 145 * MIB
    assert (found.how, found.refused) == (how, refused)


def test_free_segments_that_are_given_back_are_retries():
    requests = [("birth", 1, 60 * MIB, 0), ("death", 1), ("birth", 2, 80 * MIB, 0)]
    found = reserved(requests, 100 * MIB)
    assert found.how == RETRIES and found.most == 140 * MIB
    assert smallest_gpu(requests) - OUTSIDE == pytest.approx(80 * MIB, abs=32 * MIB)
    assert smallest_gpu(GAPS, expandable=True) < smallest_gpu(GAPS)


@pytest.mark.parametrize(
    "least, to_spare, warned",
    [(80.0, 1.0, False), (79.9, 1.0, True), (79.9, 6.3, True), (79.9, 6.5, False)],
)
def test_a_narrow_fit_is_warned_of_where_runs_differ(least, to_spare, warned):
    reserved = Reserved(70 * 10**9, int(least * 1e9), 80 * 10**9, {"step": 70 * 10**9}, FITS)
    found = Verdict(0, reserved, OUTSIDE, 80 * 10**9 + OUTSIDE + int(to_spare * 1e9))
    assert found.fits and found.narrow == warned == ("GPUs have reserved up to 8% more" in str(found))
