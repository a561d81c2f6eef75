"""One sequence on several ranks, and the loss in tiles: what a rank keeps and sends.

Each of N ranks holds s / N consecutive tokens of every sequence and all parameters.  Only attention needs the
others' tokens.  *Ulysses* exchanges tokens for heads and back, by all-to-all (Jacobs et al., arXiv
2309.14509, section 3); *ring attention* passes keys and values round (Liu et al., arXiv 2310.01889, section
3).  The symbols are those of `helpers.tools.theory.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..whole import shared, whole
from .communication import wire_bytes
from .gpt_size import GPTSize
from .layers import (
    FP32,
    TOKEN_ID,
    block_activation_bytes,
    block_parameters,
    checkpointed_activation_bytes,
    gpt_activation_bytes,
    gpt_parameters,
)

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


def _key_width(config, ranks):
    """Channels of the keys that a rank has per token after the exchange; too few heads are copied."""
    heads, of_keys = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % ranks or (of_keys % ranks and ranks % of_keys):
        kinds = f"{heads} heads and {of_keys} of keys and values"
        raise ValueError(f"{kinds} cannot be divided among {ranks} ranks")
    return max(of_keys, ranks if ranks > 1 else 0) * (config["hidden_size"] // heads)


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

    4 for each token and channel that follows.  A norm keeps 3 h + 1 (its input, what it has normalised, its
    result, and a deviation per token); attention q and its result, 2 h, keys and values, and a log-sum-exp
    per head; the feed-forward layer 4 i.  Several ranks keep the result of attention twice, one h more, and
    copy keys and values where there are fewer heads of them than ranks.  Then a norm, V for the loss, and 2 h
    / a for the sines and cosines, once for all layers and sequences; 8 for the loss itself, 4 tiled
    (transformers 5 with torch's fused attention; TiledMLP: ALST, arXiv 2506.13996, section 3).

    Args:
        config: of a `LlamaConfig`: hidden_size h, intermediate_size i, num_hidden_layers L,
            num_attention_heads a, num_key_value_heads, vocab_size V; a head has h / a channels.
        tiled: feed-forward layers by `TiledMLP`, which keeps its input alone, head and loss by
            `sequence_tiled_compute`.
        checkpointed: each layer keeps its input alone, h.
    """
    width, heads, tokens = config["hidden_size"], config["num_attention_heads"], _tokens_each(sequence, ranks)
    norm = 3 * width + 1
    attention = (3 if ranks > 1 else 2) * width + 2 * _key_width(config, ranks) + heads
    layer = 2 * norm + attention + (0 if tiled else 4 * config["intermediate_size"])
    if checkpointed:
        layer = width
    each = config["num_hidden_layers"] * layer + norm + (0 if tiled else config["vocab_size"])
    return FP32 * tokens * (batch * each + 2 * width // heads) + (1 if tiled else 2) * FP32


def llama_wire_bytes(
    config: Mapping[str, int], batch: int, sequence: int, ranks: int, checkpointed: bool = False
) -> float:
    """Bytes that a rank sends with DeepSpeed's `UlyssesSPAttentionHF` in a forward and a backward pass, fp32.

    For each layer 4 all-to-alls of 4 b (s / N) h bytes, q and the result forward and backward, and 4 of its
    keys' width (arXiv 2309.14509, section 3.2); and in each forward pass, two if checkpointed, an all-gather
    of all ranks' positions, int64, of one sequence (DeepSpeed 0.19.8 gathers them for the kernel).
    """
    tokens, forward = _tokens_each(sequence, ranks), 2 if checkpointed else 1
    exchanged = FP32 * batch * tokens * (2 * config["hidden_size"] + 2 * _key_width(config, ranks))
    positions = forward * wire_bytes("all_gather", TOKEN_ID * sequence, ranks)
    return config["num_hidden_layers"] * (
        (forward + 1) * wire_bytes("all_to_all", exchanged, ranks) + positions
    )
