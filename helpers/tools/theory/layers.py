"""Parameters, FLOPs and saved activations of a GPT, layer by layer.

Arguments that have the same meaning everywhere, with the symbol that formulas give them:

    batch           b   sequences
    sequence        s   tokens of each
    width           h   channels of the residual stream
    heads           a   of attention
    vocabulary      V   distinct tokens
    context             longest sequence, tokens
    size                a `GPTSize`: V, context, h, L layers (blocks), a; or where a function says so, or is
                        called by its name alone, a `LlamaSize`, whose formulas are in `llama`
    element_bytes   e   bytes per element of activations: 2 in bf16, 4 in fp32
    kernel              of attention: "sdpa" (fused) or "explicit" (the s x s scores are a tensor)
    device              "cpu" or "cuda", which keeps a norm's statistics in fp32

Parameters are counted in elements.  One multiply-add counts as two FLOPs; only matrix products are counted,
as in Megatron-LM (Narayanan et al., arXiv 2104.04473, appendix) and in torch's own FLOP counter.  Activations
are the tensors that autograd keeps for the backward pass, in bytes, each storage once, parameters not
counted; where no source is named, the tests hold them against the ledger.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING

from .gpt_size import GPTSize, of_gpts

if TYPE_CHECKING:
    from .llama import LlamaSize

TOKEN_ID = 8  # bytes: int64
BF16, FP32 = 2, 4  # bytes


def embedding_parameters(vocabulary: int, context: int, width: int) -> int:
    """V h + context h elements: a row per token and per position (arXiv 1706.03762, sections 3.4, 3.5)."""
    return vocabulary * width + context * width


def attention_parameters(width: int) -> int:
    """4 h^2 + 4 h elements: four matrices with their biases (arXiv 1706.03762, section 3.2)."""
    return 4 * width**2 + 4 * width


def feed_forward_parameters(width: int) -> int:
    """8 h^2 + 5 h elements: from h to 4 h and back, with biases (arXiv 1706.03762, section 3.3)."""
    return 8 * width**2 + 5 * width


def norm_parameters(width: int) -> int:
    """2 h elements: a gain and a shift per channel (Ba et al., arXiv 1607.06450, section 3)."""
    return 2 * width


def block_parameters(width: int) -> int:
    """12 h^2 + 13 h elements: attention, feed-forward and two norms."""
    return attention_parameters(width) + feed_forward_parameters(width) + 2 * norm_parameters(width)


@singledispatch
def tensors(size: GPTSize | LlamaSize) -> dict[str, list[int]]:
    """Elements of each parameter in the model's order: {"embedding": [...], "block": those of one, "head":
    [...]}; the head of a GPT is its token table."""
    h = size.width
    norm, square, wide = [h, h], h * h, 4 * h * h
    block = [*norm, 3 * square, 3 * h, square, h, *norm, wide, 4 * h, wide, h]
    return {"embedding": [size.vocabulary * h, size.context * h], "block": block, "head": norm}


def elements(size: GPTSize | LlamaSize) -> list[int]:
    """Of each parameter of a whole model, in its order, as `deepspeed_bytes` takes them."""
    parts = tensors(size)
    return parts["embedding"] + size.layers * parts["block"] + parts["head"]


def gpt_parameters(size: GPTSize | LlamaSize) -> int:
    """V h + context h + L (12 h^2 + 13 h) + 2 h elements; the head's matrix is the token table (GPT-2).  Of a
    `LlamaSize` those of `llama_tensors`.

    Megatron-LM's equation 2 (arXiv 2104.04473, section 5.1) omits the final norm's 2 h.
    """
    parts = {name: sum(sizes) for name, sizes in tensors(size).items()}
    return parts["embedding"] + size.layers * parts["block"] + parts["head"]


def attention_flops(batch: int, sequence: int, width: int) -> int:
    """8 b s h^2 + 4 b s^2 h FLOPs, forward: four projections, and the products q k^T and scores v."""
    return 8 * batch * sequence * width**2 + 4 * batch * sequence**2 * width


def feed_forward_flops(batch: int, sequence: int, width: int) -> int:
    """16 b s h^2 FLOPs, forward: two products with 4 h^2 weights each."""
    return 16 * batch * sequence * width**2


def block_flops(batch: int, sequence: int, width: int) -> int:
    """24 b s h^2 + 4 b s^2 h FLOPs, forward."""
    return attention_flops(batch, sequence, width) + feed_forward_flops(batch, sequence, width)


@singledispatch
def gpt_flops(size: GPTSize | LlamaSize, batch: int, sequence: int) -> int:
    """L (24 b s h^2 + 4 b s^2 h) + 2 b s h V FLOPs, forward; the embedding, a look-up, counts as none."""
    head = 2 * batch * sequence * size.width * size.vocabulary
    return size.layers * block_flops(batch, sequence, size.width) + head


def training_flops(forward: int, recomputed: int = 0) -> int:
    """3 forward + recomputed FLOPs: the backward pass does two products for each of the forward pass, and
    checkpointing computes some again."""
    return 3 * forward + recomputed


def embedding_activation_bytes(sequence: int) -> int:
    """8 s bytes: the int64 positions that the position table's backward needs (the token ids are inputs)."""
    return TOKEN_ID * sequence


