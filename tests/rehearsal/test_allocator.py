"""The simulated allocator beside a real one: each block of a recorded training, its rules one by one, and
expandable segments."""

import gzip
import json
from pathlib import Path

import pytest
from helpers.tools.rehearsal.allocator import MIB, Allocator, Refused
from helpers.tools.rehearsal.expandable import Expandable
from helpers.tools.rehearsal.playing import play, smallest

# [action, bytes, address, stream] as torch 2.11 recorded them on an H100: five steps of a Mixtral of 1.2
# billion parameters, ZeRO-2, rank 0 of 2.
TRACE = Path(__file__).parent / "traces" / "mixtral-stage-2-rank-0.json.gz"


@pytest.fixture(scope="module")
def trace():
    with gzip.open(TRACE, "rt") as file:
        return json.load(file)


def served(allocator, trace):
    """How many blocks of a trace the allocator places elsewhere than the real one did."""
    blocks, elsewhere = {}, 0
    for action, size, address, stream in trace:
        if action == "alloc":
            blocks[address] = allocator.allocate(size, stream)
            elsewhere += blocks[address].start != address
        elif action == "free_completed":
            allocator.free(blocks.pop(address))
    return elsewhere


class WhereTheyWere(Allocator):
    """One whose segments lie where a trace's did."""

    def __init__(self, trace):
        super().__init__()
        self.segments = iter([row for row in trace if row[0] == "segment_alloc"])

    def address(self, size):
        _, real, address, _ = next(self.segments)
        assert size == real
        return address


def test_every_block_lies_where_the_real_allocator_put_it(trace):
    allocator = WhereTheyWere(trace)
    assert served(allocator, trace) == 0
    assert sum(action == "alloc" for action, *_ in trace) == 17_152
    real = sum(size for action, size, *_ in trace if action == "segment_alloc")
    assert allocator.peak["reserved"] == allocator.reserved == real == 19_117_637_632


def test_the_order_of_addresses_decides_over_gigabytes(trace):
    """Downwards, as Linux gives them out, the same is reserved as on the GPU; upwards a segment less."""
    down, up = Allocator(), Allocator(upwards=True)
    served(down, trace), served(up, trace)
    assert (down.reserved, up.reserved) == (19_117_637_632, 16_796_090_368)


@pytest.mark.parametrize(
    "asked, allocated, reserved",
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB, 12 * MIB),  # the rest of less than 1 MiB is not split off
    ],
)
def test_a_request_is_rounded_and_served_from_a_segment(asked, allocated, reserved):
    allocator = Allocator()
    block = allocator.allocate(asked)
    assert (block.size, allocator.allocated, allocator.reserved) == (allocated, allocated, reserved)
    allocator.free(block)
    assert (allocator.requested, allocator.allocated, allocator.reserved) == (0, 0, reserved)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert allocator.peak == {"requested": asked, "allocated": allocated, "reserved": reserved}


def test_the_smallest_block_that_fits_is_taken_and_neighbours_merge():
    allocator = Allocator(upwards=True)
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large), allocator.free(small)
    first = allocator.allocate(12 * MIB)
    assert first.start == small.start
    second = allocator.allocate(12 * MIB)
    assert second.start == small.start + 12 * MIB
    allocator.free(first), allocator.free(second)
    assert allocator.allocate(30 * MIB).start == small.start and allocator.reserved == 70 * MIB


def test_a_stream_has_blocks_of_its_own_and_another_ones_use_delays_a_free():
    allocator = Allocator(behind=2)
    block = allocator.allocate(20 * MIB)
    allocator.allocate(20 * MIB, stream=1)
    assert allocator.reserved == 40 * MIB
    block.streams.add(1)
    allocator.free(block)
    assert allocator.allocated == 20 * MIB and allocator.requested == 40 * MIB
    allocator.allocate(1)
    assert allocator.allocate(20 * MIB).start != block.start and allocator.requested == 60 * MIB + 1
    assert allocator.allocate(20 * MIB).start == block.start and allocator.requested == 60 * MIB + 1
    patient = Allocator(behind=None)
    block = patient.allocate(20 * MIB)
    block.streams.add(1)
    patient.free(block)
    for _ in range(99):
        patient.allocate(1)
    assert patient.requested == 20 * MIB + 99
    patient.synchronize()
    assert patient.requested == 99


@pytest.mark.parametrize("make", [Allocator, Expandable])
def test_free_segments_are_given_back_before_a_request_is_refused(make):
    allocator = make(limit=100 * MIB)
    held = allocator.allocate(40 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.allocate(60 * MIB)
    assert allocator.reserved == 100 * MIB
    words = "of 100.00 MiB, 100.00 are allocated and 0.00 reserved and free"
    with pytest.raises(Refused, match=words) as refused:
        allocator.allocate(11 * MIB)
    assert refused.value.asked == 12 * MIB
    allocator.free(held)
    allocator.allocate(11 * MIB)


def test_an_expandable_segment_has_no_gaps_between_blocks_of_unequal_sizes():
    """Ever longer sequences: each needs a new segment, or the same one grows."""
    sizes, reserved = [20 * MIB * length for length in range(1, 6)], {}
    for make in (Allocator, Expandable):
        allocator = make()
        for size in sizes:
            allocator.free(allocator.allocate(size))
        reserved[make] = allocator.reserved
    assert reserved == {Allocator: sum(sizes), Expandable: max(sizes)}


def test_pages_of_an_expandable_segment_go_back_one_by_one():
    allocator = Expandable()
    first, second, third = (allocator.allocate(30 * MIB) for _ in range(3))
    assert allocator.reserved == 100 * MIB
    allocator.free(second)
    allocator.empty_cache()  # of 30 to 60 MiB the page from 40 to 60
    assert allocator.reserved == 80 * MIB
    allocator.free(first), allocator.free(third)
    allocator.empty_cache()
    assert allocator.reserved == 0


REQUESTS = [
    ("phase", "forward"),
    ("birth", 1, 40 * MIB, 0),
    ("birth", 2, 40 * MIB, 0),
    ("death", 1),
    ("phase", "backward"),
    ("birth", 3, 60 * MIB, 0),
    ("death", 2),
    ("phase", "step"),
    ("birth", 4, 70 * MIB, 0),
]


def test_requests_are_played_phase_by_phase_and_say_where_memory_ends():
    played = play(REQUESTS, Allocator())
    assert {phase: peak["reserved"] // MIB for phase, peak in played.peaks.items() if peak["reserved"]} == {
        "forward": 80,
        "backward": 140,
        "step": 210,
    }
    assert played.most("requested") == 130 * MIB and played.retries == 0 and played.refused is None
    with_retries = play(REQUESTS, Allocator(130 * MIB))
    assert with_retries.refused is None and with_retries.retries == 2
    refused = play(REQUESTS, Allocator(129 * MIB))
    assert refused.refused[0] == "step" and refused.refused[1].asked == 70 * MIB
    assert smallest(REQUESTS, Allocator, within=1) == 130 * MIB
