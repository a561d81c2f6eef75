"""One sequence on several ranks, and the loss in tiles: what a rank keeps and sends.

Each of N ranks holds s / N consecutive tokens of every sequence and all parameters.  Only attention needs the
others' tokens.  *Ulysses* exchanges tokens for heads and back, by all-to-all (Jacobs et al., arXiv
2309.14509, section 3); *ring attention* passes keys and values round (Liu et al., arXiv 2310.01889, section
3).  The symbols are those of `helpers.tools.theory.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..whole import shared, whole
from .communication import wire_bytes
from .gpt_size import GPTSize, of_gpts
from .layers import (
    FP32,
    TOKEN_ID,
    activation_parts,
    block_activation_bytes,
    block_parameters,
    checkpointed_activation_bytes,
    gpt_activation_bytes,
    gpt_parameters,
)
from .llama import LlamaSize

LOSS_TENSORS = 3  # fp32, of (tokens, V), at the peak of the loss: log-softmax, its gradient, the logits'
ALL_TO_ALLS = 4  # of a layer's forward pass: q, k, v there and the result back; backward the same four
RING_FORWARD, RING_BACKWARD = 2, 4  # tensors that a rank passes on: keys and values; with their gradients


def _tokens_each(sequence, ranks):
    shared(ranks, tokens=sequence)
    return sequence // ranks


def loss_peak_bytes(batch: int, sequence: int, vocabulary: int, tiles: int = 1) -> int:
    """12 b s V / tiles bytes, rounded up to whole tokens: the most that logits, cross-entropy and their
    backward pass hold at once, beside the gradients of input and weight.

    Three fp32 tensors: in bf16, too, the logits are cast to fp32 for the loss.  Tiles of the tokens are
    computed one after the other and again in the backward pass.
    """
    whole(tiles, "tiles")
    return LOSS_TENSORS * FP32 * vocabulary * batch * -(-sequence // tiles)


@of_gpts
def ulysses_activation_bytes(
    size: GPTSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    ranks: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> int:
    """Bytes that a rank keeps of a GPT and its loss when s / N of the tokens of every sequence are its own.

    `gpt_activation_bytes` of s / N tokens; with two ranks or more, e b (s / N) h for each layer, since the
    result of attention is kept twice, by heads (for the backward pass of attention) and by tokens (as the
    input of the output matrix).  With the explicit kernel the scores are of a / N heads and s x s.
    """
    tokens = _tokens_each(sequence, ranks)
    shared(ranks, heads=size.heads)
    kept = gpt_activation_bytes(size, batch, tokens, element_bytes, kernel, device)
    if kernel == "explicit":
        counted = element_bytes * size.heads * tokens**2 * batch + tokens**2
        scores = element_bytes * (size.heads // ranks) * sequence**2 * batch + sequence**2
        kept += size.layers * (scores - counted)
    return kept + (size.layers * element_bytes * batch * tokens * size.width if ranks > 1 else 0)


@of_gpts
def worst_moment_bytes(
    size: GPTSize, sequence: int, ranks: int = 1, again: bool = False, tiles: int = 1
) -> dict[str, int]:
    """What a rank holds of a GPT at the worst moment of a forward and a backward pass, {category: bytes}, in
    fp32 with one sequence, Adam, and no ZeRO; the ranks share the text.

    Two moments compete: the loss, in `tiles`, at its peak, and, where each block, of two, is computed
    `again`, the backward pass of the first at its GELU.  Activations are those that the forward pass keeps;
    other is what comes and goes: logits, or a recomputed block and its gradients.  Token ids and Adam's
    counters are left out.
    """
    if again and size.layers != 2:
        problem = "with `again` the gradients that are there already are counted for two layers"
        raise ValueError(f"{problem}, not for {size.layers!r}")
    tokens, h, V = _tokens_each(sequence, ranks), size.width, size.vocabulary
    states, vectors = FP32 * gpt_parameters(size), FP32 * tokens * h
    kept = ulysses_activation_bytes(size, 1, sequence, FP32, ranks)
    if again:
        kept = checkpointed_activation_bytes(size, 1, tokens, FP32)
    if tiles > 1:  # a tiled loss keeps neither logits nor the weight of their mean
        kept -= FP32 * V * tokens + FP32
    worst = kept + loss_peak_bytes(1, tokens, V, tiles) - (FP32 * V * tokens if tiles == 1 else 0)
    if again:
        block = block_activation_bytes(1, tokens, h, size.heads, FP32)
        block += vectors if ranks > 1 else 0  # attention's result, a second time
        gradients = FP32 * (V * h + 4 * h * h + 3 * h)  # of head, last norm, and the matrix behind the GELU
        done = FP32 * block_parameters(h)  # gradients of the last block, when the first is at its worst
        positions = TOKEN_ID * tokens
        inputs = positions + max(2 * vectors, vectors + done)  # kept inputs of both blocks or one
        worst = max(worst, block + 4 * vectors + gradients + inputs)
    held = {"parameters": states, "optimizer states": 2 * states}
    return held | {"activations": kept, "other": worst - kept}


def ulysses_wire_bytes(
    batch: int,
    sequence: int,
    width: int,
    layers: int,
    element_bytes: int,
    ranks: int,
    checkpointed: bool = False,
) -> float:
    """8 L e b h s (N - 1) / N^2 bytes that a rank sends in a forward and a backward pass: for each layer 8
    all-to-alls of e b (s / N) h, 12 if it is checkpointed (arXiv 2309.14509, section 3.2)."""
    tensor = element_bytes * batch * _tokens_each(sequence, ranks) * width
    return layers * (3 if checkpointed else 2) * ALL_TO_ALLS * wire_bytes("all_to_all", tensor, ranks)


def ring_activation_bytes(size: GPTSize, batch: int, sequence: int, element_bytes: int, ranks: int) -> int:
    """Bytes that a rank keeps of a GPT and its loss with ring attention, `gpt_activation_bytes` of s / N
    tokens: keys and values of other ranks come, are used, and go (arXiv 2310.01889, section 3)."""
    return gpt_activation_bytes(size, batch, _tokens_each(sequence, ranks), element_bytes)


def ring_wire_bytes(
    batch: int, sequence: int, width: int, layers: int, element_bytes: int, ranks: int
) -> int:
    """6 L e b s h bytes that a rank sends in a forward and a backward pass that turn N times each: 2 N and 4
    N messages of e b (s / N) h for each layer; 0 for one rank (arXiv 2310.01889, section 3)."""
    tensor = element_bytes * batch * _tokens_each(sequence, ranks) * width
    return 0 if ranks == 1 else layers * ranks * (RING_FORWARD + RING_BACKWARD) * tensor


def _of_a_rank(config, ranks):
    """The `LlamaSize` whose keys and values are those of all ranks together after the exchange: too few heads
    of them are copied."""
    size = LlamaSize.of(config)
    heads, of_keys = size.heads, size.kv_heads
    if heads % ranks or (of_keys % ranks and ranks % of_keys):
        kinds = f"{heads} heads and {of_keys} of keys and values"
        raise ValueError(f"{kinds} cannot be divided among {ranks} ranks")
    return replace(size, kv_heads=max(of_keys, ranks) if ranks > 1 else of_keys)


def llama_activation_bytes(
    config: Mapping[str, int],
    batch: int,
    sequence: int,
    ranks: int = 1,
    tiled: bool = False,
    checkpointed: bool = False,
) -> int:
    """Bytes that a rank keeps of transformers' Llama in fp32 and of its loss, with DeepSpeed's
    `UlyssesSPAttentionHF` when there are several ranks.

    The parts are those of `llama_activation_parts`, of s / N tokens; positions and labels are the caller's.
    Several ranks keep the result of attention twice, and copy keys and values where there are fewer heads of
    them than ranks (transformers 5 with torch's fused attention; TiledMLP: ALST, arXiv 2506.13996, section
    3).

    Args:
        config: of a `LlamaConfig`, as `LlamaSize.of` takes it.
        tiled: feed-forward layers by `TiledMLP`, which keeps its input alone, head and loss by
            `sequence_tiled_compute`, which keeps neither logits nor their weight.
        checkpointed: each layer keeps its input alone, h.
    """
    size, tokens = _of_a_rank(config, ranks), _tokens_each(sequence, ranks)
    parts, each = activation_parts(size, batch, tokens, FP32), FP32 * batch * tokens
    layer = parts["block"] + (each * size.attention_width if ranks > 1 else 0)
    layer -= 4 * each * size.feed_forward if tiled else 0
    head = parts["head"] - TOKEN_ID * batch * tokens - (each * size.vocabulary + FP32 if tiled else 0)
    return parts["embedding"] + size.layers * (each * size.width if checkpointed else layer) + head


def llama_wire_bytes(
    config: Mapping[str, int], batch: int, sequence: int, ranks: int, checkpointed: bool = False
) -> float:
    """Bytes that a rank sends with DeepSpeed's `UlyssesSPAttentionHF` in a forward and a backward pass, fp32.

    For each layer 4 all-to-alls of 4 b (s / N) a d bytes, q and the result forward and backward, and 4 of its
    keys' width (arXiv 2309.14509, section 3.2); and in each forward pass, two if checkpointed, an all-gather
    of all ranks' positions, int64, of one sequence (DeepSpeed 0.19.8 gathers them for the kernel).
    """
    size, forward = _of_a_rank(config, ranks), 2 if checkpointed else 1
    exchanged = FP32 * batch * _tokens_each(sequence, ranks) * 2 * (size.attention_width + size.kv_width)
    positions = forward * wire_bytes("all_gather", TOKEN_ID * sequence, ranks)
    return size.layers * ((forward + 1) * wire_bytes("all_to_all", exchanged, ranks) + positions)
