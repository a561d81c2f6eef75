"""Lesson 07's builds: a function that changes no model is not right, and what a collective refuses is
answered with what to do."""

import pytest
from helpers.course.exercises import zero_1 as lesson_07
from helpers.course.exercises.solutions import zero_1 as solutions
from helpers.course.runs.zero_1 import planted, undivided

pytestmark = pytest.mark.ranks


def new_parameters_in_the_list(parameters, ranks):
    import torch

    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    flat, at = torch.nn.functional.pad(flat, (0, -len(flat) % ranks)), 0
    for index, parameter in enumerate(parameters):
        parameters[index] = torch.nn.Parameter(flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
    return flat


def reduced(slip):
    def reduce_to_owner(parameters, flat):
        import deepspeed.comm as comm
        import torch

        gradients = torch.cat([parameter.grad.flatten() for parameter in parameters])
        if slip != "unpadded":
            gradients = torch.nn.functional.pad(gradients, (0, len(flat) - len(gradients)))
        mine = torch.empty_like(gradients[: len(flat) // comm.get_world_size()])
        comm.reduce_scatter_tensor(*((gradients, mine) if slip == "swapped" else (mine, gradients)))
        return (mine if slip == "in bf16" else mine.float()) / comm.get_world_size()

    return reduce_to_owner


def gathered(slip):
    def step_and_gather(flat, master, optimizer, gradient):
        import deepspeed.comm as comm

        master.grad = gradient.bfloat16() if slip == "a gradient in bf16" else gradient
        if slip == "gone too early":
            optimizer.zero_grad()
        optimizer.step()
        fresh = master if slip == "with its graph" else master.detach()
        comm.all_gather_into_tensor(flat, fresh if slip == "in fp32" else fresh.to(flat.dtype))
        master.grad = None

    return step_and_gather


def test_new_parameters_in_the_list_are_not_the_models(capsys):
    lesson_07.flatten.check(new_parameters_in_the_list)
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and "a new Parameter in the list" in said


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "unpadded": "pad the gradients to the length of `flat`",
        "swapped": "mind the order of the two",
        "in bf16": "the master is fp32, and so is its gradient",
    }.items(),
)
def test_a_slip_in_the_reduction_is_answered_with_what_to_do(slip, words, capsys):
    lesson_07.reduce_to_owner.check(reduced(slip))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said and "helpers/" not in said


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "a gradient in bf16": "cast this rank's shard, `mine.float()`",
        "gone too early": "`zero_grad` comes after it",
        "with its graph": "hand in `.detach()`",
        "in fp32": "a message has one dtype",
    }.items(),
)
def test_a_slip_in_the_update_is_answered_with_what_to_do(slip, words, capsys):
    lesson_07.step_and_gather.check(gathered(slip))
    said = capsys.readouterr().out
    assert said.startswith("✗ not yet") and words in said and "helpers/" not in said


@pytest.mark.parametrize(
    ("check", "answer"),
    [(lesson_07.reduce_to_owner, reduced("none")), (lesson_07.step_and_gather, gathered("none"))],
)
def test_a_right_rung_is_accepted(check, answer, capsys):
    assert check.check(answer) is answer
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")


def test_a_step_without_rungs_is_right_too_and_faults_go_into_the_course_s(capsys):
    def zero_1_step(parameters, flat, master, optimizer, max_norm=float("inf")):
        mean = reduced("none")(parameters, flat)
        norm = solutions.clip_shard_solution(mean, max_norm)
        gathered("none")(flat, master, optimizer, mean)
        for parameter in parameters:
            parameter.grad = None
        return norm

    assert lesson_07.zero_1_step.check(zero_1_step) is zero_1_step
    faulty = planted(zero_1_step, reduce_to_owner=undivided)
    assert faulty.__globals__["reduce_to_owner"] is undivided
    assert lesson_07.zero_1_step.verdict(faulty).startswith("not yet: rank 0 of 2: `this rank's masters")


def unpadded(psi, ranks, bucket):
    held = {"parameters": 2 * psi, "gradients": 2 * psi, "master weights": 4 * psi / ranks}
    return held | {"optimizer states": 8 * psi / ranks + 4, "buffers": 2 * bucket}


def test_the_formula_is_held_against_deepspeed_itself(capsys):
    assert lesson_07.zero_1_bytes.check(solutions.zero_1_bytes_solution) is solutions.zero_1_bytes_solution
    for found in lesson_07.zero_1_bytes.judged(solutions.zero_1_bytes_solution, {}, 3, seed=1):
        assert set(map(str, found.got.values())) == {"0", "[]"}
    lesson_07.zero_1_bytes.check(unpadded)
    said = capsys.readouterr().out
    assert "your parameters minus what DeepSpeed holds of" in said and "that is without padding" in said
