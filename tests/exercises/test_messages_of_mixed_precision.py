"""Lesson 02's optimizer step: slips of which torch says little are answered with what to do."""

import pytest
from helpers.course.exercises import training_memory as lesson_02

pytestmark = pytest.mark.ranks


def step(slip):
    def mixed_step(weights, masters, optimizer):
        import torch

        for weight, master in zip(weights, masters):
            master.grad, weight.grad = weight.grad if slip == "bf16" else weight.grad.float(), None
        optimizer.step()
        with torch.set_grad_enabled(slip == "seen"):
            for weight, master in zip(weights, masters):
                weight.copy_(master)
                master.grad = None

    return mixed_step


@pytest.mark.parametrize(
    ("slip", "words"), {"bf16": "`weight.grad.float()`", "seen": "under `with torch.no_grad():`"}.items()
)
def test_a_slip_in_the_step_is_answered_with_what_to_do(slip, words, capsys):
    lesson_02.mixed_step.check(step(slip))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said
