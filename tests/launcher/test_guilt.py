"""Who is named when several ranks failed: `failures.failure`, from what ranks and forkserver have noted."""

import importlib.util
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed
from helpers.tools.launcher.describing import COMMUNICATING, describe
from helpers.tools.launcher.failures import Outcome, failure

CELL = ("/tmp/cell.py", 7, "job")


def raised(rank, at, type="ValueError", message="", frames=(CELL,), notices=None):
    error = {
        "type": type,
        "message": message,
        "frames": list(frames),
        "cause": None,
        "at": at,
        "notices": notices,
    }
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
        (
            [
                raised(0, 2.0, "RuntimeError", notices="collective"),
                raised(1, 1.0, "DistBackendError", notices="collective"),
            ],
            1,
        ),
        ([raised(0, 1.1), raised(1, 1.0)], 0),  # the same fault in each: the same message in every run
        ([raised(0, 1.1, message="0"), raised(1, 1.0, message="1")], 0),
        ([lost(0, 1.1, "Timed out waiting 6000ms"), lost(1, 1.0, "Timed out waiting 6000ms")], 0),
        (
            [lost(0, 1.0, "Connection closed by peer"), lost(1, 1.1, "Timed out waiting 6000ms")],
            1,
        ),  # noted late, and the cause all the same
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


def within(file, line="torch.ones(2) @ torch.ones(3)"):
    """A function whose error comes out of a file of torch or DeepSpeed, by default through C."""
    return lambda: exec(compile(line, f"/site-packages/{file}", "exec"), {"torch": torch})


in_a_collective = within("torch/distributed/distributed_c10d.py")
ELSEWHERE = [
    f"torch/distributed/{part}/a_file.py"
    for part in ("fsdp/_fully_shard", "tensor", "checkpoint", "pipelining", "elastic")
]


def a_mesh_with_one_name_twice():
    from torch.distributed.device_mesh import init_device_mesh

    init_device_mesh("cpu", (2,), mesh_dim_names=("data", "data"))


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
        (
            a_mesh_with_one_name_twice,
            None,
        ),  # a RuntimeError out of torch/distributed/, which no other rank had a part in
        *((within(file), "perhaps") for file in ELSEWHERE),  # through C: it may be the `wait()` of a handle
        *((within(file, "raise RuntimeError('used wrongly')"), None) for file in ELSEWHERE),
    ],
)
def test_what_an_error_may_notice(function, expected):
    assert notices(function) == expected


@pytest.mark.parametrize("part", COMMUNICATING)
def test_an_error_out_of_what_communicates_may_notice_another_rank(part):
    library, _, rest = part.partition("/")
    found = list(Path(importlib.util.find_spec(library).origin).parent.glob(f"{rest}*"))
    assert found, f"{library} has no {rest} any more"
    assert notices(within(f"{library}/{rest}{'any.py' if rest.endswith('/') else ''}")) == "collective"
