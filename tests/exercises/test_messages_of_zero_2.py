"""Lesson 08's builds: slips that end a process or raise an error get words that help, and another right way is accepted."""

import pytest
from helpers.exercises import lesson_08
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks


def pieces_of(bucket, owner, shard):
    """{where a piece begins in the flat tensor: the piece} of a bucket for one owner."""
    found = {}
    for start, gradient in bucket.items():
        begin, end = max(start, owner * shard), min(start + len(gradient), (owner + 1) * shard)
        if begin < end:
            found[begin] = gradient[begin - start : end - start]
    return found


def reducer(slip):
    def reduce_bucket(bucket, own):
        import deepspeed.comm as comm
        import torch

        rank, ranks, shard = comm.get_rank(), comm.get_world_size(), len(own)
        for owner in [rank] if slip == "only owners call" else range(ranks):
            pieces = pieces_of(bucket, owner, shard)
            if not pieces and slip != "nothing to join":
                continue
            message = torch.cat(list(pieces.values())) / ranks  # divided before the sum, which is as good
            if slip == "no owner named":
                comm.reduce(message)
            comm.reduce(message, dst=owner)
            if owner == rank or slip == "everybody adds":
                for begin, piece in zip(pieces, message.split([len(piece) for piece in pieces.values()])):
                    own[begin - owner * shard :][: len(piece)] += piece

    return reduce_bucket


@pytest.mark.parametrize(
    ("slip", "words"),
    {
        "only owners call": "all ranks must send the same tensors, in the same order",
        "no owner named": "missing 1 required positional argument: 'dst'",
        "nothing to join": "expected a non-empty list of Tensors",
        "everybody adds": "`this rank's shard, float32",
    }.items(),
)
def test_a_slip_in_the_reducer_is_not_right_and_gets_words(slip, words, capsys):
    lesson_08.reduce_bucket.check(reducer(slip), solutions()["08-reduce_bucket"])
    said = capsys.readouterr().out
    assert "✗ not yet" in said and words in said  # gloo may say something first


def test_a_mean_that_is_divided_before_the_sum_is_right(capsys):
    mine = reducer("none")
    assert lesson_08.reduce_bucket.check(mine, solutions()["08-reduce_bucket"]) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")


def test_a_release_without_a_function_to_flush_is_told_so(capsys):
    def release_by_bucket(parameters, bucket_size, reduce):
        return [parameter.register_post_accumulate_grad_hook(lambda tensor: None) for parameter in parameters]

    lesson_08.release_by_bucket.check(release_by_bucket, solutions()["08-release_by_bucket"])
    assert "must return a function, which reduces what is left" in capsys.readouterr().out
