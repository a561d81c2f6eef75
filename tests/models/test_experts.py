"""The layer with all experts in one process, which lesson 16 holds its ranks against."""

import pytest
import torch
from helpers import models

SIZE = models.GPTSize(width=16, layers=2, heads=2)


@pytest.mark.parametrize("k", (1, 2, 3))
def test_each_token_gets_the_weighted_answers_of_its_k_most_probable_experts(k):
    layer, x = models.RoutedFeedForward(SIZE, 4, k), torch.randn(2, 5, 16)
    right = []
    for token in x.flatten(0, 1):
        probability = layer.router(token).softmax(-1)
        best = probability.argsort(descending=True)[:k]
        weights = probability[best] / (probability[best].sum() if k > 1 else 1)
        right.append(
            sum(weight * layer.experts[number](token) for weight, number in zip(weights, best.tolist()))
        )
    torch.testing.assert_close(layer(x), torch.stack(right).view_as(x))


def test_an_expert_has_the_same_weights_wherever_it_is_built_and_others_than_its_neighbours():
    first, again, other, below = (
        models.expert(SIZE, *place).up.weight for place in ((0, 1), (0, 1), (0, 2), (1, 1))
    )
    assert first.equal(again) and not first.equal(other) and not first.equal(below)
    assert models.router(SIZE, 4, 0).weight.equal(models.RoutedFeedForward(SIZE, 4).router.weight)


@pytest.mark.parametrize(
    "name, first, right",
    [
        ("blocks.1.feed_forward.experts.1.up.weight", 2, "blocks.1.feed_forward.experts.3.up.weight"),
        (
            "blocks.0.feed_forward.moe.deepspeed_moe.experts.deepspeed_experts.0.down.bias",
            3,
            "blocks.0.feed_forward.experts.3.down.bias",
        ),
        ("blocks.0.feed_forward.moe.deepspeed_moe.gate.wg.weight", 3, "blocks.0.feed_forward.router.weight"),
        ("blocks.10.attention.qkv.weight", 2, "blocks.10.attention.qkv.weight"),
    ],
)
def test_a_parameter_on_a_rank_is_named_as_in_the_model_with_all_experts(name, first, right):
    assert models.name_in_one_process(name, first) == right
    model = models.with_experts(
        models.build(models.GPT, SIZE), lambda layer: models.RoutedFeedForward(SIZE, 4, layer=layer)
    )
    if not right.startswith("blocks.10"):
        assert right in dict(model.named_parameters())
