"""Gradients over the job's step: pictures and rows agree with rehearsals and recordings."""

import re

import pytest
from helpers import job


def test_room_is_what_stage_2_leaves():
    content = job.stored("stage 2, fp32 sums")
    needed = job.peak("stage 2, fp32 sums") + content["outside"]
    assert job.room() - content["states"]["gradients"] == pytest.approx(job.MEMORY - needed, rel=1e-9)


def test_two_bytes_for_each_parameter_pile_up_and_stay():
    said = job.gradients_in_a_step().sentence
    assert "stage 1, fp32 sums at most 48.2" in said and "stage 1 at most 16.1" in said
    assert said.endswith("Times of sending: stage 1, fp32 sums 1; stage 1 1; stage 2, fp32 sums 8.")


def test_a_step_on_two_hosts_is_near_the_rehearsal():
    """The drawing has no copies of gradients, and its messages are those of whole layers."""
    said = job.overlapping(16, 25e9).sentence
    drawn = [float(seconds) for seconds in re.findall(r"([\d.]+) s\b", said.partition("between hosts: ")[2])]
    plans = ("stage 1, 16 GPUs, to the owner", "stage 2, 16 GPUs, to the owner")
    plans += ("stage 2, 16 GPUs, to the owner, overlap",)
    for seconds, plan in zip(drawn[:3], plans, strict=True):
        assert job.step_times(plan, 25e9)[0].total == pytest.approx(seconds, rel=0.05)


def test_costs_are_what_was_recorded_over_what_was_foretold():
    rows = job.costs_of_stage_2(lambda k, ranks, psi, bandwidth: 2 * (k - 1) * psi / bandwidth)
    assert [row["recorded"] for row in rows] == ["0.15 s", "0.32 s", "6.60 s"]
    assert rows[2]["predicted"] == "6.28 s"
