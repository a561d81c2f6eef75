"""Lesson 02's training by hand: what its notes count, and the steps that stand beside the learner's."""

import pytest
import torch
from helpers.course.exercises.solutions.training_memory import mixed_step_solution
from helpers import corpus, mixed, models, theory

PSI, TENSORS = theory.gpt_parameters(models.TINY), 52


def trained(step, steps=1, make=torch.optim.AdamW):
    model = mixed.built().bfloat16()
    weights = list(model.parameters())
    masters = weights if step is mixed.in_place else [one.detach().float() for one in weights]
    optimizer = make(masters, lr=1e-3)
    with mixed.Notes(model, masters, optimizer) as notes:
        for number in range(steps):
            notes.passes(model, corpus.batch(number, 8, 32))
            step(weights, masters, optimizer)
    return notes.report()


def test_a_mixed_step_holds_sixteen_bytes_and_then_fourteen():
    moments = trained(mixed_step_solution, steps=2)["moments"]
    due = theory.ideal_bytes(PSI) | {"optimizer states": 8 * PSI + 4 * TENSORS}
    for name, size in due.items():
        assert moments["after backward"][name] == size
        assert moments["after step"][name] == (0 if name == "gradients" else size)


def test_in_bf16_alone_states_take_eight():
    moments = trained(mixed.in_place, steps=2)["moments"]
    assert moments["after backward"].model_states == 8 * PSI + 4 * TENSORS
    assert moments["after backward"]["master weights"] == 0


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
