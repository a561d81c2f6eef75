"""Faults tried in tests, in real ranks: what is caught, and what a test may not do."""

import itertools

import pytest
import torch
from helpers import RankError, caught
from helpers.course.runs.catching import distance

pytestmark = pytest.mark.ranks
COUNTER = itertools.count()


def doubled(value):
    """The rank's number + 1, twice."""
    import os

    return 2.0 * value * (int(os.environ["RANK"]) + 1)


def tripled(value):
    return 1.5 * doubled(value)


def wrong_on_the_last_rank(value):
    import os

    return doubled(value) + (os.environ["RANK"] == "1")


def fails(value):
    raise ValueError("no value")


def fails_on_one(value):
    import os

    if os.environ["RANK"] == "1":
        raise ValueError("no value")
    return doubled(value)


def summed(value):
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    total = torch.tensor([value])
    comm.all_reduce(total)
    return total


def mean_of_bf16(value):
    """Of the ranks' numbers 0 to 1: in bf16, and so differently rounded on another number of ranks."""
    import deepspeed
    import deepspeed.comm as comm

    deepspeed.init_distributed()
    numbers = torch.linspace(0, 1, 100).chunk(comm.get_world_size())[comm.get_rank()]
    total = value * numbers.bfloat16().cumsum(0)[-1:].float()
    comm.all_reduce(total)
    return total / 100


def slightly_more(value):
    return 1.001 * mean_of_bf16(value)


def much_more(value):
    return 1.5 * mean_of_bf16(value)


def sums_on_one(value):
    import os

    return summed(value) if os.environ["RANK"] == "0" else torch.tensor([value])


def grows(function):
    return function(1.0) + next(COUNTER)


TESTS = {"value": lambda function: function(1.0), "sign": lambda function: function(1.0) > 0}


def test_what_one_rank_notices_is_caught_and_errors_too():
    faults = {"tripled": tripled, "one rank": wrong_on_the_last_rank, "fails": fails, "none": doubled}
    faults["fails on one"] = fails_on_one
    picture = caught(doubled, faults, TESTS, "Title")
    assert picture.tests == {
        "tripled": ["value"],
        "one rank": ["value"],
        "fails": ["value", "sign"],
        "none": [],
        "fails on one": ["value", "sign"],
    }
    assert picture.distances["tripled"] == {"value": 0.5, "sign": 0.0}
    assert picture.distances["one rank"]["value"] == 0.25
    assert picture.distances["fails"]["value"] == "ValueError: no value"


def test_a_tolerance_may_be_a_tests_own():
    tolerance = {"value": 0.6, "sign": 0.1}
    assert caught(doubled, {"tripled": tripled}, TESTS, "Title", tolerance=tolerance).tests == {"tripled": []}


def test_a_fault_stands_clear_of_what_rounds_otherwise_in_one_process():
    faults = {"slightly more": slightly_more, "much more": much_more}
    picture = caught(mean_of_bf16, faults, {"mean": lambda function: function(1.0)}, "Title", against=1)
    assert picture.tests == {"slightly more": [], "much more": ["mean"]}
    assert picture.distances["slightly more"]["mean"] > 1e-5


def test_a_test_that_condemns_what_is_right_is_refused():
    with pytest.raises(ValueError, match="'grows' condemns the right function too"):
        caught(doubled, {"tripled": tripled}, {"grows": grows}, "Title")


def test_a_fault_that_leaves_a_rank_waiting_is_named():
    with pytest.raises(RankError, match="'half' in 'value': a rank still waits for a message"):
        caught(summed, {"half": sums_on_one}, TESTS, "Title")


def test_nothing_to_try_is_refused():
    with pytest.raises(ValueError, match="at least one fault and one test"):
        caught(doubled, {}, TESTS)


@pytest.mark.parametrize(
    "one, due, far",
    [
        (torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]), 0.2),
        ([1, torch.tensor([1.0])], [1, torch.tensor([1.0])], 0),
        ({"a": 2.0}, {"a": 0.0}, 2),
        (torch.ones(2), torch.ones(3), float("inf")),
    ],
)
def test_distances_are_in_lengths_of_the_right_answer(one, due, far):
    assert distance(one, due) == pytest.approx(far)
