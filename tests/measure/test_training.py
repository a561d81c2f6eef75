"""The small training that is counted: how its answers are compared."""

import pytest
import torch
from helpers.measure import training

RIGHT = {"losses": [2.0, 1.0], "weights": torch.tensor([1.0, 2.0])}


def report(losses, *weights):
    return {"losses": losses, "weights": torch.tensor(weights)}


def test_the_mean_of_the_ranks_losses_is_what_counts():
    row = training.same_answer([report([1.0, 0.5], 1.0, 2.0), report([3.0, 1.5], 1.0, 2.0)], RIGHT)
    assert list(row.values()) == ["2 1", "yes", "yes"]


@pytest.mark.parametrize(
    ("losses", "weights", "said"),
    [([2.0, 1.1], (1.0, 2.0), ["2 1.05", "yes", "no"]), ([2.0, 1.0], (1.0, 2.1), ["2 1", "no", "no"])],
)
def test_one_rank_that_is_off_is_noticed(losses, weights, said):
    assert list(training.same_answer([report([2.0, 1.0], 1.0, 2.0), report(losses, *weights)], RIGHT).values()) == said


def test_one_process_learns():
    losses = training.in_one_process(torch.optim.AdamW)["losses"]
    assert len(losses) == training.STEPS and losses[-1] < losses[0]


def test_flattened_parameters_are_views_of_one_padded_tensor():
    layer = torch.nn.Linear(3, 2)
    before = training.weights_of(layer)
    flat = training.flatten(list(layer.parameters()), 3)
    assert len(flat) == 9 and torch.equal(flat[:8], before)
    flat[7] = 5.0
    assert layer.bias[1] == 5.0
