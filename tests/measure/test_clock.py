"""The clock: work and all-reduces in real ranks, and what it says of messages that nobody waits for."""

import pytest
from helpers import launch
from helpers.measure.clock import Clock

pytestmark = pytest.mark.ranks


def messages(wait):
    import deepspeed
    import deepspeed.comm as comm
    import torch

    deepspeed.init_distributed()
    with Clock() as clock:
        with clock.work("backward"):
            request = comm.all_reduce(torch.ones(1000), async_op=True)
        if wait:
            request.wait()
        comm.all_reduce(torch.ones(1000))
    return clock, comm.all_reduce.__qualname__


def test_messages_are_noted_from_their_call_to_their_end():
    for clock, name in launch(messages, ranks=2, arguments={"wait": True}, device="cpu"):
        assert "Clock" not in name  # DeepSpeed's own again
        assert clock.begun_during("backward") == (1, 2)
        assert sorted((kind, label) for kind, label, *_ in clock.boxes) == [("all-reduce", "1"), ("all-reduce", "2"), ("backward", "")]
        assert all(0 <= start <= end <= 1e3 * clock.seconds + 1e-6 for *_, start, end in clock.milliseconds())


def test_a_message_that_ends_later_is_waited_for():
    for clock, _ in launch(messages, ranks=2, arguments={"wait": False}, device="cpu"):
        assert sum(kind == "all-reduce" for kind, *_ in clock.boxes) == 2


def test_work_that_fails_is_noted_too():
    clock = Clock()
    with pytest.raises(ZeroDivisionError), clock.work("backward"):
        raise ZeroDivisionError
    assert [kind for kind, *_ in clock.boxes] == ["backward"]
