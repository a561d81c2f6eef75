"""One sequence on several ranks, and the loss in tiles: what a rank keeps and sends.

Each of N ranks holds s / N consecutive tokens of every sequence and all parameters.  Only attention needs the others' tokens, and there are
two ways to them.  *Ulysses* exchanges tokens for heads and back, by all-to-all (Jacobs et al., arXiv 2309.14509, section 3); *ring attention*
passes keys and values round (Liu et al., arXiv 2310.01889, section 3).  The symbols are those of `helpers.theory.layers`.
"""

from __future__ import annotations

from helpers.theory.communication import wire_bytes
from helpers.theory.layers import FP32, Size, gpt_activation_bytes

# fp32 tensors of (tokens, V) at the peak of the loss: the log-softmax that was kept, its gradient, and the gradient of the logits
LOSS_TENSORS = 3
ALL_TO_ALLS = 4  # of a layer's forward pass: q, k, v there and the result back; its backward pass does the same four
RING_FORWARD, RING_BACKWARD = 2, 4  # tensors that a rank passes on in each turn: keys and values; these and their gradients


def _own_tokens(sequence, ranks):
    if ranks < 1 or sequence % ranks:
        raise ValueError(f"{sequence!r} tokens cannot be divided among {ranks!r} ranks: use a divisor of the length")
    return sequence // ranks


def loss_peak_bytes(batch: int, sequence: int, vocabulary: int, tiles: int = 1) -> int:
    """The most that logits, cross-entropy and their backward pass hold at once, beside the gradients of input and weight.

    Args:
        tiles: into which the tokens are cut, one computed after the other and again in the backward pass.

    Returns: 12 b s V / tiles bytes, rounded up to whole tokens.  Three fp32 tensors of one number per token and vocabulary entry, whatever
        the dtype of the model: in bf16 the logits are cast to fp32 for the loss.
    Source: torch's log_softmax and nll_loss, forward and backward; the tests hold it against the ledger.
    """
    if tiles < 1:
        raise ValueError(f"tiles must be at least 1, not {tiles!r}")
    return LOSS_TENSORS * FP32 * vocabulary * batch * -(-sequence // tiles)


def ulysses_activation_bytes(size: Size, batch: int, sequence: int, element_bytes: int, ranks: int, kernel: str = "sdpa", device: str = "cpu") -> int:
    """What a rank keeps of a GPT and its loss when s / N of the tokens of every sequence are its own.

    Returns: bytes: `gpt_activation_bytes` of s / N tokens, and, with two ranks or more, e b (s / N) h for each layer: the result of attention is
        kept twice, by heads (for the backward pass of attention) and by tokens (as the input of the output matrix).
        With the explicit kernel the scores are of a / N heads and s x s, so they are s / N times as long.
    Source: Jacobs et al., arXiv 2309.14509, section 3; the second copy is the count of the course's own model.
    """
    own = _own_tokens(sequence, ranks)
    if ranks > 1 and size.heads % ranks:
        raise ValueError(f"{size.heads} heads cannot be divided among {ranks} ranks")
    kept = gpt_activation_bytes(size, batch, own, element_bytes, kernel, device)
    if kernel == "explicit":
        here = element_bytes * size.heads * own**2 * batch + own**2
        kept += size.layers * (element_bytes * (size.heads // ranks) * sequence**2 * batch + sequence**2 - here)
    return kept + (size.layers * element_bytes * batch * own * size.width if ranks > 1 else 0)


def ulysses_wire_bytes(batch: int, sequence: int, width: int, layers: int, element_bytes: int, ranks: int, checkpointed: bool = False) -> float:
    """Bytes that a rank sends in a forward and a backward pass: 8 all-to-alls of e b (s / N) h for each layer, 12 if it is checkpointed.

    Args:
        checkpointed: each layer's forward pass runs once more in the backward pass, and so do its four exchanges.

    Returns: 8 (or 12) L e b h s (N - 1) / N^2 bytes: less and less with more ranks.
    Source: arXiv 2309.14509, section 3.2.
    """
    tensor = element_bytes * batch * _own_tokens(sequence, ranks) * width
    return layers * (3 if checkpointed else 2) * ALL_TO_ALLS * wire_bytes("all_to_all", tensor, ranks)


def ring_activation_bytes(size: Size, batch: int, sequence: int, element_bytes: int, ranks: int, device: str = "cpu") -> int:
    """What a rank keeps of a GPT and its loss with ring attention: keys and values of other ranks come, are used, and go.

    Returns: bytes, `gpt_activation_bytes` of s / N tokens with the fused kernel.
    Source: Liu et al., arXiv 2310.01889, section 3.
    """
    return gpt_activation_bytes(size, batch, _own_tokens(sequence, ranks), element_bytes, "sdpa", device)


def ring_wire_bytes(batch: int, sequence: int, width: int, layers: int, element_bytes: int, ranks: int) -> int:
    """Bytes that a rank sends in a forward and a backward pass that turn N times each: 2 N and 4 N messages of e b (s / N) h for each layer.

    Returns: 6 L e b s h bytes, for any number of ranks (0 for one).  A forward pass that leaves out its last turn, after which nothing is
        computed, sends 2 (N - 1) messages instead of 2 N.
    Source: arXiv 2310.01889, section 3, counted with as many turns as ranks, so that everything is back where it began.
    """
    tensor = element_bytes * batch * _own_tokens(sequence, ranks) * width
    return 0 if ranks == 1 else layers * ranks * (RING_FORWARD + RING_BACKWARD) * tensor
