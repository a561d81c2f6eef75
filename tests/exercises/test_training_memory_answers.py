"""What lesson 02 says about exercises and steps, by the course's own planner and by DeepSpeed."""

from functools import partial

import pytest
import torch
from helpers.course.exercises.solutions.training_memory import (
    at_the_loss,
    checkpoint_solution,
    in_the_backward,
    in_the_step,
    mixed_step_solution,
)
from helpers import job, launch, mixed, models, recorded, theory, training
from helpers.course.exercises import training_memory

WIDE = models.GPTSize(vocabulary=256, context=64, width=128, layers=2, heads=4)


def peak(plan):
    return max(at_the_loss(plan), in_the_backward(plan), in_the_step(plan))


def most_sequences(peak):
    """How many fit into what a plan may fill of 80 GB."""
    most = training_memory.room(80e9, 1.2e9)
    return next(count for count in range(1, 200) if peak(count + 1) > most)


@pytest.mark.parametrize(("checkpointed", "mine", "exact"), [(False, 17, 17), (True, 71, 70)])
def test_so_many_sequences_fit(checkpointed, mine, exact):
    ways = {"size": models.GPT2_XL, "gpus": 1, "sequence": 1024, "checkpointed": checkpointed}
    by_planner = most_sequences(lambda b: peak(theory.Plan(**ways, batch=b, micro=b)))
    parts = partial(theory.bytes_at_the_loss, models.GPT2_XL, sequence=1024, checkpointing=checkpointed)
    assert by_planner == mine and most_sequences(lambda b: sum(parts(b).values())) == exact


def test_the_planner_predicts_the_failure_that_opens_the_lesson():
    run = recorded.runs("zero", size="7.5B", ranks=1, stage=0)[0]
    plan = recorded.plan(run)
    assert 16 * plan.parameters < run.device_memory < 24 * plan.parameters == peak(plan)
    mean = 4 * 4 * plan.size.width**2  # in fp32, for one matrix of the feed-forward
    assert "Tried to allocate 256.00 MiB" in run.error and mean == 256 * 2**20
    assert "138.45 GiB is allocated by PyTorch" in run.error
    assert abs(20 * plan.parameters - 138.45 * 2**30 - 2 * mean) < 0.005 * 2**30  # the message's rounding
    assert "in initialize_optimizer_states" in run.error


def test_the_highest_turn_of_the_backward_pass_is_the_first_block_s_or_the_last_one_s():
    ways = {"gpus": 1, "sequence": 32, "batch": 64, "micro": 64, "checkpointed": True}
    for layers, end in ((2, "first"), (12, "last")):
        size = models.GPTSize(vocabulary=256, context=64, width=128, layers=layers, heads=4)
        plan = theory.Plan(size=size, **ways)
        turns = {"first": 2 * plan.parameters, "last": (layers - 1) * plan.kept}
        assert max(turns, key=turns.get) == end
        assert peak(plan) == in_the_backward(plan) == 14 * plan.parameters + plan.again + turns[end]
        train = {"steps": 2, "sequences": 64, "again": checkpoint_solution, "size": size}
        found = max(mixed.train(mixed_step_solution, **train)["history"].total)
        assert abs(peak(plan) / found - 1) < 0.01


def test_a_planner_that_counts_the_embedding_and_the_last_norm_is_right_too():
    plan = training_memory.xl(1, 16)
    least = at_the_loss(plan)
    most = 14 * plan.parameters + plan.activations
    check = training_memory.at_the_loss
    assert least < most < 1.002 * least
    for answer in (least, (least + most) / 2, most):
        assert check.wrong({"plan": plan}, (answer, "")) == ""
    for answer in (0.99 * least, 1.001 * most):
        assert check.wrong({"plan": plan}, (answer, ""))


@pytest.mark.parametrize(("checkpointed", "gigabytes"), [(True, 63), (False, 113)])
def test_the_job_without_masters_and_with_adam_in_eight_bits(checkpointed, gigabytes):
    size, shape = theory.LlamaSize.of(job.MODELS["8 B"]), {"batch": job.SEQUENCES, "sequence": job.SEQUENCE}
    plan = theory.Plan(size=size, gpus=1, **shape, checkpointed=checkpointed)
    assert round((at_the_loss(plan) - (4 + 6) * plan.parameters) / 1e9) == gigabytes


