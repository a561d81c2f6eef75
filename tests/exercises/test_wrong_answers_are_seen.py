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
from helpers.course.exercises.in_ranks import names_apart
from tests.exercises.course import solutions, tried

pytestmark = pytest.mark.ranks

IMPORTS = "import deepspeed.comm as comm\n"
MEAN, REDUCE = "mine.float() / comm.get_world_size()", "comm.reduce_scatter_tensor(mine, gradients)"
SUM, OWN_PART = (
    "comm.reduce_scatter_tensor(mine, flat)",
    "mine = flat.chunk(sharded.ranks)[comm.get_rank()].clone()",
)
PART, PADDED = "[rank * size : (rank + 1) * size]", "torch.nn.functional.pad(part, (0, size - len(part)))"
LARGEST = "dist.all_reduce(largest, op=dist.ReduceOp.MAX)"
GATHER = "comm.all_gather_into_tensor(flat, master.detach().to(flat.dtype))"


def verdict(build, solution, *changes):
    return build.verdict(edit(solution, *changes, names=build.names))


def imported(name):
    """The change that gives a collective a name of the function's own, which is not looked up again."""
    return IMPORTS, f"{IMPORTS}    from torch.distributed import {name} as call\n"


def test_zero_1_sees_twice_the_bytes_in_an_imported_all_reduce():
    said = verdict(
        zero_1.reduce_to_owner,
        solutions()["07-reduce_to_owner"],
        *imported("all_reduce"),
        REDUCE,
        "call(gradients)\n    mine = gradients.chunk(comm.get_world_size())[comm.get_rank()].clone()",
    )
    assert "costs twice the bytes" in said


def test_zero_3_sees_twice_the_bytes_in_an_imported_all_reduce():
    changes = SUM, f"call(flat)\n    {OWN_PART}"
    said = verdict(
        zero_3.sharded_backward, solutions()["09-sharded_backward"], *imported("all_reduce"), *changes
    )
    assert "sends twice the bytes" in said


def test_zero_2_sees_twice_the_bytes_in_an_imported_all_reduce():
    changes = "comm.reduce(message, dst=owner)", "call(message)"
    said = verdict(
        zero_2.reduce_to_owners, solutions()["08-reduce_to_owners"], *imported("all_reduce"), *changes
    )
    assert "costs twice the bytes" in said


def test_zero_2_rehearses_imported_reductions_too_and_no_rank_hangs():
    changes = "comm.reduce(message, dst=owner)", "call(message, dst=rank)"
    said = verdict(zero_2.reduce_to_owners, solutions()["08-reduce_to_owners"], *imported("reduce"), *changes)
    assert "rank 0 calls reduce of" in said and "`dst` is the owner of the pieces" in said


@pytest.mark.parametrize(
    ("rung", "name", "change", "words"),
    [
        (
            "reduce_to_owner",
            "reduce_scatter_tensor",
            (REDUCE, "call(gradients, mine)"),
            "mind the order of the two",
        ),
        (
            "step_and_gather",
            "all_gather_into_tensor",
            (GATHER, "call(flat, master.detach())"),
            "a message has one dtype",
        ),
        (
            "step_and_gather",
            "all_gather_into_tensor",
            (GATHER, "call(flat, master.to(flat.dtype))"),
            "hand in `.detach()`",
        ),
    ],
)
def test_an_imported_collective_gets_words_too(rung, name, change, words):
    said = verdict(getattr(zero_1, rung), solutions()[f"07-{rung}"], *imported(name), *change)
    assert said.startswith("not yet") and words in said


def test_a_gradient_of_the_wrong_size_in_bf16_alone_is_seen():
    """Adam divides by the size of a gradient, and hides it."""
    wrong = f"{MEAN} if flat.dtype == torch.float32 else mine.float()"
    said = verdict(zero_1.reduce_to_owner, solutions()["07-reduce_to_owner"], MEAN, wrong)
    assert "`this rank's gradient, bfloat16`" in said


