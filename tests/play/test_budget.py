"""The budget to play with: numbers beside rehearsed plans, the browser's sentences beside Python's."""

import json

import pytest
from helpers import job, play, theory
from helpers.course.job.plans import PLANS
from helpers.course.job.reference import SEQUENCE
from helpers.course.job.stored import highest, stored
from helpers.course.play.budget_picture import CATEGORIES
from helpers.course.play.budgets import CHOICES, GOALS, Budgets, budget
from helpers.course.play.grids import packed, unpacked
from helpers.course.play.llama_seconds import SIZE
from helpers.course.play.llama_step import Step
from helpers.course.plots.budget import OUTSIDE
from tests.play.clicking import clicked, combinations

GB, OF_SECONDS = 0.06e9, 0.03  # how far a formula may be from the rehearsal


def ways(plan):
    """A `Step`'s arguments for a plan; None where the figure has no such step."""
    micro = plan.config["train_micro_batch_size_per_gpu"]
    zero, blocks = plan.config["zero_optimization"], plan.checkpointing
    if (
        plan.model != "8 B"
        or plan.sequences < job.SEQUENCES
        or plan.card != job.CARD
        or "tensor_parallel" in plan.config
        or plan.stages
        or micro not in CHOICES["micro"].options
    ):
        return None
    if zero["stage"] and "reduce_bucket_size" not in zero or "overlap_comm" in zero:
        return None
    if "immediate_grad_update" in plan.config["bf16"] or "fused" in plan.config["optimizer"]["params"]:
        return None
    return {
        **{"stage": zero["stage"], "gpus": plan.gpus, "micro": micro, "sequence": SEQUENCE},
        "checkpointed": SIZE.layers if blocks is True else int(blocks),
        "sums": "fp32" if "data_types" in plan.config else "bf16",
    }


CASES = {name: given for name, plan in PLANS.items() if (given := ways(plan))}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_rehearsed_plan(name):
    step, told = Step(**CASES[name]), stored(name)
    here = max(step.moments(), key=lambda parts: sum(parts.values()))
    missed = sum(here.values()) - here[OUTSIDE] - job.peak(name)
    assert -1e5 < missed <= GB  # without a few numbers of the loss
    _, parts = highest(name)
    assert here[OUTSIDE] == told["outside"] and set(parts) - {"other"} <= set(CATEGORIES)
    for part, size in parts.items():
        if size > GB:
            assert here[part] == pytest.approx(size, abs=GB), part
    both = [
        sum(times.values()) if isinstance(times, dict) else times
        for times in (told["seconds"]["fastest"], told["seconds"]["slowest"])
    ]
    assert [sum(step.seconds().values()), step.slowest()] == pytest.approx(both, rel=OF_SECONDS)


@pytest.mark.parametrize("sequence", [4096, 16384])
@pytest.mark.parametrize("stage, checkpointed", [(1, 0), (2, 32), (3, 32)])
def test_the_peak_is_that_of_theory_at_other_lengths(stage, checkpointed, sequence):
    """Also where the backward pass might be highest, whose moments the figure does not have."""
    for gpus in (2, 8, 64):
        step = Step(
            stage=stage, gpus=gpus, micro=1, checkpointed=checkpointed, sums="bf16", sequence=sequence
        )
        times = {"micro_batches": step.micro_batches, "checkpointed": checkpointed > 0}
        if not step.micro_batches:
            continue
        exact = theory.llama_moments(SIZE, 1, sequence, step.config, ranks=gpus, **times)
        here = max(sum(parts.values()) - parts[OUTSIDE] for parts in step.moments())
        assert here == pytest.approx(max(sum(parts.values()) for parts in exact.values()), abs=GB)


def test_numbers_are_packed_and_unpacked():
    for numbers in ([0, 1, 9], [63, 64, 4095, 4096, 70_000]):
        found = packed(numbers)
        assert [unpacked(found["values"], found["wide"], index) for index in range(len(numbers))] == numbers
    with pytest.raises(ValueError, match="one is -3"):
        packed([1, -3])


def test_bad_choices_are_named():
    with pytest.raises(ValueError, match="there is no stages: choose among stage, gpus"):
        budget(stages=3)
    with pytest.raises(ValueError, match="ZeRO stage: there is no 4, only 0, 1, 2, 3"):
        budget(stage=4)
    with pytest.raises(ValueError, match="no choice reaches the goal 'fit'"):
        budget("stage", goals={"fit": lambda now: now.step.stage == 0})


@pytest.fixture(scope="module")
def grid():
    return Budgets(CHOICES, GOALS)


def test_all_sentences_of_the_browser_are_those_of_python(browser, grid):
    found = combinations(grid)
    browser.show(play.budget(), prefers_reduced_motion="reduce")
    assert len(found) == 2016
    assert clicked(browser, found) == [grid.sentence(way) for way in found]


def test_bars_and_goals_of_the_browser_are_those_of_python(browser, grid):
    found = combinations(grid)[::7]
    browser.show(play.budget(), prefers_reduced_motion="reduce")
    values = """[...figure.querySelectorAll('[data-name^="value "]')]"""
    read = f"{values}.map((value) => parseFloat(value.textContent))"
    for way, numbers in zip(found, clicked(browser, found, read)):
        at = way | {"moment": 0}
        at["moment"] = grid("fullest at", at)
        assert numbers == [
            grid(name, at) / 10 for name in (*CATEGORIES, "work", "computed again", "messages")
        ]


def test_a_goal_is_done_once_it_was_reached(browser):
    goals = {"fit": lambda now: True, "stage 3": lambda now: now.step.stage == 3}
    browser.show(play.budget("stage", goals=goals, checkpointed=32))
    done = [{"stage": place} for place in (0, 2, 3, 0)]
    read = """[...figure.querySelectorAll("li")].map((goal) => goal.classList.contains("done"))"""
    assert clicked(browser, done, read) == [[False, False], [True, False], [True, True], [True, True]]


def test_a_lesson_sets_the_start_and_what_can_be_chosen(browser):
    figure = play.budget("checkpointed", "micro", goals={}, stage=1, gpus=16)
    assert "ZeRO stage 1, GPUs 16 on 2 hosts" in figure.sentence
    browser.show(figure)
    labels = browser.run("return [...figure.querySelectorAll('legend')].map((one) => one.textContent)")
    assert labels == ["sequences of a micro-batch", "checkpointed blocks (of 32)"]
    assert len(json.dumps(figure.data)) < 5_000


def test_keys_choose(browser, grid):
    browser.show(play.budget())
    browser.run("figure.querySelector('input').focus()")
    browser.key("ArrowRight", 39)
    assert browser.run("return caption.textContent") == grid.sentence(grid.start | {"stage": 1})
