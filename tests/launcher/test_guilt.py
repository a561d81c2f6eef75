"""Who is named when several ranks failed: `failures.failure`, from what ranks and forkserver have noted."""

import signal

import pytest
import torch
import torch.distributed
from helpers.launcher.failures import Outcome, failure
from helpers.launcher.rank import describe

CELL = ("/tmp/cell.py", 7, "job")


def raised(rank, at, type="ValueError", message="", frames=(CELL,), notices=None):
    error = {"type": type, "message": message, "frames": list(frames), "cause": None, "at": at, "notices": notices}
    return Outcome(rank, report={"error": error})


def lost(rank, at, message):
    return raised(rank, at, "RuntimeError", message, notices="collective")


def died(rank, at, status=-signal.SIGKILL):
    return Outcome(rank, status=status, ended_at=at)


@pytest.mark.parametrize(
    "outcomes, guilty",
    [
        ([raised(0, 2.0, "KeyError"), raised(1, 1.0)], 1),
        ([raised(0, 2.0), died(1, 1.0)], 1),
        ([raised(0, 1.0), died(1, 2.0)], 0),
        ([raised(0, 1.0, "RuntimeError", notices="collective"), died(1, 1.2)], 1),
        ([raised(0, 1.0, "RuntimeError", notices="collective"), raised(1, 1.5)], 1),
        ([raised(0, 1.0, "RuntimeError", notices="perhaps"), died(1, 1.2)], 1),
        ([raised(0, 1.0, "RuntimeError", notices="perhaps"), raised(1, 1.5)], 0),
        ([raised(0, 2.0, "RuntimeError", notices="collective"), raised(1, 1.0, "DistBackendError", notices="collective")], 1),
        ([raised(0, 1.1), raised(1, 1.0)], 0),  # the same fault in each: the same message in every run
        ([raised(0, 1.1, message="0"), raised(1, 1.0, message="1")], 0),
        ([lost(0, 1.1, "Timed out waiting 6000ms"), lost(1, 1.0, "Timed out waiting 6000ms")], 0),
        ([lost(0, 1.0, "Connection closed by peer"), lost(1, 1.1, "Timed out waiting 6000ms")], 1),  # noted late, and the cause all the same
        ([lost(0, 1.1, "Connection closed by peer"), lost(1, 1.0, "Connection reset by peer")], 0),
        ([Outcome(0), Outcome(1, report={"value": 1}, status=0, ended_at=0.5), raised(2, 1.0)], 2),
    ],
)
def test_the_first_by_the_clock_is_named_unless_it_only_noticed(outcomes, guilty):
    assert failure(outcomes).rank == guilty


def notices(function):
    with pytest.raises(Exception) as caught:
        function()
    return describe(caught.value)["notices"]


def runtime_error_out_of_c():
    torch.ones(2) @ torch.ones(3)


def in_a_collective():
    exec(compile("torch.ones(2) @ torch.ones(3)", "/site-packages/torch/distributed/a_collective.py", "exec"), {"torch": torch})


def own_words():
    raise RuntimeError("Connection closed by peer")


def own_words_after_a_collective():
    try:
        in_a_collective()
    except RuntimeError:
        raise KeyError from None


@pytest.mark.parametrize(
    "function, expected",
    [
        (own_words, None),
        (lambda: torch.distributed.barrier(), None),  # a ValueError: there is no process group
        (lambda: open("/nowhere"), None),
        (in_a_collective, "collective"),
        (runtime_error_out_of_c, "perhaps"),  # so does the `wait()` of a handle, in the learner's own line
        (own_words_after_a_collective, "perhaps"),
    ],
)
def test_what_an_error_may_notice(function, expected):
    assert notices(function) == expected
