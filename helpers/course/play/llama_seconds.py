"""Seconds of the job's passes on a GPU: `theory`'s products and attention by the constants of an H100; norms,
rotations and the loss take the time for each token that two rehearsed plans took."""

from __future__ import annotations

from functools import cache

from helpers import theory
from helpers.course.job.plans import BUCKET
from helpers.course.job.reference import MODELS, SEQUENCE, SEQUENCES
from helpers.course.job.stored import stored

SIZE = theory.LlamaSize.of(MODELS["8 B"])
COUNTS = theory.elements(SIZE)
MACHINE = theory.MACHINES["H100 80GB"]
TOKENS = SEQUENCES * SEQUENCE  # of a step, on all GPUs


@cache
def configured(stage: int, sums: str) -> theory.ZeroConfig:
    """DeepSpeed's configuration; a ValueError where it refuses it."""
    return theory.ZeroConfig(
        stage=stage, grad_accum_dtype=sums, reduce_bucket_size=BUCKET, overlap_comm=False
    )


@cache
def passes(tokens: int, sequence: int, all_again: bool) -> tuple[float, float]:
    """Seconds of both passes of a micro-batch, and what computing all blocks again adds; their last product
    is computed again only at stage 3."""
    h, inner, kv, f = SIZE.width, SIZE.attention_width, SIZE.kv_width, SIZE.feed_forward
    shapes = ((h, inner), (h, kv), (h, kv), (inner, h), (h, f), (h, f), (f, h))
    products = [theory.matrix_seconds(tokens, *shape, MACHINE) for shape in shapes]
    scores = 2 * tokens * sequence * inner / MACHINE.attention_rate("bf16", sequence * SIZE.head_width)
    repeated = sum(products if all_again else products[:-1]) + scores
    once = SIZE.layers * (3 * sum(products) + 3.5 * scores)  # backward: twice, and of attention 2.5 times
    once += 3 * theory.matrix_seconds(tokens, h, SIZE.vocabulary, MACHINE)
    all_else = elementwise("stage 1, not checkpointed")
    return once + tokens * all_else, SIZE.layers * repeated + tokens * (elementwise("stage 1") - all_else)


@cache
def elementwise(plan: str) -> float:
    """Seconds for each token of a GPU, of all that is no product, no attention and no copy of gradients, in a
    rehearsed plan of the job at stage 1 on 8 GPUs."""
    told, step = stored(plan), configured(1, "bf16")
    gpus, times = told["gpus"], told["config"]["gradient_accumulation_steps"]
    moved = sum(theory.gradient_copy_bytes(sum(COUNTS), step, gpus, times).values())
    moved += theory.optimizer_bytes(sum(COUNTS), step, gpus, fused=True)
    return (told["seconds"]["fastest"]["elementwise"] - moved / MACHINE.memory) * gpus / TOKENS