def test_parameters_that_are_moved_out_of_the_flat_tensor_are_seen():
    free = "parameter.grad = None"
    change = free, f"{free}\n        parameter.data = parameter.data.clone()"
    said = verdict(zero_1.zero_1_step, solutions()["07-zero_1_step"], *change)
    assert "the parameters are where they were" in said


def test_each_rank_that_decides_by_its_own_norm_whether_to_clip_is_seen():
    said = verdict(
        zero_1.clip_shard, solutions()["07-clip_shard"], "if norm > max_norm", "if gradient.norm() > max_norm"
    )
    assert "the norm of the whole gradient decides" in said


def test_fewer_parts_than_ranks_are_answered_with_what_to_do():
    lesson_10 = zero_init_and_checkpoints
    changes = PART, ".chunk(ranks)[rank]", PADDED, "part.clone()"
    said = verdict(lesson_10.keep_shard, solutions()["10-keep_shard"], *changes)
    assert said.startswith("not yet") and "without padding `chunk` makes fewer parts than there are" in said


def test_gathered_tokens_that_are_kept_as_an_attribute_are_seen():
    said = verdict(
        tensor_parallelism.GatheredLinear,
        solutions()["05-GatheredLinear"],
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
        solutions()["05-vocabulary_parallel_loss"],
    )
    for seed in range(3):
        by_rank = tried(build, [solution, edit(solution, *change)], 2, seed)
        assert all(names_apart(right, wrong, 1e-5) for right, wrong in by_rank)


def test_large_messages_of_an_imported_collective_are_seen():
    solution = solutions()["05-vocabulary_parallel_loss"]
    sent = "call(logits.new_zeros(*logits.shape[:2], 9))"  # as many as the largest rank's logits
    line = "import torch.distributed as dist\n"
    named = line, f"{line}    from torch.distributed import all_reduce as call\n"
    change = LARGEST, f"{LARGEST}\n    {sent}"
    said = verdict(tensor_parallelism.vocabulary_parallel_loss, solution, *named, *change)
    assert "three numbers for each token are enough" in said


def test_a_message_of_an_imported_all_reduce_is_right_and_one_that_is_waited_for_is_not():
    build, solution = data_parallelism.start, solutions()["04-start"]
    line = "import torch.distributed as dist\n"
    named = line, f"{line}    from torch.distributed import all_reduce as call\n"
    right = edit(solution, *named, "dist.all_reduce(", "call(")
    assert build.verdict(right).startswith("correct in 2 and 4 ranks")
    blocking = "dist.all_reduce(bucket, async_op=True)", "call(bucket)", "request.wait()", "pass"
    assert "stood still" in verdict(build, solution, *named, *blocking)


@pytest.mark.parametrize("future", [".get_future()", ".get_future().then(lambda future: future.value())"])
def test_a_message_that_is_waited_for_by_a_future_is_right(future):
    build, solution = data_parallelism.start, solutions()["04-start"]
    call = "dist.all_reduce(bucket, async_op=True)"
    assert verdict(build, solution, call, call + future).startswith("correct in 2 and 4 ranks")


def test_the_gradients_that_replicas_leave_are_judged():
    """They are noted as they are then: the next step's zeros are not written over them."""
    build, solution = data_parallelism.replicas, solutions()["04-replicas"]
    end = "            under_way.pop(0)()\n"
    loop = "        for one in model.parameters():\n            one.grad is None or one.grad.mul_(2)\n"
    assert "the gradient of" in verdict(build, solution, end, end + loop)


def test_a_collective_that_one_rank_alone_enters_is_named_at_the_learners_line():
    alone = GATHER, f"if comm.get_rank() == 0:\n        {GATHER}"
    said = verdict(zero_1.step_and_gather, solutions()["07-step_and_gather"], *alone)
    assert "rank 0 of 2 hung in all_gather" in said and "reduce_scatter" not in said.partition("\n")[0]
    assert GATHER in said
