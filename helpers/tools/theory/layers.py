"""Parameters, FLOPs and saved activations of a GPT, layer by layer.

Arguments that have the same meaning everywhere, with the symbol that formulas give them:

    batch           b   sequences
    sequence        s   tokens of each
    width           h   channels of the residual stream
    heads           a   of attention
    vocabulary      V   distinct tokens
    context             longest sequence, tokens
    size                a `helpers.tools.theory.GPTSize`: V, context, h, L layers (blocks), a
    element_bytes   e   bytes per element of activations: 2 in bf16, 4 in fp32
    kernel              of attention: "sdpa" (fused) or "explicit" (the s x s scores are a tensor)
    device              "cpu" or "cuda", which matters in two small places: CUDA keeps a norm's statistics in fp32, and 16 bytes of random
                        state per fused 16-bit attention

Parameters are counted in elements.  One multiply-add counts as two FLOPs; only matrix products are counted,
as in Megatron-LM (Narayanan et al., arXiv 2104.04473, appendix) and in torch's own FLOP counter.  Activations
are the tensors that autograd keeps for the backward pass, in bytes, each storage once, parameters not
counted; where no source is named, the count is of the course's own model, and the tests hold it against the
ledger.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

RANDOM_STATE = 16  # bytes: seed and offset, two int64
TOKEN_ID = 8  # bytes: int64
FP32 = 4  # bytes


class Size(Protocol):
    """The shape of a GPT, as in `helpers.tools.theory.GPTSize`."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int


# --- parameters


def embedding_parameters(vocabulary: int, context: int, width: int) -> int:
    """A row per token and a row per position.

    Returns: V h + context h elements.
    Source: Vaswani et al., arXiv 1706.03762, sections 3.4 and 3.5; positions are learned.
    """
    return vocabulary * width + context * width


def attention_parameters(width: int) -> int:
    """Query, key, value and output matrices with their biases.

    Returns: 4 h^2 + 4 h elements.
    Source: arXiv 1706.03762, section 3.2.
    """
    return 4 * width**2 + 4 * width


def feed_forward_parameters(width: int) -> int:
    """From h to 4 h and back, with biases.

    Returns: 8 h^2 + 5 h elements.
    Source: arXiv 1706.03762, section 3.3.
    """
    return 8 * width**2 + 5 * width


def norm_parameters(width: int) -> int:
    """A gain and a shift per channel.

    Returns: 2 h elements.
    Source: Ba et al., arXiv 1607.06450, section 3.
    """
    return 2 * width


def block_parameters(width: int) -> int:
    """Attention, feed-forward and two norms.

    Returns: 12 h^2 + 13 h elements, the sum of the above.
    """
    return attention_parameters(width) + feed_forward_parameters(width) + 2 * norm_parameters(width)


def gpt_parameters(size: Size) -> int:
    """A whole GPT, with the head's matrix tied to the token table (GPT-2).

    Returns: V h + context h + L (12 h^2 + 13 h) + 2 h elements.
    Source: Megatron-LM's equation 2 (arXiv 2104.04473, section 5.1), which omits the final norm's 2 h.
    """
    return (
        embedding_parameters(size.vocabulary, size.context, size.width)
        + size.layers * block_parameters(size.width)
        + norm_parameters(size.width)
    )


# --- FLOPs


def attention_flops(batch: int, sequence: int, width: int) -> int:
    """Forward: four projections, and the products q k^T and scores v.

    Returns: 8 b s h^2 + 4 b s^2 h FLOPs.
    Source: arXiv 2104.04473, appendix.
    """
    return 8 * batch * sequence * width**2 + 4 * batch * sequence**2 * width


def feed_forward_flops(batch: int, sequence: int, width: int) -> int:
    """Forward: two products with 4 h^2 weights each.

    Returns: 16 b s h^2 FLOPs.
    Source: arXiv 2104.04473, appendix.
    """
    return 16 * batch * sequence * width**2


def block_flops(batch: int, sequence: int, width: int) -> int:
    """Forward.

    Returns: 24 b s h^2 + 4 b s^2 h FLOPs.
    Source: arXiv 2104.04473, appendix.
    """
    return attention_flops(batch, sequence, width) + feed_forward_flops(batch, sequence, width)


def gpt_flops(size: Size, batch: int, sequence: int) -> int:
    """Forward: L blocks and the head; the embedding is a look-up and counts as none.

    Returns: L (24 b s h^2 + 4 b s^2 h) + 2 b s h V FLOPs.
    Source: arXiv 2104.04473, appendix.
    """
    return (
        size.layers * block_flops(batch, sequence, size.width)
        + 2 * batch * sequence * size.width * size.vocabulary
    )


