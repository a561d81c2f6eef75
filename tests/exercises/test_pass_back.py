"""A stage's backward pass: what torch says of a wrong call is answered in words."""

import pytest
import torch
from helpers.exercises import lesson_06
from tests.exercises.course import solutions

SOLUTION = solutions()["06-pass_back"]


def without_what_arrived(x, y, gradient):
    y.backward()
    return x.grad


def for_the_input_alone(x, y, gradient):
    (given,) = torch.autograd.grad(y, x, gradient)
    return given


@pytest.mark.ranks
@pytest.mark.parametrize(
    "answer, words",
    [
        (without_what_arrived, "`backward` needs the gradient of `y`, which has arrived"),
        (for_the_input_alone, "the first stage's `x` are token ids, which have no gradient"),
    ],
)
def test_a_call_that_torch_refuses_is_answered_in_words(answer, words):
    verdict = lesson_06.pass_back.verdict(answer, SOLUTION)
    assert verdict.startswith("not yet: rank 0 of 2: ") and words in verdict
