"""One sequence shared by some of the ranks: the layers of lesson 13, with DeepSpeed's own exchange of heads
for tokens."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.models.gpt import Block, Embedding

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def share_sequence(layers: Iterable[nn.Module], group: ProcessGroup, place: int) -> None:
    """Give the `Embedding` and the `Block`s among these layers, in place, the forward passes of a rank that
    has the `place`-th of equal parts of each sequence, which the ranks of `group` share (Ulysses, arXiv
    2309.14509, section 3)."""
    from deepspeed.sequence.layer import DistributedAttention

    # heads are given away, tokens come in
    exchanged = DistributedAttention(_attend, group, scatter_idx=2, gather_idx=1)
    for layer in layers:
        if isinstance(layer, Embedding):
            layer.forward = partial(_embed, layer, place)
        elif isinstance(layer, Block):
            layer.attention.forward = partial(_attention, layer.attention, exchanged)


def _attend(q_bsad, k_bsad, v_bsad):
    q_basd, k_basd, v_basd = (x.transpose(1, 2) for x in (q_bsad, k_bsad, v_bsad))
    return F.scaled_dot_product_attention(q_basd, k_basd, v_basd, is_causal=True).transpose(1, 2)


def _attention(attention, exchanged, x_bsh):
    b, s, _ = x_bsh.shape
    qkv_bsad = attention.qkv(x_bsh).view(b, s, 3, -1, attention.head_width).unbind(2)
    return attention.out(exchanged(*(part.contiguous() for part in qkv_bsad), 0).flatten(2))


def _embed(embedding, place, ids_bs):
    own = ids_bs.shape[1]
    places_s = torch.arange(own, device=ids_bs.device) + place * own
    return embedding.tokens(ids_bs) + embedding.positions(places_s)