def norm_activation_bytes(
    batch: int, sequence: int, width: int, element_bytes: int, device: str = "cpu"
) -> int:
    """e s b h + 2 e s b bytes: the norm's input, and a mean and a reciprocal deviation per token; on CUDA
    these are fp32, 8 s b."""
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
    """What attention keeps, without its norm: its input, q, k and v, the result, 5 e s b h bytes; and scores:
    "sdpa" 4 a s b, one fp32 log-sum-exp per head and token (Dao et al., FlashAttention, arXiv 2205.14135,
    section 3.1), "explicit" e a s^2 b + s^2, the softmax of the scores and one boolean mask."""
    tokens = batch * sequence
    vectors = 5 * element_bytes * tokens * width
    if kernel == "sdpa":
        return vectors + FP32 * heads * tokens + random_state_bytes(element_bytes, device)
    return vectors + element_bytes * heads * sequence * tokens + sequence**2


def random_state_bytes(element_bytes: int, device: str) -> int:
    """16 bytes that a fused 16-bit attention keeps on CUDA, whatever its size: seed and offset, two int64."""
    return 16 if device == "cuda" and element_bytes == 2 else 0


def feed_forward_activation_bytes(batch: int, sequence: int, width: int, element_bytes: int) -> int:
    """9 e s b h bytes: its input, and four widths before and four after the GELU (arXiv 2205.05198, section
    4.1, without the dropout mask)."""
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
    """Bytes of a pre-norm block, its input counted and its output not: two norms, attention, feed-forward."""
    norms = 2 * norm_activation_bytes(batch, sequence, width, element_bytes, device)
    attention = attention_activation_bytes(batch, sequence, width, heads, element_bytes, kernel, device)
    return norms + attention + feed_forward_activation_bytes(batch, sequence, width, element_bytes)


def head_activation_bytes(
    batch: int, sequence: int, width: int, vocabulary: int, element_bytes: int, device: str = "cpu"
) -> int:
    """A norm's bytes, e s b h + 4 s b V + 8: final norm, its output, the fp32 log-softmax of V scores per
    token, and the loss with its weight, fp32 each."""
    tokens = batch * sequence
    norm = norm_activation_bytes(batch, sequence, width, element_bytes, device)
    return norm + element_bytes * tokens * width + FP32 * tokens * vocabulary + 2 * FP32