def test_six_blocks_fit_a_b200_and_more_than_twenty_one_save_nothing():
    shape = {"gpus": 1, "batch": job.SEQUENCES, "sequence": job.SEQUENCE}
    plans = [
        theory.Plan(size=theory.LlamaSize.of(job.MODELS["8 B"]), **shape, checkpointed=on) for on in (0, 1)
    ]
    none, every = map(at_the_loss, plans)
    name = "1 B200, fused by torch"
    room = training_memory.room(job.stored(name)["memory"], job.stored(name)["outside"])
    assert next(one for one in range(33) if none + (every - none) * one / 32 < room) == 6
    assert none < room + 11.8e9 - 1.1e9  # with a loss in chunks none need be checkpointed
    saves = [none + (every - none) * one / 32 > in_the_step(plans[0]) for one in (20, 21)]
    assert saves == [True, False]
    eight = job.stored(f"{name}, 8 of 32 blocks checkpointed")["reserved"][1]
    assert f"{(room - eight) / 1e9:.1f}" == "1.7"  # the allocator's gaps are within what stays free
    (ways,) = mixed.held_by_length(job.MODELS["8 B"], [job.SEQUENCE]).values()
    assert f"{(room - sum(ways['selective'].values())) / 1e9:.1f}" == "19.7"


def test_a_checkpointed_block_keeps_a_sixteenth():
    sizes = {"size": models.TINY, "gpus": 1, "batch": 64, "micro": 64, "sequence": 32}
    whole, least = (theory.Plan(**sizes, checkpointed=on).kept for on in (False, True))
    assert round(whole / least) == 16


def test_each_unseen_peak_is_another():
    peaks = [one.right["peak"] for one in training_memory.unseen().values()]
    assert len(peaks) == len({round(peak / 1e9) for peak in peaks}) >= 4


@pytest.mark.parametrize(("size", "off", "is_the_loss"), [(models.TINY, 5, True), (WIDE, 27, False)])
def test_two_moments_miss_a_wide_block_that_runs_again(size, off, is_the_loss):
    ways = {"steps": 2, "sequences": 64, "again": checkpoint_solution, "size": size}
    history = mixed.train(mixed_step_solution, **ways)["history"]
    plan = theory.Plan(size=size, gpus=1, batch=64, micro=64, sequence=32, checkpointed=True)
    most, backward = max(history.total), dict(map(reversed, history.marks))["backward"]
    assert round(100 - 100 * max(at_the_loss(plan), in_the_step(plan)) / most) == off
    assert (history.total.index(most) < backward + 10) == is_the_loss


@pytest.mark.ranks
def test_deepspeed_keeps_the_bf16_gradients_through_its_step():
    config, highest = {"train_batch_size": 8, "bf16": {"enabled": True}}, {}
    for fused in (True, False):
        ways = {"config": config, "make": partial(torch.optim.AdamW, fused=fused)}
        found = launch(training.train, 1, ways, device="cpu")[0]
        highest[fused] = found["moments"]["after step"].peak
    weights, inputs = found["weights"].numel(), 2 * 8 * training.LENGTH * 8
    counts = 4 * len(list(models.build(models.GPT, models.TINY).parameters()))
    assert highest[True] == 20 * weights + counts + inputs
    assert f"{highest[False] / weights:.1f}" == "20.6"  # a square root of one tensor at a time


def in_the_empty_step():
    import deepspeed

    held = []

    class Looking(torch.optim.AdamW):
        def step(self, closure=None):
            given = [parameter.grad for parameter in model.parameters()]
            mine = [master.grad for group in self.param_groups for master in group["params"]]
            held.append([sum(one.nbytes for one in several) for several in (given, mine)])
            return super().step(closure)

    model = models.build(models.GPT, models.TINY)
    config = {"train_batch_size": 8, "bf16": {"enabled": True}}
    deepspeed.initialize(model=model, optimizer=Looking(model.parameters()), config=config)
    return held, sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.ranks
def test_an_empty_step_has_zeros_for_the_weights_and_for_the_masters():
    held, weights = launch(in_the_empty_step, 1, device="cpu")[0]
    assert held == [[2 * weights, 4 * weights]]


@pytest.mark.ranks
def test_without_zero_deepspeed_refuses_fp32_sums_of_bf16_gradients():
    config = {"train_batch_size": 8, "bf16": {"enabled": True}}
    config["data_types"] = {"grad_accum_dtype": "fp32"}
    with pytest.raises(RuntimeError, match="unsupported mix"):
        launch(training.train, 1, {"config": config, "make": torch.optim.AdamW}, device="cpu")
