"""The messages of sequence parallelism that a learner's operator calls."""

from __future__ import annotations

import torch
from torch import distributed as dist


def gather(own_tokens: torch.Tensor) -> torch.Tensor:
    """This rank's tokens, of shape (b, s / t, h), to those of all ranks in order, of shape (b, s, h)."""
    import deepspeed.comm as comm

    batch, tokens, channels = own_tokens.shape
    received = own_tokens.new_empty(dist.get_world_size() * batch, tokens, channels)
    comm.all_gather_into_tensor(received, own_tokens.contiguous())
    return torch.cat(received.split(batch), 1)


def scatter(part: torch.Tensor) -> torch.Tensor:
    """Each rank's part of a sum, of shape (b, s, h), to this rank's tokens of the sum, (b, s / t, h)."""
    import deepspeed.comm as comm

    by_rank = torch.cat(part.chunk(dist.get_world_size(), 1))
    own_tokens = part.new_empty(part.shape[0], part.shape[1] // dist.get_world_size(), part.shape[2])
    comm.reduce_scatter_tensor(own_tokens, by_rank)
    return own_tokens
