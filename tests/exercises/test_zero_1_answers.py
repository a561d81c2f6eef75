"""Lesson 07's builds: a function that changes no model is not right, and what a collective refuses is
answered with what to do."""

import pytest
from helpers.course.exercises import zero_1 as lesson_07

pytestmark = pytest.mark.ranks


def new_parameters_in_the_list(parameters, ranks):
    import torch

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat, at = torch.nn.functional.pad(flat, (0, -len(flat) % ranks)), 0
    for index, parameter in enumerate(parameters):
        parameters[index] = torch.nn.Parameter(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
    return flat


def step(slip):
    def zero_1_step(parameters, flat, master, optimizer):
        import deepspeed.comm as comm
        import torch

        gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
        if slip != "unpadded":
            gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
        mine = torch.empty_like(gradients[: len(flat) // comm.get_world_size()])
        comm.reduce_scatter_tensor(*((gradients, mine) if slip == "swapped" else (mine, gradients)))
        mine = mine if slip == "gradient in bf16" else mine.float()
        master.grad = mine / comm.get_world_size()
        if slip == "gone too early":
            optimizer.zero_grad()
        optimizer.step()
        fresh = master if slip == "with its graph" else master.detach()
        comm.all_gather_into_tensor(flat, fresh if slip == "in fp32" else fresh.to(flat.dtype))
        for parameter in [*parameters, master]:
            parameter.grad = None

    return zero_1_step


def test_new_parameters_in_the_list_are_not_the_models(capsys):
    lesson_07.flatten.check(new_parameters_in_the_list)
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and "a new Parameter in the list" in said


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "unpadded": "pad the gradients to the length of `flat`",
        "swapped": "mind the order of the two",
        "gradient in bf16": "cast this rank's shard, `mine.float()`",
        "gone too early": "`zero_grad` comes after it",
        "with its graph": "hand in `.detach()`",
        "in fp32": "a message has one dtype",
    }.items(),
)
def test_a_slip_in_the_step_is_answered_with_what_to_do(slip, words, capsys):
    lesson_07.zero_1_step.check(step(slip))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said and "helpers/" not in said


def test_a_right_step_is_accepted(capsys):
    mine = step("none")
    assert lesson_07.zero_1_step.check(mine) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")
