"""The parts of a Llama block, without the order in which they work, which lesson 01's companion asks for.

Shapes in names as in `gpt`; a key-value head serves `heads / kv_heads` query heads.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class LlamaParts(nn.Module):
    """What a Llama block is made of (Touvron et al., arXiv 2302.13971, section 2.2; grouped queries: Ainslie
    et al., arXiv 2305.13245).

    Args:
        width: channels of the residual stream; a multiple of `heads`.
        heads: query heads; a multiple of `kv_heads`.
        kv_heads: heads of keys and of values.
        feed_forward: channels inside of the feed-forward layer.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, feed_forward: int) -> None:
        super().__init__()
        if width % heads or heads % kv_heads:
            raise ValueError(f"{width=} must be a multiple of {heads=}, and that one of {kv_heads=}")
        self.heads, self.kv_heads = heads, kv_heads
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * width // heads, bias=False)
        self.v = nn.Linear(width, kv_heads * width // heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5)
        self.gate = nn.Linear(width, feed_forward, bias=False)
        self.up = nn.Linear(width, feed_forward, bias=False)
        self.down = nn.Linear(feed_forward, width, bias=False)


def rotated(x_basd: torch.Tensor, first: int = 0, base: float = 10_000.0) -> torch.Tensor:
    """Rotary positions: channels i and i + d/2 are turned by an angle that grows with the position (Su et
    al., arXiv 2104.09864).  The `first` token has this position; the slowest pair turns about 1 / base
    radians per token."""
    s, d = x_basd.shape[-2:]
    places_s = torch.arange(first, first + s, device=x_basd.device)
    speeds = base ** -(torch.arange(0, d, 2, device=x_basd.device) / d)
    angles_sd = (places_s[:, None] * speeds).repeat(1, 2)
    left, right = x_basd.chunk(2, -1)
    turned_basd = torch.cat([-right, left], -1)  # every pair, a quarter turn further
    return x_basd * angles_sd.cos().to(x_basd.dtype) + turned_basd * angles_sd.sin().to(x_basd.dtype)


def attend(qkv_bsr: torch.Tensor, group: int, head_width: int = 8) -> torch.Tensor:
    """Causal attention of all heads that are here, each over all tokens: from (b, s, rows of [q; k; v]) to
    (b, s, channels of q).  Each key-value head serves `group` query heads, in order."""
    heads_bnsd = qkv_bsr.unflatten(-1, (-1, head_width)).transpose(1, 2)
    kv_heads = heads_bnsd.shape[1] // (group + 2)
    q_bnsd, k_bnsd, v_bnsd = heads_bnsd.split([group * kv_heads, kv_heads, kv_heads], 1)
    q_bnsd, k_bnsd = rotated(q_bnsd), rotated(k_bnsd)
    y_bnsd = F.scaled_dot_product_attention(q_bnsd, k_bnsd, v_bnsd, is_causal=True, enable_gqa=True)
    return y_bnsd.transpose(1, 2).flatten(2)
