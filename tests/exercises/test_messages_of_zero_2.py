"""Lesson 08's builds: every mistake is told from the right function and from other mistakes; slips that raise
an error get words that help."""

import pytest
from helpers.course.exercises import zero_2
from helpers.course.exercises.editing import edit
from tests.exercises.course import solutions

pytestmark = pytest.mark.ranks
COPY = ".flatten()", ".flatten().clone()"
KEEPS = "def ready(parameter):", "def ready(parameter, kept=[]):\n        kept.append(parameter.grad)"
BUILDS = {build: solutions()[f"08-{build}"] for build in ("reduce_bucket", "release_by_bucket")}


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
        for owner in range(ranks):
            pieces = pieces_of(bucket, owner, shard)
            if slip == "not cut":
                pieces = {start: gradient for start, gradient in bucket.items() if start // shard == owner}
            if not pieces and slip != "nothing to join":
                continue
            message = torch.cat(list(pieces.values())) / ranks  # divided before the sum, which is as good
            if slip == "no owner named":
                comm.reduce(message)
            handle = comm.reduce(message, dst=owner, async_op=slip == "waits")
            if slip == "waits":
                handle.wait()
            if owner == rank:
                for begin, piece in zip(pieces, message.split([len(piece) for piece in pieces.values()])):
                    place = begin if slip == "place in the flat tensor" else begin - owner * shard
                    own[place:][: len(piece)] += piece

    return reduce_bucket


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ("no owner named", "missing 1 required positional argument: 'dst'"),
        ("nothing to join", "then there is nothing to send"),
        ("not cut", "has two owners: cut it there"),
    ],
)
def test_errors_in_the_reducer_get_words(slip, words):
    assert words in zero_2.reduce_bucket.verdict(reducer(slip))


@pytest.mark.parametrize("slip", ["none", "waits"])
def test_other_right_reducers_are_right(slip, capsys):
    mine = reducer(slip)
    assert zero_2.reduce_bucket.check(mine) is mine
    assert capsys.readouterr().out.startswith("✓ correct in 2 and 4 ranks")


def test_a_place_in_the_flat_tensor_is_none_in_the_shard(capsys):
    zero_2.reduce_bucket.check(reducer("place in the flat tensor"))
    assert "`own[p - rank * S]`" in capsys.readouterr().out


def test_ranks_that_call_different_reductions_are_told_so_before_they_hang():
    to_itself = edit(BUILDS["reduce_bucket"], "dst=owner", "dst=rank")
    said = zero_2.reduce_bucket.verdict(to_itself)
    assert "rank 0 calls reduce of" in said and "`dst` is the owner of the pieces" in said


def releaser(slip):
    def release_by_bucket(parameters, bucket_size, reduce):
        bucket, starts, offset = {}, {}, 0
        for parameter in parameters:
            starts[parameter] = offset
            offset += parameter.numel()

        def flush():
            if slip == "a new name":
                reduce(emptied)  # noqa: F821
                emptied = {}  # noqa: F841
            elif bucket:
                reduce(list(bucket.values()) if slip == "a list" else bucket)
                bucket.clear()

        def ready(parameter):
            bucket[parameter if slip == "keyed by parameters" else starts[parameter]] = (
                parameter.grad.flatten()
            )
            parameter.grad = None
            if sum(len(gradient) for gradient in bucket.values()) >= bucket_size:
                flush()

        for parameter in parameters:
            if slip == "an earlier hook":
                parameter.register_hook(lambda gradient, parameter=parameter: ready(parameter))
            elif slip == "the loop's variable":
                parameter.register_post_accumulate_grad_hook(lambda made: ready(parameter))  # noqa: B023
            else:
                parameter.register_post_accumulate_grad_hook(ready)
        return None if slip == "nothing returned" else flush

    return release_by_bucket


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ("a new name", "`.clear()`, or declare `nonlocal`"),
        ("a list", "`reduce` takes a bucket, a dict"),
        ("keyed by parameters", "keys are places in the flat tensor"),
        ("an earlier hook", "register it with `register_post_accumulate_grad_hook`"),
        ("the loop's variable", "not a loop's variable"),
        ("nothing returned", "must return a function, which reduces what is left"),
    ],
)
def test_errors_in_the_release_get_words(slip, words):
    assert words in zero_2.release_by_bucket.verdict(releaser(slip))


def test_a_bucket_of_copies_is_right_but_not_where_the_gradients_are_kept():
    solution = BUILDS["release_by_bucket"]
    copies, kept = edit(solution, *COPY), edit(solution, *COPY, *KEEPS)
    assert zero_2.release_by_bucket.verdict(copies).startswith("correct in 2 and 4 ranks")
    words = "something still refers to the gradients themselves"
    assert words in zero_2.release_by_bucket.verdict(kept)
