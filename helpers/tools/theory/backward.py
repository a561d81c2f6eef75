"""The backward pass of a Llama in bf16 on a GPU, operation by operation: what each makes, and what it frees.

The operations are those of torch 2.13's autograd for transformers 5; `levels` adds what DeepSpeed does with
each gradient (`reducing`).  Symbols are those of `layers` and `llama`; sizes are bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from .gathering import Gatherer
from .layers import (
    BF16,
    FP32,
    TOKEN_ID,
    activation_parts,
    checkpointed_activation_bytes,
    elements,
    gpt_activation_bytes,
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


class Visit(NamedTuple):
    """A module begins, or ends: ZeRO-3 gathers its parameter, by its place in the model, or releases it."""

    place: int | None
    begins: bool = True


def visit(place: int | None, *operations: Operation) -> list[Visit | Operation]:
    return [Visit(place), *operations, Visit(place, False)]


def norm_operations(name: str, unit: int, deviations: int, place: int) -> list[Visit | Operation]:
    """Of an RMSNorm that has normalised `unit` bytes in bf16: most of it is in fp32, twice as large.

    The second operation has the input, the two terms of its gradient and three powers of the deviations, each
    spread out to the size of the input, beside its argument in bf16, which is counted already.
    """
    return visit(
        place,
        Operation(f"{name}, weight", 2 * unit, -unit, place),
        Operation(f"{name}, input", 9 * unit - deviations, -2 * unit - deviations),
    )


def places(size: LlamaSize, layer: int) -> dict[str, int]:
    """Of a block's parameters in the model."""
    names = [
        "q",
        "k",
        "v",
        "o",
        *["norm q", "norm k"] * size.qk_norm,
        "gate",
        "up",
        "down",
        "norm 1",
        "norm 2",
    ]
    return {name: 1 + layer * len(names) + index for index, name in enumerate(names)}


def forward_visits(size: LlamaSize, layer: int) -> list[Visit]:
    """Of a block's forward pass; None are modules that have no parameters of their own."""
    queries, keys = (["q", "norm q"], ["k", "norm k"]) if size.qk_norm else (["q"], ["k"])
    order = ["norm 1", None, *queries, *keys, "v", "o", "norm 2", None, "gate", None, "up", "down"]
    return [step for name in order for step in visit(name and places(size, layer)[name])]


def all_visits(size: LlamaSize) -> list[Visit]:
    """Of the model's forward pass."""
    blocks = [step for layer in range(size.layers) for step in (Visit(None), *forward_visits(size, layer))]
    norm = len(elements(size)) - (1 if size.tied else 2)
    ends = *visit(norm), *visit(0 if size.tied else norm + 1)
    return [Visit(None), Visit(None), *visit(0), *visit(None), *blocks, *ends]


def block_operations(
    size: LlamaSize, batch: int, sequence: int, layer: int, again: Sequence[Visit | Operation] = ()
) -> list[Visit | Operation]:
    """Of a block; its result's gradient is there already, and in the end its input's is, of the same size.
    `again` comes first where the block is checkpointed."""
    tokens, at = batch * sequence, places(size, layer)
    U, F = BF16 * tokens * size.width, BF16 * tokens * size.feed_forward
    Q, K = BF16 * tokens * size.attention_width, BF16 * tokens * size.kv_width
    of_queries, of_keys = FP32 * tokens * size.heads, FP32 * tokens * size.kv_heads
    norm_q, norm_k = [], []
    if size.qk_norm:
        norm_q = norm_operations("norm of queries", Q, of_queries, at["norm q"])
        norm_k = norm_operations("norm of keys", K, of_keys, at["norm k"])
    return [
        *(Visit(None), Visit(None)),
        *visit(at["down"], *again, Operation("down", F, 0, at["down"])),
        Operation("product of gate and up", 2 * F, -F),
        *visit(at["up"], Operation("up", U, U - F, at["up"])),
        *visit(None, Operation("silu", F, -F)),
        *visit(at["gate"], Operation("gate", U, -F, at["gate"])),
        Operation("sum of both", U, -U),
        *norm_operations("norm behind attention", U, FP32 * tokens, at["norm 2"]),
        Operation("residual", U, -U),
        Visit(None),
        *visit(at["o"], Operation("output of attention", Q, Q, at["o"])),
        Operation("attention", Q + 2 * K, -2 * Q - of_queries - 16),
        Operation("rotation of keys", 3 * K, 0),
        Operation("rotation of queries", 3 * Q, 0),
        *visit(at["v"], Operation("values", U, U - K, at["v"])),
        *norm_k,
        Operation("keys, in order", K, 0),
        *visit(at["k"], Operation("keys", U, U - K, at["k"])),
        Operation("sum of both", U, -U),
        *norm_q,
        Operation("queries, in order", Q, 0),
        *visit(at["q"], Operation("queries", U, -Q, at["q"])),
        Operation("sum of both", U, -U),
        *norm_operations("norm before attention", U, FP32 * tokens, at["norm 1"]),
        Operation("residual", U, -U),
    ]


