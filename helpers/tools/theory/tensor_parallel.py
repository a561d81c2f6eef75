"""One layer on several ranks: parameters, activations and bytes sent under tensor parallelism.

Megatron-LM's division (Shoeybi et al., arXiv 1909.08053, section 3): query-key-value and the feed-forward's
first map by rows (their outputs), attention's output and the feed-forward's second map by columns (their
inputs).  Norms, and the biases of the second kind, are whole on every rank.  t is the number of
tensor-parallel ranks; the other symbols are those of `helpers.tools.theory.layers`.
"""

from __future__ import annotations

from ..whole import shared, whole
from .communication import collective_seconds, wire_bytes
from .gpt_size import GPTSize, of_gpts
from .layers import (
    block_activation_bytes,
    embedding_activation_bytes,
    head_activation_bytes,
    norm_activation_bytes,
    random_state_bytes,
)
from .roofline import MachineConstants, matrix_seconds
from .step_counts import ADD, BIASES, GELU, NORM, VIEW
from .zero_config import ELEMENT_BYTES

RING_STEP = 3.4e-6  # seconds per further message of a ring over NVLink: NCCL's own model, src/graph/tuning.cc


def tensor_parallel_block_parameters(width: int, ranks: int) -> int:
    """(12 h^2 + 7 h) / t + 6 h: matrices and biases of divided outputs; norms and two biases are whole."""
    shared(ranks, channels=width)
    return (12 * width**2 + 7 * width) // ranks + 6 * width


@of_gpts
def tensor_parallel_parameters(size: GPTSize, ranks: int, vocabulary_parallel: bool = False) -> int:
    """L blocks, the final norm's 2 h, s h positions, and V h (or V h / t) for the tied token table."""
    table = size.vocabulary * size.width // (ranks if vocabulary_parallel else 1)
    blocks = size.layers * tensor_parallel_block_parameters(size.width, ranks)
    return table + (size.context + 2) * size.width + blocks


def tensor_parallel_block_activation_bytes(
    batch: int, sequence: int, width: int, heads: int, element_bytes: int, ranks: int, device: str = "cpu"
) -> int:
    """e s b h (4 + 12 / t) + 4 e s b + 4 a s b / t: what one rank keeps of a block (Korthikanti et al., arXiv
    2205.05198, equation 2, without dropout and with the fused kernel).

    The inputs of the norms and of the divided maps are whole; q, k, v, attention's result and the
    feed-forward's two wide tensors are divided.
    """
    shape, whole_input = (batch, sequence, width), element_bytes * batch * sequence * width
    norms = 2 * norm_activation_bytes(*shape, element_bytes, device)
    block = block_activation_bytes(*shape, heads, element_bytes, device=device)
    random_state = random_state_bytes(element_bytes, device)
    divided = (block - random_state - norms - 2 * whole_input) // ranks
    return norms + 2 * whole_input + divided + random_state


def sequence_parallel_block_activation_bytes(
    batch: int, sequence: int, width: int, heads: int, element_bytes: int, ranks: int, device: str = "cpu"
) -> int:
    """(16 e s b h + 4 e s b + 4 a s b) / t: what one rank keeps of a block with tensor and sequence
    parallelism together, for a sequence that is a multiple of t.

    Norms and residual additions work on s / t tokens, and a sharded matrix keeps the rank's own tokens of its
    input, which it gathers again in the backward pass (Korthikanti et al., section 4.2.2).
    """
    shared(ranks, tokens=sequence)
    random_state = random_state_bytes(element_bytes, device)
    block = block_activation_bytes(batch, sequence, width, heads, element_bytes, device=device)
    return (block - random_state) // ranks + random_state


@of_gpts
def tensor_parallel_activation_bytes(
    size: GPTSize, batch: int, sequence: int, element_bytes: int, ranks: int, device: str = "cpu"
) -> int:
    """Bytes that one rank keeps of a GPT whose embedding and head are not divided."""
    shape = batch, sequence, size.width
    block = tensor_parallel_block_activation_bytes(*shape, size.heads, element_bytes, ranks, device)
    head = head_activation_bytes(*shape, size.vocabulary, element_bytes, device)
    return embedding_activation_bytes(sequence) + size.layers * block + head


