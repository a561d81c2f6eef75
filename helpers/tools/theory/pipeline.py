"""Consecutive layers on consecutive ranks: the bubble, the micro-batches in flight, and a stage's parameters,
activations and bytes sent.

p is the number of stages, m the number of micro-batches of a step; the other symbols are those of
`helpers.tools.theory.layers`.
"""

from __future__ import annotations

from helpers.tools.theory.layers import (
    FP32,
    TOKEN_ID,
    Size,
    block_activation_bytes,
    block_parameters,
    embedding_activation_bytes,
    embedding_parameters,
    head_activation_bytes,
    norm_parameters,
)

SCHEDULES = ("gpipe", "1f1b")


def _check(stages, micro_batches):
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"stages and micro-batches must be at least 1, not {stages!r} and {micro_batches!r}")


def bubble_fraction(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """(p - 1) / (v m + p - 1): the part of all slots in which a rank has nothing to do.

    GPipe and 1F1B alike (Huang et al., arXiv 1811.06965, section 2.3); v > 1 chunks of layers per rank is the
    interleaved schedule.  Megatron-LM gives the same bubble as (p - 1) / (v m), in units of the useful time
    (Narayanan et al., arXiv 2104.04473, section 2.2).
    """
    _check(stages, micro_batches)
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def pipeline_seconds(
    stages: int, micro_batches: int, forward: float, backward: float, chunks: int = 1
) -> float:
    """Seconds of a step whose stages all take as long: m (f + b) of work and the bubble, `bubble_seconds`;
    messages take none (arXiv 2104.04473, section 2.2).

    Args:
        forward, backward: seconds of one micro-batch on one rank, over all its chunks.
        chunks: v, of layers per rank (the interleaved schedule).
    """
    return micro_batches * (forward + backward) + bubble_seconds(
        stages, micro_batches, forward, backward, chunks
    )


def bubble_seconds(
    stages: int, micro_batches: int, forward: float, backward: float, chunks: int = 1
) -> float:
    """(p - 1) (f + b) / v: seconds in which a rank has nothing to do in a step, however many micro-batches
    there are (arXiv 2104.04473, section 2.2).  Arguments as in `pipeline_seconds`."""
    _check(stages, micro_batches)
    return (stages - 1) * (forward + backward) / chunks


def zero_bubble_fraction(
    stages: int, micro_batches: int, forward: float = 1, input_gradient: float = 1, weight_gradient: float = 1
) -> float:
    """(p - 1)(F + I - W) / (m (F + I + W) + (p - 1)(F + I - W)) of the schedule ZB-H1 (Qi et al., arXiv
    2401.10241, section 2.3)."""
    _check(stages, micro_batches)
    bubble = (stages - 1) * (forward + input_gradient - weight_gradient)
    return bubble / (micro_batches * (forward + input_gradient + weight_gradient) + bubble)


def micro_batches_in_flight(stages: int, stage: int, micro_batches: int, schedule: str = "1f1b") -> int:
    """Most micro-batches whose activations a stage, counted from 0, holds at once: m in GPipe, min(p - stage,
    m) in 1F1B (arXiv 2104.04473, section 2.2.1)."""
    _check(stages, micro_batches)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; not {schedule!r}")
    if not 0 <= stage < stages:
        raise ValueError(f"stage must be from 0 to {stages - 1}, not {stage!r}")
    return micro_batches if schedule == "gpipe" else min(stages - stage, micro_batches)


def pipeline_stage_parameters(size: Size, blocks: int, first: bool = False, last: bool = False) -> int:
    """A stage with `blocks` blocks; the first has the embedding too, the last the final norm and a head of
    its own, V h."""
    ends = embedding_parameters(size.vocabulary, size.context, size.width) if first else 0
    if last:
        ends += norm_parameters(size.width) + size.vocabulary * size.width
    return blocks * block_parameters(size.width) + ends


def pipeline_activation_bytes(
    size: Size,
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
    tokens = batch * sequence
    held = blocks * block_activation_bytes(
        batch, sequence, size.width, size.heads, element_bytes, device=device
    )
    if first:
        held += embedding_activation_bytes(sequence) + TOKEN_ID * tokens
    if not last:
        return held + element_bytes * tokens * size.width
    head = head_activation_bytes(batch, sequence, size.width, size.vocabulary, element_bytes, device)
    return held + head + element_bytes * tokens * size.vocabulary + TOKEN_ID * tokens


def pipeline_held_bytes(
    size: Size,
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

    Micro-batches in flight, times what each needs.  The last stage has one in flight but two buffers: the
    scores and targets of the micro-batch before stay in the other one, and so do the step's losses, 4 bytes
    each.
    """
    first, last = stage == 0, stage == stages - 1
    each = pipeline_activation_bytes(size, batch, sequence, element_bytes, blocks, first, last, device)
    held = micro_batches_in_flight(stages, stage, micro_batches) * each
    if last and micro_batches > 1:
        held += batch * sequence * (element_bytes * size.vocabulary + TOKEN_ID) + FP32 * (micro_batches - 1)
    return held


def pipeline_wire_bytes(
    batch: int,
    sequence: int,
    width: int,
    element_bytes: int,
    micro_batches: int,
    first: bool = False,
    last: bool = False,
) -> int:
    """Bytes that a stage sends in a step: e s b h of activations to the next, and as much of gradients to the
    one before, m times."""
    neighbours = (not first) + (not last)
    return neighbours * micro_batches * element_bytes * batch * sequence * width
