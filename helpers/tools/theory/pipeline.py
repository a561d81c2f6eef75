"""Consecutive layers on consecutive ranks: the bubble, the micro-batches in flight, and a stage's parameters,
activations and bytes sent.

p is the number of stages, m the number of micro-batches of a step; the other symbols are those of
`helpers.tools.theory.layers`.
"""

from __future__ import annotations

from ..whole import check_choice, whole
from .gpt_size import GPTSize, of_gpts
from .layers import (
    FP32,
    TOKEN_ID,
    block_activation_bytes,
    block_parameters,
    embedding_activation_bytes,
    embedding_parameters,
    head_activation_bytes,
    norm_parameters,
)


def bubble_fraction(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """(p - 1) / (v m + p - 1): the part of all slots in which a rank has nothing to do, in GPipe and 1F1B
    (Huang et al., arXiv 1811.06965, section 2.3); v > 1 chunks of layers per rank is the interleaved
    schedule.  In units of the useful time it is (p - 1) / (v m) (arXiv 2104.04473, section 2.2)."""
    whole(stages, "stages")
    whole(micro_batches, "micro-batches")
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def pipeline_seconds(
    stages: int, micro_batches: int, forward: float, backward: float, chunks: int = 1
) -> float:
    """Seconds of a step whose stages all take as long: m (f + b) of work, and a bubble of (p - 1) (f + b) / v
    however many micro-batches there are; messages take none (arXiv 2104.04473, section 2.2).  A micro-batch
    takes f and b on one rank, over all its v chunks."""
    whole(stages, "stages")
    whole(micro_batches, "micro-batches")
    return micro_batches * (forward + backward) + (stages - 1) * (forward + backward) / chunks


def zero_bubble_fraction(stages: int, micro_batches: int) -> float:
    """(p - 1) / (3 m + p - 1): `bubble_fraction` of the schedule ZB-H1 (Qi et al., arXiv 2401.10241, section
    2.3) where a forward pass, its input's gradient and its weights' gradients take equally long."""
    return bubble_fraction(stages, micro_batches, 3)


def micro_batches_in_flight(stages: int, stage: int, micro_batches: int, schedule: str = "1f1b") -> int:
    """Most micro-batches whose activations a stage, counted from 0, holds at once: m in GPipe, min(p - stage,
    m) in 1F1B (arXiv 2104.04473, section 2.2.1)."""
    whole(stages, "stages")
    whole(micro_batches, "micro-batches")
    whole(stage, "stage", 0, stages - 1)
    check_choice("schedule", schedule, ("gpipe", "1f1b"))
    return micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)


@of_gpts
def pipeline_stage_parameters(size: GPTSize, blocks: int, first: bool = False, last: bool = False) -> int:
    """Of so many blocks; the first stage has the embedding too, the last a norm and its own head, V h."""
    ends = embedding_parameters(size.vocabulary, size.context, size.width) if first else 0
    if last:
        ends += norm_parameters(size.width) + size.vocabulary * size.width
    return blocks * block_parameters(size.width) + ends


@of_gpts
def pipeline_activation_bytes(
    size: GPTSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    blocks: int,
    first: bool = False,
    last: bool = False,
    device: str = "cpu",
) -> int:
    """Bytes that DeepSpeed's pipeline keeps on a stage for each micro-batch in flight, its input counted.

    The blocks' activations, and the stage's output until its gradient arrives: e s b h, or e s b V scores on
    the last stage.  The first stage's input is 8 s b of token ids, and the last has 8 s b of targets; what
    any other has received is its first block's input.
    """
    shape, tokens = (batch, sequence, size.width), batch * sequence
    held = blocks * block_activation_bytes(*shape, size.heads, element_bytes, device=device)
    if first:
        held += embedding_activation_bytes(sequence) + TOKEN_ID * tokens
    if not last:
        return held + element_bytes * tokens * size.width
    head = head_activation_bytes(*shape, size.vocabulary, element_bytes, device)
    return held + head + element_bytes * tokens * size.vocabulary + TOKEN_ID * tokens


@of_gpts
def pipeline_held_bytes(
    size: GPTSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    blocks: int,
    stages: int,
    stage: int,
    micro_batches: int,
    device: str = "cpu",
) -> int:
    """Most bytes of activations and inputs that a stage holds at once under DeepSpeed's 1F1B.

    The last stage has one micro-batch in flight but two buffers: the scores and targets of the one before
    stay in the other buffer, and so do the step's losses, 4 bytes each.
    """
    first, last = stage == 0, stage == stages - 1
    each = pipeline_activation_bytes(size, batch, sequence, element_bytes, blocks, first, last, device)
    held = micro_batches_in_flight(stages, stage, micro_batches) * each
    if last and micro_batches > 1:
        held += batch * sequence * (element_bytes * size.vocabulary + TOKEN_ID) + FP32 * (micro_batches - 1)
    return held


def pipeline_wire_bytes(activation_bytes: int, micro_batches: int, first: bool, last: bool) -> int:
    """Bytes that a stage sends in a step: m activations, e s b h bytes each, to the next stage, and as many
    gradients to the one before."""
    return ((not first) + (not last)) * micro_batches * activation_bytes