def training_flops(forward: int, recomputed: int = 0) -> int:
    """Forward and backward: the backward pass does two products for each of the forward pass.

    Args:
        forward: FLOPs of a forward pass.
        recomputed: FLOPs that checkpointing computes again.

    Returns: 3 forward + recomputed, FLOPs.
    Source: arXiv 2104.04473, appendix.
    """
    return 3 * forward + recomputed


# --- activations


def embedding_activation_bytes(sequence: int) -> int:
    """The int64 positions that the position table's backward needs (the token ids are inputs).

    Returns: 8 s bytes.
    """
    return TOKEN_ID * sequence


def norm_activation_bytes(
    batch: int, sequence: int, width: int, element_bytes: int, device: str = "cpu"
) -> int:
    """The norm's input, and a mean and a reciprocal deviation per token (on CUDA in fp32).

    Returns: e s b h + 2 e s b bytes; on CUDA 8 s b for the second.
    """
    statistics = element_bytes if device == "cpu" else FP32
    return element_bytes * batch * sequence * width + 2 * statistics * batch * sequence


def attention_activation_bytes(
    batch: int,
    sequence: int,
    width: int,
    heads: int,
    element_bytes: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> int:
    """What attention keeps, without its norm: its input, q, k and v, the result; and what its kernel needs of
    the scores.

    Returns: 5 e s b h bytes, and
        "sdpa": 4 a s b, one fp32 log-sum-exp per head and token;
        "explicit": e a s^2 b + s^2, the softmax of the scores for every head, and one boolean mask.
    Source: Dao et al., FlashAttention, arXiv 2205.14135, section 3.1, for the first; Korthikanti et al.
    (arXiv 2205.05198, section 4.1) count
        5 a s^2 b for the second, since they keep the softmax, its dropout mask and the dropout's output.
    """
    tokens = batch * sequence
    own = 5 * element_bytes * tokens * width
    if kernel == "sdpa":
        return own + FP32 * heads * tokens + (RANDOM_STATE if device == "cuda" and element_bytes == 2 else 0)
    return own + element_bytes * heads * sequence * tokens + sequence**2


def feed_forward_activation_bytes(batch: int, sequence: int, width: int, element_bytes: int) -> int:
    """Its input, and four widths before and four after the GELU.

    Returns: 9 e s b h bytes.
    Source: Korthikanti et al., arXiv 2205.05198, section 4.1, without the dropout mask.
    """
    return 9 * element_bytes * batch * sequence * width


def block_activation_bytes(
    batch: int,
    sequence: int,
    width: int,
    heads: int,
    element_bytes: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> int:
    """One pre-norm block, its input counted and its output not: two norms, attention, feed-forward.

    Returns: bytes, the sum of the above.
    """
    return (
        2 * norm_activation_bytes(batch, sequence, width, element_bytes, device)
        + attention_activation_bytes(batch, sequence, width, heads, element_bytes, kernel, device)
        + feed_forward_activation_bytes(batch, sequence, width, element_bytes)
    )


def head_activation_bytes(
    batch: int, sequence: int, width: int, vocabulary: int, element_bytes: int, device: str = "cpu"
) -> int:
    """Final norm, its output, the fp32 log-softmax of V scores per token, and the loss with its weight, fp32
    each.

    Returns: bytes: a norm's, e s b h + 4 s b V + 8.
    """
    tokens = batch * sequence
    norm = norm_activation_bytes(batch, sequence, width, element_bytes, device)
    return norm + element_bytes * tokens * width + FP32 * tokens * vocabulary + 2 * FP32


def gpt_activation_bytes(
    size: Size, batch: int, sequence: int, element_bytes: int, kernel: str = "sdpa", device: str = "cpu"
) -> int:
    """Everything kept between the forward and the backward pass of a GPT with its loss.

    Returns: bytes: embedding, L blocks, head.
    """
    return (
        embedding_activation_bytes(sequence)
        + size.layers
        * block_activation_bytes(batch, sequence, size.width, size.heads, element_bytes, kernel, device)
        + head_activation_bytes(batch, sequence, size.width, size.vocabulary, element_bytes, device)
    )


def checkpointed_activation_bytes(
    size: Size, batch: int, sequence: int, element_bytes: int, device: str = "cpu"
) -> int:
    """The same when every block is checkpointed and keeps its input alone.

    Returns: bytes: embedding, L e s b h, head.
    Source: Chen et al., arXiv 1604.06174, section 4.
    """
    return (
        embedding_activation_bytes(sequence)
        + size.layers * element_bytes * batch * sequence * size.width
        + head_activation_bytes(batch, sequence, size.width, size.vocabulary, element_bytes, device)
    )


def repeated_block_bytes(
    batch: int,
    sequence: int,
    width: int,
    heads: int,
    element_bytes: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> int:
    """What a checkpointed block takes on top of its input while its backward pass begins: it is complete
    again, and gradients are on their way.

    Returns: bytes: its inside, its result and the result's gradient (e s b h each), and the gradient of the
        last product's argument (4 e s b h). The gradients of its parameters are not among them.
    """
    one = element_bytes * batch * sequence * width
    return (
        block_activation_bytes(batch, sequence, width, heads, element_bytes, kernel, device)
        - one
        + (1 + 1 + 4) * one
    )


def pass_peak_bytes(
    size: Size,
    batch: int,
    sequence: int,
    element_bytes: int,
    checkpointing: bool,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> dict[str, int]:
    """The moments of one forward and backward pass that compete for its peak; parameters, token ids and
    targets counted, no optimizer.

    Backwards through a checkpointed model each block adds the gradients of its parameters (12 h^2 elements
    and 13 h) and releases the input of the next (b s h).  So with more than 12 h tokens its last block, which
    runs first, holds the most, with fewer its first.

    Returns: bytes by moment, exact from two sequences on (with one, 8 (s - 1) too many in the first block).
        With fewer tokens than about h the peak may lie still later, where the gradient of the embedding is
        made.
        "at the loss": what is kept, and the gradients of log-softmax and logits, fp32 each.
        "in the last block", "in the first block": checkpointed only; `repeated_block_bytes`, the inputs that
            are left, and gradients of the head, of the blocks behind, and of the block's last product.
    """
    tokens, width, vocabulary = batch * sequence, size.width, size.vocabulary
    always = element_bytes * gpt_parameters(size) + 2 * 8 * tokens
    formula = checkpointed_activation_bytes if checkpointing else partial(gpt_activation_bytes, kernel=kernel)
    moments = {
        "at the loss": always
        + formula(size, batch, sequence, element_bytes, device=device)
        + 2 * FP32 * tokens * vocabulary
    }
    if checkpointing:
        one, weights = element_bytes * tokens * width, element_bytes * block_parameters(width)
        gradients = element_bytes * (vocabulary * width + 2 * width + 4 * width**2 + width)
        block = always + embedding_activation_bytes(sequence) + 2 * FP32 + gradients
        block += repeated_block_bytes(batch, sequence, width, size.heads, element_bytes, kernel, device)
        moments["in the last block"] = block + size.layers * one
        moments["in the first block"] = block + one + (size.layers - 1) * weights
    return moments


def bytes_at_the_loss(
    size: Size,
    batch: int,
    sequence: int,
    checkpointing: bool = False,
    accumulates: bool = False,
    device: str = "cuda",
) -> dict[str, int]:
    """What one rank holds at the loss of a micro-batch, trained with Adam in bf16 mixed precision; by
    category, in bytes.

    Args:
        accumulates: whether the gradients of a micro-batch before are there.

    Returns: of P parameters 2 P, gradients 2 P or none, master weights 4 P and optimizer states 8 P (mixed
        precision as in Rajbhandari et al., arXiv 1910.02054, section 3.1); activations, with the log-softmax,
        as they are kept; "other": 8 for each logit, its gradient and that of its log-softmax in fp32.
    """
    parameters, kept_by = (
        gpt_parameters(size),
        checkpointed_activation_bytes if checkpointing else gpt_activation_bytes,
    )
    return {
        "parameters": 2 * parameters,
        "gradients": 2 * parameters if accumulates else 0,
        "master weights": 4 * parameters,
        "optimizer states": 8 * parameters,
        "activations": kept_by(size, batch, sequence, 2, device=device),
        "other": 2 * FP32 * batch * sequence * size.vocabulary,
    }


def korthikanti_block_bytes(batch: int, sequence: int, width: int, heads: int) -> int:
    """A block as Megatron-LM trains it: fp16, dropout with masks of one byte, explicit softmax.

    Returns: s b h (34 + 5 a s / h) bytes.
    Source: Korthikanti et al., arXiv 2205.05198, equation 1.
    """
    return batch * sequence * width * 34 + 5 * heads * sequence**2 * batch
