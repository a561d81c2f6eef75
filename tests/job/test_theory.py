"""The closed formulas at the size of the job: all 32 layers (80 of the sister), every stage."""

import pytest
from helpers import theory
from helpers.course.exercises.planner import rehearsed_trainings

PLANS = [pytest.param(one, id=one.words) for one in rehearsed_trainings()]


@pytest.mark.parametrize("training", PLANS)
def test_the_highest_moment_is_that_of_the_rehearsal(training):
    foretold = max(theory.moments(training.plan).values())
    assert foretold == pytest.approx(training.right["peak"], rel=1e-6)