def backward_operations(
    size: LlamaSize, batch: int, sequence: int, checkpointed: bool = False
) -> list[Visit | Operation]:
    """Of the whole pass, from the loss, at which everything is there that the forward pass kept."""
    parts, tokens = activation_parts(size, batch, sequence, BF16, device="cuda"), batch * sequence
    U, logits, ids = BF16 * tokens * size.width, FP32 * tokens * size.vocabulary, TOKEN_ID * tokens
    table, norm = BF16 * size.vocabulary * size.width, len(elements(size)) - (1 if size.tied else 2)
    # a tied head's gradient waits for the embedding's
    waits, head = (table, 0) if size.tied else (0, norm + 1)
    tape = [
        Operation("loss", 2 * logits - ids, -ids - logits // 2),  # and the logits' gradient in bf16
        Visit(None),
        *visit(head, Operation("head", U + waits, waits - logits // 2, None if size.tied else head)),
        Visit(None),
        *norm_operations("last norm", U, FP32 * tokens, norm),
    ]
    for layer in reversed(range(size.layers)):
        block, again = parts["block"], []
        if checkpointed:
            # it stops in the last matrix, which has not ended then
            again = [*forward_visits(size, layer)[:-1], Operation("forward again", block + U, block)]
        tape += block_operations(size, batch, sequence, layer, again)
        tape += [Operation("its input", 0, -U)] * checkpointed
    tape.append(Operation("rotations", 0, -parts["embedding"] - (parts["arguments"] if checkpointed else 0)))
    if not size.tied:
        return [*tape, *visit(0, Operation("embedding", 0, -U - ids, 0))]
    # its gradient and the head's, and their sum
    sums = Operation("embedding", table, table - U - ids), Operation("tied", 0, -2 * table, 0)
    return [*tape, *visit(0, *sums)]


def levels(tape: Iterable[Visit | Operation], reducer: Reducer) -> Iterator[tuple[str, int]]:
    """(name of an operation, the most bytes while it runs beyond those at the pass's start), with what
    DeepSpeed does when a module is visited and a gradient is there; in the end ("reduced", ...), what it does
    when all are."""
    held = most = 0
    for step in tape:
        if isinstance(step, Visit):
            for change in reducer.visited(*step):
                held += change
                most = max(most, held)
            continue
        gradient = 0 if step.gradient is None else BF16 * reducer.elements[step.gradient]
        most = max(most, held + gradient + step.most)
        held += gradient + step.left
        for change in () if step.gradient is None else reducer.taken(step.gradient):
            held += change
            most = max(most, held)
        yield step.name, most
        most = held
    yield "reduced", max(most, *accumulate(reducer.ended(), initial=held))


def _gatherer(counts, config, ranks, forward, tape):
    places = [step.place for step in (*forward, *tape) if isinstance(step, Visit) and step.begins]
    return Gatherer(counts, config, ranks, places)


def gathered_bytes(
    size: LlamaSize, config: ZeroConfig | dict, ranks: int, checkpointed: bool = False, micro_batches: int = 1
) -> int:
    """Bytes of all messages in which ZeRO-3 gathers parameters in a step: by each micro-batch what it did not
    keep, and after the optimizer's step the small ones."""
    config, counts = ZeroConfig.of(config), elements(size)
    forward, tape = all_visits(size), backward_operations(size, 1, 1, checkpointed)
    gatherer = _gatherer(counts, config, ranks, forward, tape)
    for step in (*forward, *tape):
        if isinstance(step, Visit):
            deque(gatherer.visited(*step), maxlen=0)
    return micro_batches * gatherer.received + gatherer.padded(gatherer.small)


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

    The highest of them is within 4 bytes of rehearsals, a number of the loss that some moments have no more.
    At stage 3 with few tokens the forward pass may be higher before the loss, and then lower than the
    backward pass.  The keys that start with stage3 are DeepSpeed's own, but for the persistence threshold.
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
    forward, tape = all_visits(size), backward_operations(size, batch, sequence, checkpointed)
    found = {"loss": {}, "backward": {}}
    for index in {0, min(1, micro_batches - 1), micro_batches - 1}:
        reducer = Reducer(counts, config, ranks, rank, index > 0, index == micro_batches - 1)
        gathered = 0
        if config.stage == 3:
            reducer = _gatherer(counts, config, ranks, forward, tape)
            gathered = sum(change for step in forward for change in reducer.visited(*step))
        states = deepspeed_bytes(counts, config, moment=MOMENTS[index > 0], **job)
        states["buffers"] += frequencies
        states["parameters"] += gathered
        (_, loss), *others = levels(tape, reducer)
        for moment, most in {"loss": loss, "backward": max(most for _, most in others)}.items():
            held = states | {"activations": kept + most}
            found[moment] = max(found[moment], held, key=lambda sizes: sum(sizes.values()))
    step = deepspeed_bytes(counts, config, moment="after backward", **job)
    step["other"] += step_peak_bytes(counts, config, **job) - sum(step.values())
    step["buffers"] += frequencies
    return found | {"step": step}
