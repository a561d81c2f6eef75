"""Today's models, Llama and Qwen3 as transformers 5 builds and runs them: gated feed-forward, grouped-query
attention, RMSNorm, rotary positions.

Functions of `layers` take a `LlamaSize` where they take a `GPTSize`, and find their formulas here.  Beside
the symbols of `layers`:

    kv_heads      k   heads of keys and values; a / k heads of queries share one
    feed_forward  f   inner width of the feed-forward layer
    head_width    d   channels of a head, h / a unless the model says otherwise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..whole import whole
from .layers import (
    FP32,
    TOKEN_ID,
    activation_parts,
    gpt_flops,
    random_state_bytes,
    tensors,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

KNOWN = {"llama": False, "qwen3": True}  # transformers' `model_type`: whether queries and keys are normalised


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """The numbers that fix the shape of a Llama or a Qwen3; a ValueError where they do not divide."""

    vocabulary: int  # V, distinct tokens
    context: int  # longest sequence, in tokens; positions are rotations and have no parameters
    width: int  # h, channels of the residual stream
    layers: int  # L, blocks
    heads: int  # a
    kv_heads: int  # k
    feed_forward: int  # f
    head_width: int  # d
    qk_norm: bool = False  # whether each head of queries and keys is normalised, as in Qwen3
    tied: bool = False  # whether the head's matrix is the token table

    def __post_init__(self):
        for name in SHAPE:
            whole(getattr(self, name), name)
        if self.heads % self.kv_heads or self.head_width % 2:
            counts = f"{self.heads} heads, {self.kv_heads} of keys and values, of {self.head_width} channels"
            raise ValueError(f"{counts}: heads must be a multiple of kv_heads, and head_width must be even")

    @classmethod
    def of(cls, config: PreTrainedConfig | Mapping) -> LlamaSize:
        """Of a `LlamaConfig` or `Qwen3Config`, or of a dict of its keys, a Llama's unless "model_type" says
        otherwise.  A ValueError for what is not counted: other models, and biases."""
        known = dict(config) if isinstance(config, Mapping) else config.to_dict()
        kind = known.get("model_type") or "llama"
        if kind not in KNOWN or known.get("attention_bias") or known.get("mlp_bias"):
            words = f"the formulas know {' and '.join(KNOWN)} without biases"
            raise ValueError(f"{words}, not {kind} with this configuration: rehearse it instead")
        heads, width = known["num_attention_heads"], known["hidden_size"]
        return cls(
            vocabulary=known["vocab_size"],
            context=known.get("max_position_embeddings") or 2048,
            width=width,
            layers=known["num_hidden_layers"],
            heads=heads,
            kv_heads=known.get("num_key_value_heads") or heads,
            feed_forward=known["intermediate_size"],
            head_width=known.get("head_dim") or width // heads,
            qk_norm=KNOWN[kind],
            tied=bool(known.get("tie_word_embeddings")),
        )

    @property
    def letters(self) -> dict[str, int]:
        """{symbol: number} of the model, in the alphabet of formulas: h, a, k, d, f, L, V."""
        return {letter: getattr(self, name) for letter, name in LETTERS.items()}

    @property
    def attention_width(self) -> int:
        """a d: channels of all queries together."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """k d: channels of all keys together, and of all values."""
        return self.kv_heads * self.head_width

    @property
    def modules(self) -> int:
        """Modules that have parameters, each one tensor: the table, those of L blocks, the last norm, and the
        head."""
        return self.layers * len(llama_tensors(self)["block"]) + 3


LETTERS = {"h": "width", "a": "heads", "k": "kv_heads", "d": "head_width", "f": "feed_forward"}
LETTERS |= {"L": "layers", "V": "vocabulary"}
SHAPE = ("vocabulary", "context", "width", "layers", "heads", "kv_heads", "feed_forward", "head_width")


@tensors.register
def llama_tensors(size: LlamaSize) -> dict[str, list[int]]:
    """V h; L times q, k, v, output (h d (2 a + 2 k)), two norms of d in a Qwen3, three matrices of h f, two
    norms of h; a norm of h and, untied, V h once more (transformers' `modeling_llama`, `modeling_qwen3`)."""
    h, table = size.width, size.vocabulary * size.width
    queries, keys = h * size.attention_width, h * size.kv_width
    heads = [size.head_width] * 2 if size.qk_norm else []
    block = [queries, keys, keys, queries, *heads, *[h * size.feed_forward] * 3, h, h]
    return {"embedding": [table], "block": block, "head": [h] if size.tied else [h, table]}


@gpt_flops.register
def llama_flops(size: LlamaSize, batch: int, sequence: int) -> int:
    """L (b s h (4 a d + 4 k d + 6 f) + 4 b s^2 a d) + 2 b s h V FLOPs, forward; rotations count as none."""
    tokens, a_d = batch * sequence, size.attention_width
    matrices = size.width * (4 * a_d + 4 * size.kv_width + 6 * size.feed_forward)
    block = tokens * matrices + 4 * tokens * sequence * a_d
    return size.layers * block + 2 * tokens * size.width * size.vocabulary


def rms_norm_activation_bytes(tokens: int, heads: int, width: int, element_bytes: int) -> int:
    """(4 + e) heads h + 4 heads bytes for each token: transformers' norm keeps its input cast to fp32 (in
    fp32 the input itself), a reciprocal deviation, and what it has normalised.

    Its result is another e h, which counts where it is used: a norm of a block keeps three times its input in
    fp32 and four times in bf16.
    """
    return tokens * heads * ((FP32 + element_bytes) * width + FP32)


@activation_parts.register
def llama_activation_parts(
    size: LlamaSize, batch: int, sequence: int, element_bytes: int, kernel: str = "sdpa", device: str = "cpu"
) -> dict[str, int]:
    """Embedding: 2 e s d, cosines and sines of one sequence, and 8 s positions where blocks are checkpointed.
    Block: two norms with their results; q and attention's result, 2 e a d for each token, k and v, 2 e k d, a
    log-sum-exp per head in fp32, in a Qwen3 norms of queries and keys; four tensors of f.  Head: a norm with
    its result, the log-softmax in fp32, int64 labels, the loss and its weight, 4 each.

    In fp32 on CUDA torch has no fused kernel that shares keys: a ValueError, as for an explicit kernel.
    """
    if kernel != "sdpa" or (device == "cuda" and element_bytes == FP32 and size.heads > size.kv_heads):
        raise ValueError("what a Llama keeps is counted with fused attention, which on CUDA needs bf16")
    tokens, e, d = batch * sequence, element_bytes, size.head_width
    norm = rms_norm_activation_bytes(tokens, 1, size.width, e) + e * tokens * size.width
    attention = tokens * (2 * e * (size.attention_width + size.kv_width) + FP32 * size.heads)
    if size.qk_norm:
        attention += rms_norm_activation_bytes(tokens, size.heads + size.kv_heads, d, e)
    block = 2 * norm + attention + 4 * e * tokens * size.feed_forward + random_state_bytes(e, device)
    head = norm + tokens * (FP32 * size.vocabulary + TOKEN_ID) + 2 * FP32
    return {
        "embedding": 2 * e * sequence * d,
        "block": block,
        "whole": 2 * norm,
        "again": e * tokens * size.width + 2 * e * tokens * size.feed_forward,
        "head": head,
        "arguments": TOKEN_ID * sequence,
    }
