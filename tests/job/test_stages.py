"""The job's pipeline in seconds."""

import pytest
from helpers import job
from helpers.course.job.stages import of_a_step


def waiting_for_the_slowest(stages, micro_batches):
    return micro_batches * max(stages) + sum(stages) - max(stages)


def test_a_second_forward_pass_is_most_of_a_first_one():
    """Checkpointing stops it where nothing needs its result, and the head has none."""
    forward = job.step_times("stage 0")[0].passes["forward"].work
    assert 0.5 * forward < job.second_forward("stage 0") < forward


def test_a_step_of_a_line_is_its_passes_and_the_optimizers_step():
    even = job.stage_seconds(job.layer_costs(), [0, *range(5, 33, 4)])
    fastest, slowest = of_a_step("8 stages")
    passes = waiting_for_the_slowest(even, job.SEQUENCES)
    assert 0 < fastest - passes < 0.1 and slowest == pytest.approx(fastest / 0.83)


def test_bars_of_work_and_waiting_are_a_step():
    bars = job.over_blocks(waiting_for_the_slowest, (30, 31, 32))
    assert list(bars) == ["30", "31", "32\nthe job"]
    even, one_more, _ = (sum(parts.values()) for parts in bars.values())
    assert one_more - even == pytest.approx(1.47, abs=0.01)
    assert min(parts["waiting"] for parts in bars.values()) > 0
