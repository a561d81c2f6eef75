"""Building a model in ranks: what is held, and what `initialize` moves to the training device in one
piece."""

import pytest
from helpers import launch, models, theory
from helpers.course.runs.constructing import WAYS, construct, moved_by_initialize
from tests.support import adamw

pytestmark = pytest.mark.ranks

SIZE = models.GPTSize(width=32, layers=1, heads=2)
STAGE_3 = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}


@pytest.mark.parametrize(
    ("arguments", "ranks"), [({"dtype": "bf16"}, 1), ({"config": STAGE_3}, 2)], ids=["in full", "in parts"]
)
def test_what_is_held_when_a_model_is_built(arguments, ranks):
    reports = launch(construct, ranks=2, arguments={"size": SIZE, **arguments}, device="cpu")
    assert [report["held"] for report in reports] == [2 * theory.gpt_parameters(SIZE) // ranks] * 2
    assert all(report["peak"] >= report["held"] for report in reports)


def test_initialize_moves_a_model_in_full_that_was_built_in_full_unless_it_was_sharded_since():
    config = STAGE_3 | {"optimizer": adamw()}
    moved = {}
    for how in WAYS:
        arguments = {"config": config, "size": SIZE, "how": how}
        moved[how] = set(launch(moved_by_initialize, ranks=2, arguments=arguments, device="cpu"))
    assert list(moved.values()) == [
        {f"{theory.gpt_parameters(SIZE):,} elements in torch.bfloat16"},
        {"nothing"},
        {"nothing"},
    ]
