"""The small training that is counted: how its answers are compared."""

import pytest
import torch
from helpers import launch, models
from helpers.course import training
from helpers.course.runs.gathered import GatheredWeights
from helpers.course.runs.zero_2 import flattened
from tests.support import adamw, configuration

RIGHT = {"losses": [2.0, 1.0], "weights": torch.tensor([1.0, 2.0]), "gradients": torch.tensor([0.1, -0.2])}


def report(losses, *weights, gradients=(0.1, -0.2)):
    return {"losses": losses, "weights": torch.tensor(weights), "gradients": torch.tensor(gradients)}


def test_gradients_that_are_twice_too_large_are_noticed():
    twice = report([2.0, 1.0], 1.0, 2.0, gradients=(0.2, -0.4))
    assert list(training.same_answer([twice], RIGHT).values()) == ["2 1", "yes", "no"]


def test_the_mean_of_the_ranks_losses_is_what_counts():
    row = training.same_answer([report([1.0, 0.5], 1.0, 2.0), report([3.0, 1.5], 1.0, 2.0)], RIGHT)
    assert list(row.values()) == ["2 1", "yes", "yes"]


@pytest.mark.parametrize(
    ("losses", "weights", "said"),
    [([2.0, 1.1], (1.0, 2.0), ["2 1.05", "yes", "no"]), ([2.0, 1.0], (1.0, 2.1), ["2 1", "no", "no"])],
)
def test_one_rank_that_is_off_is_noticed(losses, weights, said):
    assert (
        list(training.same_answer([report([2.0, 1.0], 1.0, 2.0), report(losses, *weights)], RIGHT).values())
        == said
    )


def test_one_process_learns():
    losses = training.in_one_process(torch.optim.AdamW)["losses"]
    assert len(losses) == training.STEPS and losses[-1] < losses[0]


def test_flattened_parameters_are_views_of_one_padded_tensor():
    layer = torch.nn.Linear(3, 2)
    before = training.weights_of(layer)
    flat, places = flattened(layer, 3)
    assert len(flat) == 9 and torch.equal(flat[:8], before)
    flat[places[layer.bias] + 1] = 5.0
    assert layer.bias[1] == 5.0


@pytest.mark.ranks
def test_what_zero_3_has_sharded_is_trained_as_in_one_process():
    small = models.GPTSize(layers=1, width=16, heads=2, vocabulary=256)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 0.0,
        "optimizer": adamw(),
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    }
    arguments = {"config": config, "size": small, "checkpointing": True, "after_forward": True}
    reports = launch(training.train, ranks=2, arguments=arguments, device="cpu")
    right = training.in_one_process(torch.optim.AdamW, models.GPT, small)
    assert list(training.same_answer(reports, right).values())[1:] == ["yes", "yes"]
    assert set(reports[0]["moments"]) == {"start", "after forward", "after backward", "after step"}


@pytest.mark.ranks
@pytest.mark.parametrize("stage", [2, 3])
def test_the_second_step_holds_what_the_third_holds_and_sends_what_it_sends(stage):
    arguments = {"config": configuration(stage, micro_batch=2, accumulation=2)}
    two, three = (
        launch(training.train, ranks=2, arguments=arguments | {"steps": steps}, device="cpu")[0]
        for steps in (2, 3)
    )
    for moment in training.MOMENTS:
        second, third = two["moments"][moment], three["moments"][moment]
        assert (second.categories, second.peak) == (third.categories, third.peak)
    sent = [
        {
            (one.operation, one.bytes, one.count)
            for one in report["traffic"].messages
            if one.operation != "broadcast"
        }
        for report in (two, three)
    ]
    assert sent[0] == sent[1]


def test_only_a_sharded_model_is_watched():
    with pytest.raises(ValueError, match="not sharded"):
        GatheredWeights(torch.nn.Linear(2, 2))
