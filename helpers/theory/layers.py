"""Parameters, FLOPs and saved activations of a GPT, layer by layer.

Symbols: b batch, s sequence (tokens), h width, a heads, L layers, V vocabulary, e bytes per element (2 in bf16, 4 in fp32).
One multiply-add counts as two FLOPs; only matrix products are counted, as in Megatron-LM (arXiv 2104.04473, appendix) and in torch's
own FLOP counter.  Activations are the tensors that autograd keeps for the backward pass, each storage once, parameters not counted.
`device` matters in two small places: CUDA keeps a norm's statistics in fp32, and 16 bytes of random state per fused 16-bit attention.
"""

# ------------------------------------------------------------------------------------------------------------- parameters


def embedding_parameters(vocabulary, context, width):
    """V h + s h: a row per token and a row per position (Vaswani et al., arXiv 1706.03762, sections 3.4 and 3.5; learned positions)."""
    return vocabulary * width + context * width


def attention_parameters(width):
    """4 h^2 + 4 h: query, key, value and output matrices with their biases (arXiv 1706.03762, section 3.2)."""
    return 4 * width**2 + 4 * width


def feed_forward_parameters(width):
    """8 h^2 + 5 h: h to 4h and back, with biases (arXiv 1706.03762, section 3.3)."""
    return 8 * width**2 + 5 * width


def norm_parameters(width):
    """2 h: a gain and a shift per channel (Ba et al., arXiv 1607.06450, section 3)."""
    return 2 * width


def block_parameters(width):
    """12 h^2 + 13 h: attention, feed-forward and two norms."""
    return attention_parameters(width) + feed_forward_parameters(width) + 2 * norm_parameters(width)


def gpt_parameters(size):
    """V h + s h + L (12 h^2 + 13 h) + 2 h, with the head's matrix tied to the token table (GPT-2).

    Megatron-LM's equation 2 (arXiv 2104.04473, section 5.1) omits the final norm's 2 h.
    """
    return embedding_parameters(size.vocabulary, size.context, size.width) + size.layers * block_parameters(size.width) + norm_parameters(size.width)


# ------------------------------------------------------------------------------------------------------------------- FLOPs


def attention_flops(batch, sequence, width):
    """8 b s h^2 + 4 b s^2 h forward: four projections, and the products q k^T and scores v (arXiv 2104.04473, appendix)."""
    return 8 * batch * sequence * width**2 + 4 * batch * sequence**2 * width


def feed_forward_flops(batch, sequence, width):
    """16 b s h^2 forward: two products with 4 h^2 weights each (arXiv 2104.04473, appendix)."""
    return 16 * batch * sequence * width**2


def block_flops(batch, sequence, width):
    """24 b s h^2 + 4 b s^2 h forward (arXiv 2104.04473, appendix)."""
    return attention_flops(batch, sequence, width) + feed_forward_flops(batch, sequence, width)


def gpt_flops(size, batch, sequence):
    """Forward: L blocks and the head's 2 b s h V; the embedding is a look-up and counts as none."""
    return size.layers * block_flops(batch, sequence, size.width) + 2 * batch * sequence * size.width * size.vocabulary


def training_flops(forward, recomputed=0):
    """3 x forward, since the backward pass does two products for each of the forward pass; plus what checkpointing computes again."""
    return 3 * forward + recomputed


# ------------------------------------------------------------------------------------------------------------- activations


def embedding_activation_bytes(sequence):
    """8 s: the int64 positions that the position table's backward needs (the token ids are inputs)."""
    return 8 * sequence


def norm_activation_bytes(batch, sequence, width, element, device="cpu"):
    """e s b h + 2 e s b: the norm's input, and a mean and a reciprocal deviation per token (on CUDA in fp32: 8 s b)."""
    statistics = element if device == "cpu" else 4
    return element * batch * sequence * width + 2 * statistics * batch * sequence


def attention_activation_bytes(batch, sequence, width, heads, element, kernel="sdpa", device="cpu"):
    """What attention keeps, without its norm.

    sdpa: 5 e s b h + 4 a s b: its input, q, k and v, the result, and one fp32 log-sum-exp per head and token (FlashAttention,
    arXiv 2205.14135, section 3.1).
    explicit: 5 e s b h + e a s^2 b + s^2: the softmax of s x s scores for every head instead, and one boolean mask.  Korthikanti et al.
    (arXiv 2205.05198, section 4.1) count 5 a s^2 b, since they keep the softmax, its dropout mask and the dropout's output.
    """
    tokens = batch * sequence
    if kernel == "sdpa":
        return 5 * element * tokens * width + 4 * heads * tokens + (16 if device == "cuda" and element == 2 else 0)
    return 5 * element * tokens * width + element * heads * sequence * tokens + sequence**2


def feed_forward_activation_bytes(batch, sequence, width, element):
    """9 e s b h: its input, and four widths before and after the GELU (Korthikanti et al., arXiv 2205.05198, section 4.1)."""
    return 9 * element * batch * sequence * width


def block_activation_bytes(batch, sequence, width, heads, element, kernel="sdpa", device="cpu"):
    """One pre-norm block, its input counted and its output not: two norms, attention, feed-forward."""
    return (
        2 * norm_activation_bytes(batch, sequence, width, element, device)
        + attention_activation_bytes(batch, sequence, width, heads, element, kernel, device)
        + feed_forward_activation_bytes(batch, sequence, width, element)
    )


def head_activation_bytes(batch, sequence, width, vocabulary, element, device="cpu"):
    """Final norm, its output, fp32 log-softmax of V scores per token, and the loss with its weight (8 bytes)."""
    tokens = batch * sequence
    return norm_activation_bytes(batch, sequence, width, element, device) + element * tokens * width + 4 * tokens * vocabulary + 8


def gpt_activation_bytes(size, batch, sequence, element, kernel="sdpa", device="cpu"):
    """Everything kept between the forward and the backward pass of a GPT with its loss, in bytes."""
    return (
        embedding_activation_bytes(sequence)
        + size.layers * block_activation_bytes(batch, sequence, size.width, size.heads, element, kernel, device)
        + head_activation_bytes(batch, sequence, size.width, size.vocabulary, element, device)
    )


def checkpointed_activation_bytes(size, batch, sequence, element, device="cpu"):
    """The same when every block is checkpointed: e s b h per block, its input (Chen et al., arXiv 1604.06174, section 4)."""
    return (
        embedding_activation_bytes(sequence)
        + size.layers * element * batch * sequence * size.width
        + head_activation_bytes(batch, sequence, size.width, size.vocabulary, element, device)
    )


def korthikanti_block_bytes(batch, sequence, width, heads):
    """s b h (34 + 5 a s / h): fp16, dropout masks of one byte, explicit softmax (arXiv 2205.05198, equation 1)."""
    return batch * sequence * width * 34 + 5 * heads * sequence**2 * batch
