"""Real layers of transformers' Llama, by the alphabet of lesson 01: built small on the CPU, run once forward
in bf16, and counted.

Letters: b sequences, s tokens, h width, a heads, k key-value heads, d channels of a head, f inner width of
the feed-forward layer, L blocks, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from helpers.tools.measure.saved import SavedActivations

if TYPE_CHECKING:
    from transformers import LlamaConfig

REAL = {"attention": "LlamaAttention", "feed_forward": "LlamaMLP"}  # {rung: its class in transformers}
REAL |= {"block": "LlamaDecoderLayer", "llama": "LlamaForCausalLM"}


class Reads(nn.Module):
    """A layer behind a copy of its input, so that the input counts where the layer keeps it; rotations of
    positions, which all blocks share, do not count."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_bsh: torch.Tensor, **shared: object) -> object:
        return self.layer(x_bsh.clone(), **shared)


def config(
    h: int, a: int = 4, k: int = 2, d: int = 16, f: int = 128, L: int = 1, V: int = 256, tied: bool = False
) -> LlamaConfig:
    """Of a Llama with these letters, with fused attention."""
    from transformers import LlamaConfig

    shape = {"hidden_size": h, "num_attention_heads": a, "num_key_value_heads": k, "head_dim": d}
    shape |= {"intermediate_size": f, "num_hidden_layers": L, "vocab_size": V, "tie_word_embeddings": tied}
    return LlamaConfig(**shape, attn_implementation="sdpa", use_cache=False)


def stream(b: int, s: int, h: int) -> torch.Tensor:
    return torch.randn(b, s, h, dtype=torch.bfloat16, requires_grad=True)


def rotations(of: LlamaConfig, x_bsh: torch.Tensor) -> dict[str, object]:
    """What a block of transformers is given beside the stream."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    places = torch.arange(x_bsh.shape[1])[None]
    return {"position_embeddings": LlamaRotaryEmbedding(of)(x_bsh, places), "attention_mask": None}


def counted(module: nn.Module, *inputs: object, **shared: object) -> dict[str, int]:
    """{"parameters": elements, "FLOPs" of one forward pass, by torch's counter, with attention as plain
    products, "kept": bytes that autograd saves}."""
    with SavedActivations(module) as saved:
        module(*inputs, **shared)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(*inputs, **shared)
    numel = sum(parameter.numel() for parameter in module.parameters())
    return {"parameters": numel, "FLOPs": counter.get_total_flops(), "kept": saved.total}


def real(rung: str, b: int, s: int, **letters: int) -> dict[str, int]:
    """What is counted of the layer or model that a rung describes, with these letters."""
    from transformers.models.llama import modeling_llama

    of, kind = config(**letters), getattr(modeling_llama, REAL[rung])
    if rung == "llama":
        ids_bs = torch.randint(0, of.vocab_size, (b, s))
        return counted(kind(of).bfloat16(), input_ids=ids_bs, labels=ids_bs)
    x_bsh = stream(b, s, of.hidden_size)
    if rung == "feed_forward":
        return counted(Reads(kind(of).bfloat16()), x_bsh)
    return counted(Reads(kind(of, 0).bfloat16()), x_bsh, **rotations(of, x_bsh))
