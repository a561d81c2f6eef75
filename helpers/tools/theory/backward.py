"""The backward pass of a Llama in bf16 on a GPU, operation by operation: what each makes, and what it frees.

The operations are those of torch 2.13's autograd for transformers 5; `levels` adds what DeepSpeed does with
each gradient (`reducing`).  Symbols are those of `layers` and `llama`; sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from .layers import (
    BF16,
    FP32,
    TOKEN_ID,
    activation_parts,
    checkpointed_activation_bytes,
    elements,
    gpt_activation_bytes,
    tensors,
)
from .llama import LlamaSize
from .model_states import MOMENTS, deepspeed_bytes, fullest_rank, step_peak_bytes
from .reducing import Reducer
from .zero_config import ZeroConfig


class Operation(NamedTuple):
    """Of a backward pass, with bytes of tensors beside the gradient of a parameter."""

    name: str
    most: int  # that it adds while it runs
    left: int  # that it adds in the end; what it frees counts as negative
    gradient: int | None = None  # the parameter whose gradient it makes, by its place in the model


def norm_operations(name: str, unit: int, deviations: int, place: int) -> list[Operation]:
    """Of an RMSNorm that has normalised `unit` bytes in bf16: most of it is in fp32, twice as large.

    The second operation has the input, the two terms of its gradient and three powers of the deviations, each
    spread out to the size of the input, beside its argument in bf16, which is counted already.
    """
    return [
        Operation(f"{name}, weight", 2 * unit, -unit, place),
        Operation(f"{name}, input", 9 * unit - deviations, -2 * unit - deviations),
    ]


def block_operations(size: LlamaSize, batch: int, sequence: int, first: int) -> list[Operation]:
    """Of a block whose parameters begin at the place `first`; its result's gradient is there already, and in
    the end its input's is, of the same size."""
    tokens = batch * sequence
    U, F = BF16 * tokens * size.width, BF16 * tokens * size.feed_forward
    Q, K = BF16 * tokens * size.attention_width, BF16 * tokens * size.kv_width
    q, k, v, o, *of_heads, gate, up, down, before, behind = range(first, first + len(tensors(size)["block"]))
    norm_q, norm_k = [], []
    if size.qk_norm:
        norm_q = norm_operations("norm of queries", Q, FP32 * tokens * size.heads, of_heads[0])
        norm_k = norm_operations("norm of keys", K, FP32 * tokens * size.kv_heads, of_heads[1])
    return [
        Operation("down", F, 0, down),
        Operation("product of gate and up", 2 * F, -F),
        Operation("up", U, U - F, up),
        Operation("silu", F, -F),
        Operation("gate", U, -F, gate),
        Operation("sum of both", U, -U),
        *norm_operations("norm behind attention", U, FP32 * tokens, behind),
        Operation("residual", U, -U),
        Operation("output of attention", Q, Q, o),
        Operation("attention", Q + 2 * K, -2 * Q - FP32 * tokens * size.heads - 16),
        Operation("rotation of keys", 3 * K, 0),
        Operation("rotation of queries", 3 * Q, 0),
        Operation("values", U, U - K, v),
        *norm_k,
        Operation("keys, in order", K, 0),
        Operation("keys", U, U - K, k),
        Operation("sum of both", U, -U),
        *norm_q,
        Operation("queries, in order", Q, 0),
        Operation("queries", U, -Q, q),
        Operation("sum of both", U, -U),
        *norm_operations("norm before attention", U, FP32 * tokens, before),
        Operation("residual", U, -U),
    ]


