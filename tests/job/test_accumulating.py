"""Gradients over the job's step: pictures and rows agree with rehearsals and recordings."""

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


def test_costs_are_what_was_recorded_over_what_was_foretold():
    rows = job.costs_of_stage_2(lambda k, ranks, psi, bandwidth: 2 * (k - 1) * psi / bandwidth)
    assert [row["recorded"] for row in rows] == ["0.15 s", "0.32 s", "6.60 s"]
    assert rows[2]["predicted"] == "6.28 s"
