"""A step of the job over a slower network between hosts."""

import pytest
from helpers import job


def sent(name):
    return sum(job.stored(name)["sent"].values())


@pytest.mark.parametrize("name", ["stage 1, 16 GPUs", "stage 2, 16 GPUs", "stage 1, 16 GPUs, to the owner"])
def test_messages_take_their_bytes_over_the_network_and_a_little_latency(name):
    for step, usual in zip(job.step_times(name, network=25e9), job.step_times(name)):
        messages = sum(taken.messages for taken in step.passes.values())
        assert sent(name) / 25e9 < messages < 1.05 * sent(name) / 25e9
        assert step.parts["messages"] == pytest.approx(messages)  # these stages hide nothing
        assert step.total - usual.total == pytest.approx(messages - usual.parts["messages"])


def test_what_hides_hides_no_more_than_there_is_work():
    fastest, _ = job.step_times("stage 3, 16 GPUs", network=25e9)
    usual, _ = job.step_times("stage 3, 16 GPUs")
    both = fastest.hidden + fastest.parts["messages"]
    assert both == pytest.approx(sum(taken.messages for taken in fastest.passes.values()))
    assert fastest.hidden > usual.hidden and all(one.hidden <= one.work for one in fastest.passes.values())


@pytest.mark.parametrize(("name", "network"), [("stage 1", 25e9), ("stage 1, 16 GPUs", 400e9)])
def test_one_host_has_no_network_and_a_faster_one_is_not_slower(name, network):
    with pytest.raises(ValueError, match="for a plan on several hosts"):
        job.step_times(name, network=network)
