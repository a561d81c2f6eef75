"""The parts of a Llama block, without the order in which they work: that is what lesson 01 writes.

Shapes in names as in `gpt`; a key-value head serves `heads / kv_heads` query heads.
"""

from __future__ import annotations  # lesson 01 prints `LlamaParts.__init__`, whose arguments have no types

import torch
from torch import nn


class LlamaParts(nn.Module):
    """What a Llama block is made of (Touvron et al., arXiv 2302.13971, section 2.2; grouped queries: Ainslie
    et al., arXiv 2305.13245).

    Args:
        width: channels of the residual stream; a multiple of `heads`.
        heads: query heads; a multiple of `kv_heads`.
        kv_heads: heads of keys and of values.
        feed_forward: channels inside of the feed-forward layer.
    """

    def __init__(self, width, heads, kv_heads, feed_forward):
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


def rotated(x_BHTD: torch.Tensor, first: int = 0, base: float = 10_000.0) -> torch.Tensor:
    """Rotary positions: channels i and i + D/2 are turned by an angle that grows with the position (Su et
    al., arXiv 2104.09864).  The `first` token has this position; the slowest pair turns about 1 / base
    radians per token."""
    T, D = x_BHTD.shape[-2:]
    places_T = torch.arange(first, first + T, device=x_BHTD.device)
    speeds = base ** -(torch.arange(0, D, 2, device=x_BHTD.device) / D)
    angles_TD = (places_T[:, None] * speeds).repeat(1, 2)
    left, right = x_BHTD.chunk(2, -1)
    turned_BHTD = torch.cat([-right, left], -1)  # every pair, a quarter turn further
    return x_BHTD * angles_TD.cos().to(x_BHTD.dtype) + turned_BHTD * angles_TD.sin().to(x_BHTD.dtype)
