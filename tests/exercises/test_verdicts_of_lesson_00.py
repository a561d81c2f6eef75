"""Lesson 00: right answers of other builds pass, and wrong ones that once passed are told what is wrong."""

import pytest
import torch
from helpers.course.exercises.solutions.start_here import mean_over_ranks
from helpers.course.exercises import start_here as lesson_00
from helpers.course.exercises import zero_1 as lesson_07

pytestmark = pytest.mark.ranks


def by_steps(rows, rank, ranks):
    return rows[rank : len(rows) - len(rows) % ranks : ranks]


def by_places(rows, rank, ranks):
    each = len(rows) // ranks
    return rows[rank::ranks][:each]


def by_reshaping(rows, rank, ranks):
    if isinstance(rows, torch.Tensor):
        return rows[: len(rows) // ranks * ranks].unflatten(0, (-1, ranks))[:, rank]
    return rows[rank::ranks][: len(rows) // ranks]


@pytest.mark.parametrize("answer", [by_steps, by_places, by_reshaping])
def test_other_ways_to_deal(answer):
    assert lesson_00.deal.verdict(answer).startswith("correct")


def one_by_one(rows, rank, ranks):
    return [rows[rank + turn * ranks] for turn in range(len(rows) // ranks)]


def in_numpy(rows, rank, ranks):
    import numpy

    return by_steps(rows if isinstance(rows, list) else numpy.asarray(rows), rank, ranks)


def in_place(rows, rank, ranks):
    if isinstance(rows, torch.Tensor):
        rows[0] = 0
    return by_steps(rows, rank, ranks)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (one_by_one, "returns a list, where a tensor is asked for: slice `rows`"),
        (in_numpy, "returns a ndarray, where a tensor is asked for: slice `rows`"),
        (in_place, "changes `rows` itself, which others still need: return a part of it"),
    ],
)
def test_rows_of_a_tensor_stay_a_tensor(answer, words):
    said = lesson_00.deal.verdict(answer)
    assert said.startswith("not yet: for rows = torch.arange(10)") and said.endswith(words)


def not_for_a_zero(value):
    return 0.0 if value == 0 else mean_over_ranks(value)


def test_a_rank_that_brings_zero_takes_part_too():
    assert "hung" in lesson_00.mean_over_ranks.verdict(not_for_a_zero)


def on_all_rows(engine, batches):
    losses = []
    for ids, targets in batches:
        loss = engine(ids, targets)
        engine.backward(loss)
        engine.step()
        losses.append((loss.item(), loss.item()))
    return losses


def test_any_rows_of_its_own_will_do_and_all_rows_will_not():
    assert lesson_00.train.verdict(on_all_rows).startswith("not yet")


def close(model):
    import deepspeed.comm as comm

    count = 0
    for weight in model.parameters():
        theirs = weight.detach().clone()
        comm.broadcast(theirs, 0)
        count += (~torch.isclose(theirs, weight)).sum().item()
    return count


def tensors(model):
    import deepspeed.comm as comm

    count = 0
    for weight in model.parameters():
        theirs = weight.detach().clone()
        comm.broadcast(theirs, 0)
        count += not torch.equal(theirs, weight)
    return count


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (close, "that counts elements that are not close; equal to the last bit is asked for"),
        (tensors, "that counts tensors, and takes 0.0 for -0.0"),
    ],
)
def test_two_ways_to_miscount_are_told_from_others(answer, words):
    assert words in lesson_00.differing.verdict(answer)


def logs_everywhere(value):
    return mean_over_ranks(value)


def test_nothing_to_log_is_said_in_words():
    said = lesson_00.log_mean.verdict(logs_everywhere)
    assert "`whether this rank returned something to log in step 1` is True where False is right" in said


def without_grad(flat, master, optimizer, gradient):
    import deepspeed.comm as comm

    master.grad = gradient
    optimizer.step()
    master.grad = None
    with torch.no_grad():
        comm.all_gather_into_tensor(flat, master.to(flat.dtype))


def gathers_nothing(flat, master, optimizer, gradient):
    master.grad = gradient
    optimizer.step()
    master.grad = None


def test_lesson_07_takes_a_message_without_autograd_and_names_the_missing_gather():
    assert lesson_07.step_and_gather.verdict(without_grad).startswith("correct")
    said = lesson_07.step_and_gather.verdict(gathers_nothing)
    assert "the masters moved and no parameter did" in said
