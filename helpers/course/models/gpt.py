"""One GPT in plain torch, written to be read, in pieces that a pipeline can take as layers.

Shapes in names, in the course's alphabet: b sequences, s tokens in each, h width, a heads, d channels of a
head, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from helpers.tools.theory.gpt_size import GPTSize

TINY = GPTSize()  # 0.2 M parameters: what the lessons train
GPT2 = GPTSize(vocabulary=50257, context=1024, width=768, layers=12, heads=12)  # GPT-2 124M
GPT2_XL = GPTSize(vocabulary=50257, context=1024, width=1600, layers=48, heads=25)
GPT3 = GPTSize(vocabulary=50257, context=2048, width=12288, layers=96, heads=96)  # GPT-3 175B


class Linear(nn.Linear):
    """Initialised in its own constructor, as GPT-2 is: `zero.Init` partitions a weight as soon as its module
    is built."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, std: float = 0.02) -> None:
        self.std = std
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Table(nn.Embedding):
    """An embedding table with GPT-2's initialisation."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


class Embedding(nn.Module):
    """Token ids (b, s) to vectors (b, s, h): a row per token plus a row per position."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.tokens = Table(size.vocabulary, size.width)
        self.positions = Table(size.context, size.width)

    def forward(self, ids_bs: torch.Tensor) -> torch.Tensor:
        places_s = torch.arange(ids_bs.shape[1], device=ids_bs.device)
        return self.tokens(ids_bs) + self.positions(places_s)


class Attention(nn.Module):
    """Every token looks at itself and at the tokens before it."""

    def __init__(self, size: GPTSize, kernel: str = "sdpa") -> None:
        super().__init__()
        if kernel not in ("sdpa", "explicit"):
            raise ValueError(f'kernel must be "sdpa" or "explicit", not {kernel!r}')
        self.head_width, self.kernel = size.width // size.heads, kernel
        self.qkv = Linear(size.width, 3 * size.width)
        self.out = Linear(size.width, size.width, std=0.02 / math.sqrt(2 * size.layers))

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        b, s, _ = x_bsh.shape
        # -1: as many heads as the weights hold, which is a part of them under tensor parallelism
        q_basd, k_basd, v_basd = self.qkv(x_bsh).view(b, s, 3, -1, self.head_width).permute(2, 0, 3, 1, 4)
        if self.kernel == "sdpa":
            y_basd = F.scaled_dot_product_attention(q_basd, k_basd, v_basd, is_causal=True)
        else:
            y_basd = explicit_attention(q_basd, k_basd, v_basd)
        return self.out(y_basd.transpose(1, 2).flatten(2))


def explicit_attention(q_basd: torch.Tensor, k_basd: torch.Tensor, v_basd: torch.Tensor) -> torch.Tensor:
    """The same by hand: the s x s scores exist as a tensor."""
    s, d = q_basd.shape[-2:]
    scores_bass = q_basd @ k_basd.transpose(-2, -1) / math.sqrt(d)
    future_ss = torch.ones(s, s, dtype=torch.bool, device=q_basd.device).triu(1)
    return scores_bass.masked_fill(future_ss, float("-inf")).softmax(-1) @ v_basd


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, for each token by itself."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.up = Linear(size.width, 4 * size.width)
        self.down = Linear(4 * size.width, size.width, std=0.02 / math.sqrt(2 * size.layers))

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x_bsh)))


class Block(nn.Module):
    """Normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, size: GPTSize, kernel: str = "sdpa") -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size, kernel)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.feed_forward = FeedForward(size)

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        x_bsh = x_bsh + self.attention(self.attention_norm(x_bsh))
        return x_bsh + self.feed_forward(self.feed_forward_norm(x_bsh))


class Head(nn.Module):
    """Vectors (b, s, h) to a score per vocabulary entry (b, s, V)."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.scores = Linear(size.width, size.vocabulary, bias=False)

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(x_bsh))


def next_token_loss(logits_bsV: torch.Tensor, targets_bs: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32, nats per token."""
    return F.cross_entropy(logits_bsV.float().flatten(0, 1), targets_bs.flatten())


class NextTokenLoss(nn.Module):
    """The same as a module, in which a ledger knows that the forward pass of a pipeline goes on."""

    def forward(self, logits_bsV: torch.Tensor, targets_bs: torch.Tensor) -> torch.Tensor:
        return next_token_loss(logits_bsV, targets_bs)


class GPT(nn.Module):
    """Embedding, blocks, head; the head's matrix is the token table itself (tied), as in GPT-2.

    Args:
        kernel: "sdpa" (fused attention) or "explicit" (softmax of an s x s matrix).
        checkpointing: keep only each block's input and compute the block again in the backward pass.
    """

    def __init__(self, size: GPTSize = TINY, kernel: str = "sdpa", checkpointing: bool = False) -> None:
        super().__init__()
        self.size, self.checkpointing = size, checkpointing
        self.embedding = Embedding(size)
        self.blocks = nn.ModuleList(Block(size, kernel) for _ in range(size.layers))
        self.head = Head(size)
        self.head.scores.weight = self.embedding.tokens.weight

    def forward(self, ids_bs: torch.Tensor, targets_bs: torch.Tensor | None = None) -> torch.Tensor:
        """The loss where targets are given, else the logits (b, s, V)."""
        x_bsh = self.embedding(ids_bs)
        for block in self.blocks:
            if self.checkpointing and self.training:
                x_bsh = checkpoint(block, x_bsh, use_reentrant=False, preserve_rng_state=False)
            else:
                x_bsh = block(x_bsh)
        logits_bsV = self.head(x_bsh)
        return logits_bsV if targets_bs is None else next_token_loss(logits_bsV, targets_bs)


class Untied(nn.Module):
    """A GPT whose layers share no parameter: embedding, blocks, and a head with a matrix of its own, each
    seeded by its place in `layers`.

    From token ids and targets, each of shape (b, s), to the loss.
    """

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        made = []
        for place, kind in enumerate((Embedding, *[Block] * size.layers, Head)):
            torch.manual_seed(place)
            made.append(kind(size))
        self.layers = nn.Sequential(*made)

    def forward(self, ids_bs: torch.Tensor, targets_bs: torch.Tensor) -> torch.Tensor:
        return next_token_loss(self.layers(ids_bs), targets_bs)
