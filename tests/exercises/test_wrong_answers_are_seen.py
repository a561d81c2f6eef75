"""Wrong answers that a check of lessons 04 to 09 once let pass, or that only another spelling hid from it."""

import pytest
from helpers.course.exercises import (
    data_parallelism,
    tensor_parallelism,
    zero_1,
    zero_2,
    zero_3,
    zero_init_and_checkpoints,
)
from helpers.course.exercises.editing import edit

pytestmark = pytest.mark.ranks

IMPORTS = "import deepspeed.comm as comm\n"


def verdict(build, solution, *changes):
    return build.verdict(edit(solution, *changes), solution)


def imported(name):
    """The change that gives a collective a name of the function's own, which is not looked up again."""
    return IMPORTS, f"{IMPORTS}    from torch.distributed import {name} as call\n"


def test_zero_1_sees_twice_the_bytes_in_an_imported_all_reduce():
    said = verdict(
        zero_1.zero_1_step,
        zero_1.zero_1_step_solution,
        *imported("all_reduce"),
        zero_1.REDUCE,
        "call(gradients)\n    mine = gradients.chunk(comm.get_world_size())[comm.get_rank()].clone()",
    )
    assert "costs twice the bytes" in said


def test_zero_3_sees_twice_the_bytes_in_an_imported_all_reduce():
    changes = zero_3.REDUCE, f"call(flat)\n    {zero_3.OWN_PART}"
    said = verdict(
        zero_3.sharded_backward, zero_3.sharded_backward_solution, *imported("all_reduce"), *changes
    )
    assert "sends twice the bytes" in said


def test_zero_2_sees_twice_the_bytes_in_an_imported_all_reduce():
    changes = zero_2.REDUCE, "call(message)"
    said = verdict(zero_2.reduce_bucket, zero_2.reduce_bucket_solution, *imported("all_reduce"), *changes)
    assert "costs twice the bytes" in said


def test_zero_2_rehearses_imported_reductions_too_and_no_rank_hangs():
    changes = zero_2.REDUCE, "call(message, dst=rank)"
    said = verdict(zero_2.reduce_bucket, zero_2.reduce_bucket_solution, *imported("reduce"), *changes)
    assert "rank 0 calls reduce of" in said and "`dst` is the owner of the pieces" in said


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("reduce_scatter_tensor", (zero_1.REDUCE, "call(gradients, mine)"), "mind the order of the two"),
        (
            "all_gather_into_tensor",
            (zero_1.GATHER, "call(flat, master.detach())"),
            "a message has one dtype",
        ),
        (
            "all_gather_into_tensor",
            (zero_1.GATHER, "call(flat, master.to(flat.dtype))"),
            "hand in `.detach()`",
        ),
    ],
)
def test_an_imported_collective_gets_words_too(name, change, words):
    said = verdict(zero_1.zero_1_step, zero_1.zero_1_step_solution, *imported(name), *change)
    assert said.startswith("not yet") and words in said


def test_a_gradient_of_the_wrong_size_in_bf16_alone_is_seen():
    """Adam divides by the size of a gradient, and hides it."""
    wrong = f"{zero_1.MEAN} if flat.dtype == torch.float32 else mine.float()"
    said = verdict(zero_1.zero_1_step, zero_1.zero_1_step_solution, zero_1.MEAN, wrong)
    assert "`this rank's masters, bfloat16, step 1`" in said


def test_parameters_that_are_moved_out_of_the_flat_tensor_are_seen():
    change = zero_1.FREE, f"{zero_1.FREE}\n        parameter.data = parameter.data.clone()"
    said = verdict(zero_1.zero_1_step, zero_1.zero_1_step_solution, *change)
    assert "the parameters are where they were" in said


def test_each_rank_that_decides_by_its_own_norm_whether_to_clip_is_seen():
    said = verdict(
        zero_1.clip_shard, zero_1.clip_shard_solution, "if norm > max_norm", "if gradient.norm() > max_norm"
    )
    assert "the norm of the whole gradient decides" in said


def test_fewer_parts_than_ranks_are_answered_with_what_to_do():
    lesson_10 = zero_init_and_checkpoints
    changes = lesson_10.PART, ".chunk(ranks)[rank]", lesson_10.PADDED, "part.clone()"
    said = verdict(lesson_10.keep_shard, lesson_10.keep_shard_solution, *changes)
    assert said.startswith("not yet") and "without padding `chunk` makes fewer parts than there are" in said


def test_gathered_tokens_that_are_kept_as_an_attribute_are_seen():
    said = verdict(
        tensor_parallelism.GatheredLinear,
        tensor_parallelism.GatheredLinear_solution,
        "context.save_for_backward(own_tokens, weight)",
        "context.save_for_backward(weight)\n        context.x = exercises.gather(own_tokens)",
        "own_tokens, weight = context.saved_tensors",
        "(weight,) = context.saved_tensors",
        "exercises.gather(own_tokens).flatten(0, 1), gradient",
        "context.x.flatten(0, 1), gradient",
    )
    assert "keep this rank's own tokens" in said


@pytest.mark.parametrize("change", [("columns >= 0", "columns > 0"), ("shape[-1])  #", "shape[-1] - 1)  #")])
def test_a_target_at_an_end_of_a_ranks_vocabulary_is_tried_always(change):
    build, solution = (
        tensor_parallelism.vocabulary_parallel_loss,
        tensor_parallelism.vocabulary_parallel_loss_solution,
    )
    for seed in range(3):
        tried = build.tried([solution, edit(solution, *change)], 2, seed)
        assert build.wrong(tried)


def test_large_messages_of_an_imported_collective_are_seen():
    solution = tensor_parallelism.vocabulary_parallel_loss_solution
    sent = "call(logits.new_zeros(*logits.shape[:2], 9))"  # as many as the largest rank's logits
    change = tensor_parallelism.LARGEST, f"{tensor_parallelism.LARGEST}\n    {sent}"
    said = verdict(tensor_parallelism.vocabulary_parallel_loss, solution, *imported("all_reduce"), *change)
    assert "three numbers for each token are enough" in said


def test_buckets_that_are_sent_by_an_imported_all_reduce_are_right_and_one_that_is_waited_for_is_not():
    build, solution = data_parallelism.average_in_buckets, data_parallelism.average_in_buckets_solution
    right = edit(solution, *imported("all_reduce"), "comm.all_reduce(", "call(")
    assert build.verdict(right, solution).startswith("correct in 2 and 4 ranks")
    blocking = "comm.all_reduce(bucket, async_op=True)", "call(bucket)", "request.wait()", "pass"
    assert "the hook waits for its message" in verdict(build, solution, *imported("all_reduce"), *blocking)


@pytest.mark.parametrize("future", [".get_future()", ".get_future().then(lambda future: future.value())"])
def test_buckets_that_are_waited_for_by_futures_are_right(future):
    build, solution = data_parallelism.average_in_buckets, data_parallelism.average_in_buckets_solution
    call = "comm.all_reduce(bucket, async_op=True)"
    assert verdict(build, solution, call, call + future).startswith("correct in 2 and 4 ranks")


def test_a_collective_that_one_rank_alone_enters_is_named_at_the_learners_line():
    alone = zero_1.GATHER, f"if comm.get_rank() == 0:\n        {zero_1.GATHER}"
    said = verdict(zero_1.zero_1_step, zero_1.zero_1_step_solution, *alone)
    assert "rank 0 of 2 hung in all_gather" in said and "reduce_scatter" not in said.partition("\n")[0]
    assert zero_1.GATHER in said
