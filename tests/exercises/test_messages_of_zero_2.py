"""Lesson 08's builds: slips that raise an error or would leave ranks waiting get words that help, and each
planted fault is one that its check sees."""

import time

import pytest
from helpers.course.exercises import zero_2
from helpers.course.exercises.editing import edit
from helpers.course.exercises.ladders import rebound
from helpers.course.runs.zero_2 import not_emptied, only_the_first, overwritten
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks
RUNGS = ("pieces", "reduce_to_owners", "reduce_and_release", "zero_2_step")
COURSE = {rung: solutions()[f"08-{rung}"] for rung in RUNGS}
COPY = ".flatten()", ".flatten().clone()"


def reducer(slip):
    def reduce_to_owners(bucket, own):
        import deepspeed.comm as comm
        import torch

        rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
        for owner in range(ranks):
            parts = {
                begin: gradient[begin - start : end - start]
                for start, gradient in bucket.items()
                for who, begin, end in COURSE["pieces"](start, len(gradient), shard)
                if who == owner
            }
            if slip == "not cut":
                parts = {start: gradient for start, gradient in bucket.items() if start // shard == owner}
            if not parts and slip != "nothing to join":
                continue
            message = torch.cat(list(parts.values())) / ranks  # divided before the sum, which is as good
            if slip == "no owner named":
                comm.reduce(message)
            handle = comm.reduce(message, dst=owner, async_op=slip == "waits")
            if slip == "waits":
                handle.wait()
            if owner == rank:
                for begin, part in zip(parts, message.float().split([len(one) for one in parts.values()])):
                    place = begin if slip == "place in the flat tensor" else begin - owner * shard
                    own[place:][: len(part)] += part

    return reduce_to_owners


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ("no owner named", "missing 1 required positional argument: 'dst'"),
        ("nothing to join", "then there is nothing to send"),
        ("not cut", "has two owners: cut it there"),
        ("place in the flat tensor", "`own[p - rank * S]`"),
    ],
)
def test_errors_in_the_reducer_get_words(slip, words):
    assert words in zero_2.reduce_to_owners.verdict(reducer(slip))


@pytest.mark.parametrize("slip", ["none", "waits"])
def test_other_right_reducers_are_right(slip, capsys):
    mine = reducer(slip)
    assert zero_2.reduce_to_owners.check(mine) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")


def test_ranks_that_call_different_reductions_are_told_so_before_they_hang():
    said, took = quickly(edit(COURSE["reduce_to_owners"], "dst=owner", "dst=rank"))
    assert "rank 0 calls reduce of" in said and "`dst` is the owner of the pieces" in said
    assert took < zero_2.reduce_to_owners.patience


def test_an_owner_that_alone_calls_is_told_so_before_it_hangs():
    alone = "if not found:", "if not found or owner != rank:"
    said, took = quickly(edit(COURSE["reduce_to_owners"], *alone))
    assert "rank 0 calls reduce of" in said and took < zero_2.reduce_to_owners.patience


def test_one_rank_that_raises_is_named_while_the_others_wait_for_it():
    raises = edit(
        COURSE["reduce_to_owners"], "if owner == rank:", "if owner == rank == 1:\n            1 / 0"
    )
    said, took = quickly(raises)
    assert "rank 1 of 2 raised ZeroDivisionError" in said and took < zero_2.reduce_to_owners.patience


def quickly(answer):
    """(verdict, seconds)."""
    began = time.monotonic()
    return zero_2.reduce_to_owners.verdict(answer), time.monotonic() - began


def test_a_bucket_of_copies_is_right_but_not_where_the_gradients_are_kept():
    course = COURSE["reduce_and_release"]
    kept = "reduce_to_owners(bucket, own)", "reduce_to_owners(bucket, own)\n    starts[None] = bucket"
    assert zero_2.reduce_and_release.verdict(edit(course, *COPY)).startswith("correct in 2 and 4 ranks")
    said = zero_2.reduce_and_release.verdict(edit(course, *kept))
    assert said.startswith("not yet") and "gradients whose memory is still alive" in said


def test_sums_that_are_rounded_on_the_way_are_seen():
    for kind in ("bfloat16", "half"):
        rounded = f"+= mean\n                own.copy_(own.{kind}())"
        said = zero_2.reduce_to_owners.verdict(edit(COURSE["reduce_to_owners"], "+= mean", rounded))
        assert said.startswith("not yet") and "`this rank's sums" in said


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("divided", ["loss", "own"])
def test_a_step_may_divide_either_and_empty_own_first_or_last(first, divided):
    step = COURSE["zero_2_step"]
    if first:
        step = edit(step, "own.zero_()", "pass", "for forward", "own.zero_()\n    for forward")
    if divided == "loss":
        loss = "forward().backward()", "(forward() / len(passes)).backward()"
        step = edit(step, *loss, "own / len(passes)", "own.clone()")
    assert zero_2.zero_2_step.verdict(step).startswith("correct in 2 and 4 ranks")


@pytest.mark.parametrize(
    ("rung", "faulty"),
    {
        "pieces": only_the_first,
        "reduce_to_owners": overwritten,
        "zero_2_step": not_emptied,
    }.items(),
)
def test_a_check_sees_the_fault_that_is_planted_beside_the_learners(rung, faulty):
    assert getattr(zero_2, rung).verdict(faulty).startswith("not yet")


def test_the_lost_piece_is_seen_in_the_reducer_too():
    lost = rebound(COURSE["reduce_to_owners"], {"pieces": only_the_first})
    assert zero_2.reduce_to_owners.verdict(lost).startswith("not yet")