@singledispatch
def activation_parts(
    size: GPTSize | LlamaSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> dict[str, int]:
    """Bytes kept by the parts of a model: {"embedding", "block": by each, "whole": of it, what tensor
    parallelism by itself does not divide, "again": on top of it and of its input, while its backward pass
    holds the most, "head": with the loss, "arguments": more by all checkpointed blocks together than their
    inputs}."""
    shape, unit = (batch, sequence, size.width), element_bytes * batch * sequence * size.width
    block = block_activation_bytes(*shape, size.heads, element_bytes, kernel, device)
    return {
        "embedding": embedding_activation_bytes(sequence),
        "block": block,
        "whole": 2 * norm_activation_bytes(*shape, element_bytes, device) + 2 * unit,
        "again": repeated_block_bytes(*shape, size.heads, element_bytes, device) - block,
        "head": head_activation_bytes(*shape, size.vocabulary, element_bytes, device),
        "arguments": 0,
    }


def gpt_activation_bytes(
    size: GPTSize | LlamaSize,
    batch: int,
    sequence: int,
    element_bytes: int,
    kernel: str = "sdpa",
    device: str = "cpu",
) -> int:
    """Bytes kept between forward and backward pass of a model with its loss: embedding, L blocks, head."""
    parts = activation_parts(size, batch, sequence, element_bytes, kernel, device)
    return parts["embedding"] + size.layers * parts["block"] + parts["head"]


def checkpointed_activation_bytes(
    size: GPTSize | LlamaSize, batch: int, sequence: int, element_bytes: int, device: str = "cpu"
) -> int:
    """The same when every block is checkpointed and keeps its input alone, L e s b h (Chen et al., arXiv
    1604.06174, section 4)."""
    parts = activation_parts(size, batch, sequence, element_bytes, device=device)
    inputs = size.layers * element_bytes * batch * sequence * size.width
    return parts["embedding"] + parts["arguments"] + inputs + parts["head"]


def repeated_block_bytes(
    batch: int, sequence: int, width: int, heads: int, element_bytes: int, device: str = "cpu"
) -> int:
    """Bytes that a checkpointed block takes on top of its input while its backward pass begins: its inside,
    its result and the result's gradient (e s b h each), and the gradient of the last product's argument (4 e
    s b h), but no gradients of parameters."""
    block = block_activation_bytes(batch, sequence, width, heads, element_bytes, device=device)
    return block + (-1 + 1 + 1 + 4) * element_bytes * batch * sequence * width  # without its input


@of_gpts
def pass_peak_bytes(
    size: GPTSize, batch: int, sequence: int, element_bytes: int, checkpointing: bool, device: str = "cpu"
) -> dict[str, int]:
    """Bytes at the moments of one forward and backward pass that compete for its peak; parameters, token ids
    and targets counted, no optimizer.

    "at the loss": what is kept, and the gradients of log-softmax and logits, fp32 each.  Checkpointed also
    "in the last block" and "in the first block": `repeated_block_bytes`, the inputs that are left, and
    gradients of the head, of the blocks behind, and of the block's last product.  Backwards each block adds
    the gradients of its parameters and releases the input of the next (b s h): with more than 12 h tokens the
    last block, which runs first, holds the most, with fewer the first.  Exact from two sequences on (with
    one, 8 (s - 1) too many in the first block).  With fewer tokens than about h the peak may lie later, where
    the gradient of the embedding is made.
    """
    tokens, width, vocabulary = batch * sequence, size.width, size.vocabulary
    always = element_bytes * gpt_parameters(size) + 2 * TOKEN_ID * tokens
    kept_by = checkpointed_activation_bytes if checkpointing else gpt_activation_bytes
    kept = kept_by(size, batch, sequence, element_bytes, device=device)
    moments = {"at the loss": always + kept + 2 * FP32 * tokens * vocabulary}
    if checkpointing:
        unit, weights = element_bytes * tokens * width, element_bytes * block_parameters(width)
        gradients = element_bytes * (vocabulary * width + 2 * width + 4 * width**2 + width)
        block = always + embedding_activation_bytes(sequence) + 2 * FP32 + gradients
        block += repeated_block_bytes(batch, sequence, width, size.heads, element_bytes, device)
        moments["in the last block"] = block + size.layers * unit
        moments["in the first block"] = block + unit + (size.layers - 1) * weights
    return moments


def bytes_at_the_loss(
    size: GPTSize | LlamaSize,
    batch: int,
    sequence: int,
    checkpointing: bool = False,
    accumulates: bool = False,
) -> dict[str, int]:
    """What a GPU holds at the loss of a micro-batch, trained with Adam in bf16 mixed precision (Rajbhandari
    et al., arXiv 1910.02054, section 3.1), {category: bytes}; "gradients" only of a micro-batch before, where
    it `accumulates`; "other" is 8 for each logit, its gradient and that of its log-softmax in fp32."""
    parameters = gpt_parameters(size)
    kept_by = checkpointed_activation_bytes if checkpointing else gpt_activation_bytes
    return {
        "parameters": BF16 * parameters,
        "gradients": BF16 * parameters if accumulates else 0,
        "master weights": FP32 * parameters,
        "optimizer states": 2 * FP32 * parameters,
        "activations": kept_by(size, batch, sequence, BF16, device="cuda"),
        "other": 2 * FP32 * batch * sequence * size.vocabulary,
    }


def korthikanti_block_bytes(batch: int, sequence: int, width: int, heads: int) -> int:
    """s b h (34 + 5 a s / h) bytes: a block as Megatron-LM trains it: fp16, dropout with masks of one byte,
    explicit softmax (Korthikanti et al., arXiv 2205.05198, equation 1)."""
    return batch * sequence * width * 34 + 5 * heads * sequence**2 * batch