def tensor_parallel_wire_bytes(
    batch: int, sequence: int, width: int, layers: int, element_bytes: int, ranks: int, all_reduces: int = 4
) -> float:
    """Bytes that a rank sends per forward and backward pass: in each block `all_reduces` of e b s h bytes,
    Megatron-LM's two forward and two backward (arXiv 1909.08053, section 3, figure 4)."""
    return layers * all_reduces * wire_bytes("all_reduce", element_bytes * batch * sequence * width, ranks)


def block_messages(sequence_parallel: bool = False, checkpointed: bool = False) -> dict[str, int]:
    """Collectives of a tensor-parallel block in a forward and a backward pass, {collective: number}; each is
    of e b s h bytes.

    Four all-reduces, two in each pass (arXiv 1909.08053, section 3), two more if the block is `checkpointed`
    and runs forward again.  With sequence parallelism (arXiv 2205.05198, section 4.2.2) each is an all-gather
    and a reduce-scatter, which send as much together; and since the inputs of two sharded products are kept
    in parts, the backward pass gathers them once more: 10 halves in the place of 8, 5/4 of the bytes.
    """
    reduces = 6 if checkpointed else 4
    if not sequence_parallel:
        return {"all_reduce": reduces}
    return {"all_gather": reduces + 2, "reduce_scatter": reduces}


def tensor_parallel_block_seconds(
    batch: int,
    sequence: int,
    width: int,
    ranks: int,
    machine: MachineConstants,
    dtype: str = "bf16",
    sequence_parallel: bool = False,
) -> dict[str, float]:
    """What the time of a block consists of on each of t ranks, forward and backward, by the constants of a
    machine, without the host's: {part: seconds}.

    The products of Megatron-LM's parts (arXiv 1909.08053, section 3), each on the roofline of its own shape;
    what else a block reads and writes, as in `step_counts`: of 63 U, 24 are norms, residual additions and the
    gradients of two biases, which every rank repeats, or with sequence parallelism does for its own tokens;
    and messages, those of `block_messages`, of which nothing is hidden.  Each costs two latencies, as was
    measured between two ranks, `RING_STEP` for each further message of its ring, and its bytes at the
    bandwidth between two ranks: for more than two ranks, a forecast.
    """
    for name, number in {"batch": batch, "sequence": sequence, "width": width, "ranks": ranks}.items():
        whole(number, name)
    machine.check_bandwidth(ranks)
    tokens, h, unit = batch * sequence, width, ELEMENT_BYTES[dtype] * batch * sequence * width
    shapes = ((h, 3 * h // ranks), (h // ranks, h), (h, 4 * h // ranks), (4 * h // ranks, h))
    products = sum(matrix_seconds(tokens, inner, columns, machine, dtype) for inner, columns in shapes)
    scores = 2 * batch * sequence**2 * h / ranks / machine.attention_rate(dtype)
    # the gradients of the biases that are added after a sum, 2, are every rank's too
    replicated = 2 + sum(2 * NORM[name] + 2 * ADD[name] for name in NORM)
    sharded = sum(GELU[name] + VIEW[name] + BIASES[name] for name in NORM) - 2
    if sequence_parallel:
        sharded, replicated = sharded + replicated, 0
    messages = 0.0
    for collective, number in block_messages(sequence_parallel).items() if ranks > 1 else ():
        further = RING_STEP * (ranks - 2) * (2 if collective == "all_reduce" else 1)
        travel = collective_seconds(collective, unit, ranks, 0.0, machine.bandwidth)
        messages += number * (2 * machine.latency + further + travel)
    return {
        "matrix products": 3 * products,
        "attention": 3.5 * scores,
        "elementwise, sharded": sharded * unit / ranks / machine.memory,
        "elementwise, replicated": replicated * unit / machine.memory,
        "messages": messages,
    }
