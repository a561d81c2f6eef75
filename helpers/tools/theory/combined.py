"""Several kinds of parallelism in one job: the coordinates of a rank, the groups along each axis, what they
send over a cable, what a rank holds.

Axes are a dict {name: size} from the outermost to the innermost: along the last one, neighbours in the group
have consecutive ranks.  So DeepSpeed's `ProcessTopology(axes=list(axes), dims=list(axes.values()))` and
torch's `init_device_mesh` count ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..whole import whole
from .communication import wire_bytes, zero_wire_bytes
from .gpt_size import GPTSize, of_gpts
from .layers import (
    FP32,
    TOKEN_ID,
    embedding_activation_bytes,
    gpt_parameters,
    head_activation_bytes,
)
from .pipeline import micro_batches_in_flight, pipeline_held_bytes
from .tensor_parallel import (
    tensor_parallel_block_activation_bytes,
    tensor_parallel_wire_bytes,
)


def coordinates(rank: int, axes: dict[str, int]) -> dict[str, int]:
    """Where a rank stands on each axis."""
    whole(rank, "a rank of these axes", 0, prod(axes.values()) - 1)
    return dict(zip(axes, map(int, np.unravel_index(rank, tuple(axes.values())))))


def groups_along(name: str, axes: dict[str, int]) -> list[list[int]]:
    """The groups of ranks that differ in one coordinate alone, each in the order of that coordinate."""
    if name not in axes:
        raise ValueError(f"there is no axis {name!r}: there are {', '.join(axes)}")
    ranks = np.arange(prod(axes.values())).reshape(tuple(axes.values()))
    return np.moveaxis(ranks, list(axes).index(name), -1).reshape(-1, axes[name]).tolist()


def cable_bytes(groups: Sequence[Sequence[int]], sent: float, each: int, line: bool = False) -> float:
    """Bytes of a step that leave a machine of `each` neighbouring ranks, all machines together, where a rank
    sends `sent` bytes to its neighbour in one of the groups (`groups_along`).

    Collectives go round a ring in the order of the group (Patarasuk and Yuan, 2009).  A pipeline is a `line`,
    along which neighbours send in both directions.
    """
    crossings = 0
    for group in groups:
        pairs = list(zip(group, group[1:]))
        pairs += [(there, here) for here, there in pairs] if line else [(group[-1], group[0])]
        crossings += sum(here // each != there // each for here, there in pairs)
    return crossings * sent


def sent_by_axis(
    axes: dict[str, int],
    size: GPTSize,
    batch: int,
    sequence: int,
    micro_batches: int,
    element_bytes: int,
    elements: float | None = None,
    whole_buckets: bool = False,
) -> dict[str, float]:
    """Bytes that a rank sends to a neighbour along each axis in a step, the mean over the stages; ZeRO-1
    along "data" (`zero_wire_bytes`).

    With m micro-batches of each replica DeepSpeed's pipeline sends m e b s h / t bytes from rank to rank in
    each direction, since each of t ranks sends its part (`pipe_partitioned`).  Parts are gathered three times
    for each of p - 1 boundaries: the activation on the next stage, on this one the output and its gradient.
    The blocks' four all-reduces are those of `tensor_parallel_wire_bytes`.

    Args:
        axes: {"pipe": p, "data": d, "model": t}, in any order.
        batch, sequence: of a micro-batch.
        micro_batches: of a step, those of all replicas together.
        elements: parameters on a rank; by default an equal part of the model's.
    """
    p, d, t = (axes[name] for name in ("pipe", "data", "model"))
    m, activation = micro_batches / d, element_bytes * batch * sequence * size.width
    elements = gpt_parameters(size) / (p * t) if elements is None else elements
    sums = tensor_parallel_wire_bytes(batch, sequence, size.width, size.layers, element_bytes, t)
    gathers = 3 * (p - 1) * wire_bytes("all_gather", activation, t)
    zero = zero_wire_bytes(elements, d, stage=1, element_bytes=element_bytes, whole_buckets=whole_buckets)
    return {"pipe": m * activation / t, "data": zero, "model": m * (sums + gathers) / p}


@of_gpts
def tensor_pipeline_held_bytes(
    size: GPTSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    blocks: int,
    stages: int,
    stage: int,
    micro_batches: int,
    ranks: int,
    device: str = "cpu",
) -> int:
    """Most bytes of activations and inputs that a rank holds at once under DeepSpeed's 1F1B where each stage
    is shared by t = `ranks` tensor-parallel ranks; with t = 1 it is `pipeline_held_bytes`, and outputs stay.

    A stage's output does not stay: the engine keeps 1/t of it to send (`pipe_partitioned`; that copy, what is
    received and a few lengths are counted as "other" by the ledger) and empties the tensor itself.  The last
    stage gathers what it receives, and the e b s h of the micro-batch before stay in its second buffer,
    beside scores and targets.
    """
    if ranks == 1:
        where = blocks, stages, stage, micro_batches
        return pipeline_held_bytes(size, batch, sequence, element_bytes, *where, device)
    shape, tokens = (batch, sequence, size.width), batch * sequence
    first, last = stage == 0, stage == stages - 1
    block = tensor_parallel_block_activation_bytes(*shape, size.heads, element_bytes, ranks, device)
    each = blocks * block
    if first:
        each += embedding_activation_bytes(sequence) + TOKEN_ID * tokens
    again = element_bytes * tokens * size.vocabulary + TOKEN_ID * tokens  # scores and targets
    if last:
        each += head_activation_bytes(*shape, size.vocabulary, element_bytes, device) + again
    held = micro_batches_in_flight(stages, stage, micro_batches) * each
    if last and micro_batches > 1:
        held += again + FP32 * (micro_batches - 1) + (0 if first else element_bytes * tokens * size.width)
    return held
