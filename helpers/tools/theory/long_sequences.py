"""One sequence on several ranks, and the loss in tiles: what a rank keeps and sends.

Each of N ranks holds s / N consecutive tokens of every sequence and all parameters.  Only attention needs the
others' tokens, and there are two ways to them.  *Ulysses* exchanges tokens for heads and back, by all-to-all
(Jacobs et al., arXiv 2309.14509, section 3); *ring attention* passes keys and values round (Liu et al., arXiv
2310.01889, section 3).  The symbols are those of `helpers.tools.theory.layers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from helpers.tools.theory.checks import shared, whole
from helpers.tools.theory.communication import wire_bytes
from helpers.tools.theory.layers import (
    FP32,
    TOKEN_ID,
    Size,
    block_activation_bytes,
    block_parameters,
    checkpointed_activation_bytes,
    gpt_activation_bytes,
    gpt_parameters,
)

# fp32 tensors of (tokens, V) at the peak of the loss: the log-softmax that was kept, its gradient, and the
# gradient of the logits
LOSS_TENSORS = 3
ALL_TO_ALLS = 4  # of a layer's forward pass: q, k, v there and the result back; backward the same four
RING_FORWARD, RING_BACKWARD = 2, 4  # tensors that a rank passes on: keys and values; with their gradients


def _own_tokens(sequence, ranks):
    shared(ranks, tokens=sequence)
    return sequence // ranks


def loss_peak_bytes(batch: int, sequence: int, vocabulary: int, tiles: int = 1) -> int:
    """12 b s V / tiles bytes, rounded up to whole tokens: the most that logits, cross-entropy and their
    backward pass hold at once, beside the gradients of input and weight.

    Three fp32 tensors of one number per token and vocabulary entry, whatever the dtype of the model: in bf16
    the logits are cast to fp32 for the loss (torch's log_softmax and nll_loss; the tests hold it against the
    ledger).

    Args:
        tiles: into which the tokens are cut, one computed after the other and again in the backward pass.
    """
    whole(tiles=tiles)
    return LOSS_TENSORS * FP32 * vocabulary * batch * -(-sequence // tiles)


def ulysses_activation_bytes(
    size: Size,
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
    input of the output matrix).  With the explicit kernel the scores are of a / N heads and s x s, so they
    are s / N times as long (Jacobs et al., arXiv 2309.14509, section 3; the second copy is the count of the
    course's own model).
    """
    own = _own_tokens(sequence, ranks)
    shared(ranks, heads=size.heads)
    kept = gpt_activation_bytes(size, batch, own, element_bytes, kernel, device)
    if kernel == "explicit":
        here = element_bytes * size.heads * own**2 * batch + own**2
        kept += size.layers * (
            element_bytes * (size.heads // ranks) * sequence**2 * batch + sequence**2 - here
        )
    return kept + (size.layers * element_bytes * batch * own * size.width if ranks > 1 else 0)


def worst_moment_bytes(
    size: Size, sequence: int, ranks: int = 1, again: bool = False, tiles: int = 1
) -> dict[str, int]:
    """What a rank holds of a GPT at the worst moment of a forward and a backward pass: fp32, one sequence,
    Adam, no ZeRO, the ranks share the text; {"parameters", "optimizer states", "activations", "other":
    bytes}.

    Two moments compete: the loss at its peak, and, where blocks are computed again, the backward pass of the
    first block at its GELU.  Activations are those that the forward pass keeps; other is what comes and goes:
    logits, or a recomputed block and its gradients.  Token ids and Adam's counters are left out.

    Args:
        size: its `layers` must be 2 where blocks are computed again: which gradients are there already is
            counted for two.
        again: each block keeps its input alone and is computed again.
        tiles: of the loss.
    """
    if again and size.layers != 2:
        raise ValueError(
            "with `again` the gradients that are there already are counted for two layers, not "
            f"for {size.layers!r}"
        )
    own, h, V = _own_tokens(sequence, ranks), size.width, size.vocabulary
    states, vectors = gpt_parameters(size), FP32 * own * h
    kept = ulysses_activation_bytes(size, 1, sequence, FP32, ranks)
    if again:
        kept = checkpointed_activation_bytes(size, 1, own, FP32)
    if tiles > 1:  # a tiled loss keeps neither logits nor the weight of their mean
        kept -= FP32 * V * own + FP32
    worst = kept + loss_peak_bytes(1, own, V, tiles) - (FP32 * V * own if tiles == 1 else 0)
    if again:
        block = block_activation_bytes(1, own, h, size.heads, FP32)
        block += vectors if ranks > 1 else 0  # attention's result, a second time
        gradients = FP32 * (V * h + 4 * h * h + 3 * h)  # of head, last norm, and the matrix behind the GELU
        done = FP32 * block_parameters(h)  # gradients of the last block, when the first is at its worst
        inputs = 8 * own + max(2 * vectors, vectors + done)  # positions; kept inputs of both blocks or one
        worst = max(worst, block + 4 * vectors + gradients + inputs)
    return {
        "parameters": FP32 * states,
        "optimizer states": 2 * FP32 * states,
        "activations": kept,
        "other": worst - kept,
    }


def ulysses_wire_bytes(
    batch: int,
    sequence: int,
    width: int,
    layers: int,
    element_bytes: int,
    ranks: int,
    checkpointed: bool = False,
) -> float:
    """Bytes that a rank sends in a forward and a backward pass: 8 all-to-alls of e b (s / N) h for each
    layer, 12 if it is checkpointed and so runs forward twice.

    8 (or 12) L e b h s (N - 1) / N^2 bytes: less and less with more ranks (arXiv 2309.14509, section 3.2).
    """
    tensor = element_bytes * batch * _own_tokens(sequence, ranks) * width
    return layers * (3 if checkpointed else 2) * ALL_TO_ALLS * wire_bytes("all_to_all", tensor, ranks)


def ring_activation_bytes(
    size: Size, batch: int, sequence: int, element_bytes: int, ranks: int, device: str = "cpu"
) -> int:
    """Bytes that a rank keeps of a GPT and its loss with ring attention, `gpt_activation_bytes` of s / N
    tokens: keys and values of other ranks come, are used, and go (Liu et al., arXiv 2310.01889, section 3).
    """
    return gpt_activation_bytes(size, batch, _own_tokens(sequence, ranks), element_bytes, "sdpa", device)


def ring_wire_bytes(
    batch: int, sequence: int, width: int, layers: int, element_bytes: int, ranks: int
) -> int:
    """6 L e b s h bytes that a rank sends in a forward and a backward pass that turn N times each: 2 N and 4
    N messages of e b (s / N) h for each layer; 0 for one rank.

    Counted with as many turns as ranks, so that everything is back where it began (arXiv 2310.01889, section
    3).  A forward pass that leaves out its last turn, after which nothing is computed, sends 2 (N - 1)
    messages.
    """
    tensor = element_bytes * batch * _own_tokens(sequence, ranks) * width
    return 0 if ranks == 1 else layers * ranks * (RING_FORWARD + RING_BACKWARD) * tensor


def _key_width(config, ranks):
    """Channels of the keys that a rank has of each of its tokens after the exchange: a head is copied when
    there are more ranks than heads."""
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % ranks or (shared % ranks and ranks % shared):
        raise ValueError(
            f"{heads} heads and {shared} of keys and values cannot be divided among {ranks} ranks"
        )
    return max(shared, ranks if ranks > 1 else 0) * (config["hidden_size"] // heads)


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
    keys and values are copied where there are fewer heads of them than ranks.  Then a norm, V for the loss,
    and 2 h / a for the sines and cosines of all layers, once for all sequences; 8 for the loss itself, 4
    tiled (transformers 5 with torch's fused attention; arXiv 2309.14509, section 3; TiledMLP: ALST, arXiv
    2506.13996, section 3).

    Args:
        config: of a `LlamaConfig`: hidden_size h, intermediate_size i, num_hidden_layers L,
            num_attention_heads a, num_key_value_heads, vocab_size V; a head has h / a channels.
        tiled: the feed-forward layers by `TiledMLP`, which keeps its input alone, and head and loss by
            `sequence_tiled_compute`.
        checkpointed: each layer keeps its input alone, h.
    """
    own, width, heads = _own_tokens(sequence, ranks), config["hidden_size"], config["num_attention_heads"]
    norm = 3 * width + 1
    attention = (3 if ranks > 1 else 2) * width + 2 * _key_width(config, ranks) + heads
    layer = 2 * norm + attention + (0 if tiled else 4 * config["intermediate_size"])
    if checkpointed:
        layer = width
    token = config["num_hidden_layers"] * layer + norm + (0 if tiled else config["vocab_size"])
    return FP32 * own * (batch * token + 2 * width // heads) + (1 if tiled else 2) * FP32


def llama_wire_bytes(
    config: Mapping[str, int], batch: int, sequence: int, ranks: int, checkpointed: bool = False
) -> float:
    """Bytes that a rank sends with DeepSpeed's `UlyssesSPAttentionHF` in a forward and a backward pass in
    fp32; ZeRO's messages not counted.

    For each layer 4 all-to-alls of 4 b (s / N) h bytes, q and the result forward and backward, and 4 of its
    keys' width (arXiv 2309.14509, section 3.2); and in each forward pass, two if checkpointed, an all-gather
    of all ranks' positions, int64, of one sequence (DeepSpeed 0.19.8 gathers them for the kernel).  `config`
    as for `llama_activation_bytes`.
    """
    own, forward = _own_tokens(sequence, ranks), 2 if checkpointed else 1
    exchanged = FP32 * batch * own * (2 * config["hidden_size"] + 2 * _key_width(config, ranks))
    positions = forward * wire_bytes("all_gather", TOKEN_ID * sequence, ranks)
    return config["num_hidden_layers"] * (
        (forward + 1) * wire_bytes("all_to_all", exchanged, ranks) + positions
    )
