"""Lesson 02's training by hand: what its notes count, and the steps that stand beside the learner's."""

import pytest
import torch
from helpers.course.exercises.solutions.training_memory import mixed_step_solution, split_batch_solution
from helpers import mixed, models, theory

PSI, TENSORS = theory.gpt_parameters(models.TINY), 52


def trained(step, **options):
    return mixed.train(step, **{"steps": 1, **options})


def test_a_mixed_step_holds_sixteen_bytes_and_then_fourteen():
    moments = trained(mixed_step_solution, steps=2)["moments"]
    due = theory.ideal_bytes(PSI) | {"optimizer states": 8 * PSI + 4 * TENSORS}
    for name, size in due.items():
        assert moments["after backward"][name] == size
        assert moments["after step"][name] == (0 if name == "gradients" else size)


@pytest.mark.parametrize("step", [mixed.left_zeros, mixed.left_gradients])
def test_a_step_that_leaves_something_leaves_two_bytes(step):
    left, right = (trained(one)["moments"]["after step"].total for one in (step, mixed_step_solution))
    assert left - right == 2 * PSI


def test_rounding_at_random_is_right_in_the_mean_and_keeps_what_bf16_can_say():
    weights = [torch.nn.Parameter(torch.ones(100_000, dtype=torch.bfloat16))]
    masters = [torch.empty(100_000)]
    weights[0].grad = torch.ones_like(weights[0])
    mixed.rounded_at_random(weights, masters, torch.optim.SGD(masters, lr=1e-3))
    moved = 1 - weights[0].detach().float()
    assert set(moved.unique().tolist()) == {0.0, 2**-8}
    assert moved.mean().item() == pytest.approx(1e-3, rel=0.05)
    assert weights[0].grad is None and masters[0].grad is None


def test_a_single_weight_moves_by_its_master_alone():
    lines = mixed.one_weight(mixed_step_solution)
    assert [line[-1] for _, line in lines.values()] == pytest.approx([40, 39.1, 0], abs=0.05)


def test_an_empty_step_makes_states_and_shrinks_the_first_update():
    steps = {}
    for make in (torch.optim.AdamW, mixed.after_an_empty_step):
        report = trained(mixed_step_solution, make=make)
        steps[make] = (report["masters"] - report["start"]).abs().median().item()
    first, second = steps.values()
    assert second / first == pytest.approx(0.744, abs=0.01)  # 0.1 / 0.19 / sqrt(0.001 / 0.001999)


def test_four_undivided_gradients_make_sgd_s_update_four_times_as_long_and_adam_s_not():
    found = mixed.update_without_division(mixed_step_solution, split_batch_solution)
    assert found == {"SGD": 4.0, "AdamW": 1.0}


def test_the_step_of_each_adam_has_its_bytes_per_parameter():
    bars = [sizes for group in mixed.in_the_step_by_adam(1).values() for sizes in group.values()]
    assert [sum(sizes.values()) for sizes in bars] == [18, 20, 24, 24]


def test_forgotten_masters_show_in_the_weights_after_the_second_step():
    for steps, same in ((1, True), (2, False)):
        right, wrong = (
            trained(one, steps=steps, memory=False)["weights"]
            for one in (mixed_step_solution, mixed.rounded_to_nearest)
        )
        assert right.equal(wrong) == same