def backward_operations(
    size: LlamaSize, batch: int, sequence: int, checkpointed: bool = False
) -> list[Operation]:
    """Of the whole pass, from the loss, at which everything is there that the forward pass kept."""
    parts, tokens = activation_parts(size, batch, sequence, BF16, device="cuda"), batch * sequence
    U, logits, each = BF16 * tokens * size.width, FP32 * tokens * size.vocabulary, len(tensors(size)["block"])
    table, head = BF16 * size.vocabulary * size.width, 1 + size.layers * each
    ids = TOKEN_ID * tokens  # of the input, and as many labels
    tape = [
        Operation("loss", 2 * logits - ids, -ids),
        Operation("logits in bf16", logits // 2, -logits // 2),
    ]
    # a tied head's gradient waits for the embedding's
    waits = table if size.tied else 0
    tape.append(Operation("head", U + waits, waits - logits // 2, None if size.tied else head + 1))
    tape += norm_operations("last norm", U, FP32 * tokens, head)
    for layer in reversed(range(size.layers)):
        if checkpointed:
            tape.append(Operation("forward again", parts["block"] + U, parts["block"]))
        tape += block_operations(size, batch, sequence, 1 + layer * each)
        if checkpointed:
            tape.append(Operation("its input", 0, -U))
    tape.append(Operation("rotations", 0, -parts["embedding"] - (parts["arguments"] if checkpointed else 0)))
    if not size.tied:
        return [*tape, Operation("embedding", 0, -U - ids, 0)]
    # its gradient and the head's, and their sum
    return [*tape, Operation("embedding", table, table - U - ids), Operation("tied", 0, -2 * table, 0)]


def levels(tape: Iterable[Operation], reducer: Reducer) -> Iterator[tuple[str, int]]:
    """(name of an operation, the most bytes while it runs beyond those at the pass's start), with what
    DeepSpeed does when a gradient is there; in the end ("reduced", ...), what it does when all are."""
    held = 0
    for operation in tape:
        gradient, changes = 0, iter(())
        if operation.gradient is not None:
            gradient, changes = BF16 * reducer.elements[operation.gradient], reducer.taken(operation.gradient)
        most = held + gradient + operation.most
        held += gradient + operation.left
        for change in changes:
            held += change
            most = max(most, held)
        yield operation.name, most
    yield "reduced", max(accumulate(reducer.ended(), initial=held))


def llama_moments(
    size: LlamaSize,
    batch: int,
    sequence: int,
    config: ZeroConfig | dict,
    *,
    ranks: int = 1,
    rank: int | None = None,
    checkpointed: bool = False,
    micro_batches: int = 1,
    fused: bool = True,
) -> dict[str, dict[str, int]]:
    """The highest moments of a step on a GPU, {"loss", "backward", "step": {category: bytes}}, trained in
    bf16 with torch's AdamW and DeepSpeed's defaults: states by `deepspeed_bytes`, and as activations all that
    the pass makes.

    At stages 0 to 2 within 4 bytes of rehearsals, a number of the loss that some moments do not have any more.
    Of several micro-batches the first, one in the middle, and the last may be highest.

    Args:
        rank: by default the `fullest_rank`.
        fused: whether Adam is torch's fused one.
    """
    config, counts = ZeroConfig.of(config), elements(size)
    rank = fullest_rank(counts, ranks) if rank is None else rank
    frequencies = 2 * FP32 * size.head_width // 2  # of the rotations, which transformers keeps twice
    job = {"ranks": ranks, "rank": rank, "device": "cuda", "fused": fused}
    kept_by = checkpointed_activation_bytes if checkpointed else gpt_activation_bytes
    # beside token ids the loss's gradient and, as it is scaled, another number
    kept = kept_by(size, batch, sequence, BF16, device="cuda") + TOKEN_ID * batch * sequence
    kept += FP32 * (2 if config.stage else 1)
    tape, found = backward_operations(size, batch, sequence, checkpointed), {"loss": {}, "backward": {}}
    for index in {0, min(1, micro_batches - 1), micro_batches - 1}:
        reducer = Reducer(counts, config, ranks, rank, index > 0, index == micro_batches - 1)
        states = deepspeed_bytes(counts, config, moment=MOMENTS[index > 0], **job)
        states["buffers"] += frequencies
        (_, loss), *others = levels(tape, reducer)
        for moment, most in {"loss": loss, "backward": max(most for _, most in others)}.items():
            held = states | {"activations": kept + most}
            found[moment] = max(found[moment], held, key=lambda sizes: sum(sizes.values()))
    step = deepspeed_bytes(counts, config, moment="after backward", **job)
    step["other"] += step_peak_bytes(counts, config, **job) - sum(step.values())
    step["buffers"] += frequencies
    return found | {"step": step}
