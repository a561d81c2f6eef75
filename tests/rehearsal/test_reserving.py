"""The four ways in which requests fit, or do not."""

import pytest
from helpers.tools.rehearsal.allocator import MIB
from helpers.tools.rehearsal.reserving import (
    EXPANDABLE,
    FITS,
    NOT,
    OUTSIDE,
    RETRIES,
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
    assert found.peaks["forward"] == 120 * MIB and found.peaks["backward"] == 200 * MIB
    assert (found.how, found.refused) == (how, refused)


def test_free_segments_that_are_given_back_are_retries():
    requests = [("birth", 1, 60 * MIB, 0), ("death", 1), ("birth", 2, 80 * MIB, 0)]
    found = reserved(requests, 100 * MIB)
    assert found.how == RETRIES and found.most == 140 * MIB
    assert smallest_gpu(requests) - OUTSIDE == pytest.approx(80 * MIB, abs=32 * MIB)
    assert smallest_gpu(GAPS, expandable=True) < smallest_gpu(GAPS)
