"""One GPT in plain torch, written to be read, in pieces that a pipeline can take as layers.

Shapes in names: B batch, T tokens (sequence), C channels (width), H heads, D channels per head, V vocabulary.
"""

from __future__ import annotations  # lessons print some of these functions, whose arguments have no types

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
    """Token ids (B, T) to vectors (B, T, C): a row per token plus a row per position."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.tokens = Table(size.vocabulary, size.width)
        self.positions = Table(size.context, size.width)

    def forward(self, ids_BT):
        places_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        return self.tokens(ids_BT) + self.positions(places_T)


class Attention(nn.Module):
    """Every token looks at itself and at the tokens before it."""

    def __init__(self, size: GPTSize, kernel: str = "sdpa") -> None:
        super().__init__()
        if kernel not in ("sdpa", "explicit"):
            raise ValueError(f'kernel must be "sdpa" or "explicit", not {kernel!r}')
        self.head_width, self.kernel = size.width // size.heads, kernel
        self.qkv = Linear(size.width, 3 * size.width)
        self.out = Linear(size.width, size.width, std=0.02 / math.sqrt(2 * size.layers))

    def forward(self, x_BTC):
        B, T, _ = x_BTC.shape
        # -1: as many heads as the weights hold, which is a part of them under tensor parallelism
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x_BTC).view(B, T, 3, -1, self.head_width).permute(2, 0, 3, 1, 4)
        if self.kernel == "sdpa":
            y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        else:
            y_BHTD = explicit_attention(q_BHTD, k_BHTD, v_BHTD)
        return self.out(y_BHTD.transpose(1, 2).flatten(2))


def explicit_attention(q_BHTD, k_BHTD, v_BHTD):
    """The same by hand: the T x T scores exist as a tensor."""
    T, D = q_BHTD.shape[-2:]
    scores_BHTT = q_BHTD @ k_BHTD.transpose(-2, -1) / math.sqrt(D)
    future_TT = torch.ones(T, T, dtype=torch.bool, device=q_BHTD.device).triu(1)
    return scores_BHTT.masked_fill(future_TT, float("-inf")).softmax(-1) @ v_BHTD


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, for each token by itself."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.up = Linear(size.width, 4 * size.width)
        self.down = Linear(4 * size.width, size.width, std=0.02 / math.sqrt(2 * size.layers))

    def forward(self, x_BTC):
        return self.down(F.gelu(self.up(x_BTC)))


class Block(nn.Module):
    """Normalise, attend, add; normalise, feed forward, add."""

    def __init__(self, size: GPTSize, kernel: str = "sdpa") -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size, kernel)
        self.feed_forward_norm = nn.LayerNorm(size.width)
        self.feed_forward = FeedForward(size)

    def forward(self, x_BTC):
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC))
        return x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))


class Head(nn.Module):
    """Vectors (B, T, C) to a score per vocabulary entry (B, T, V)."""

    def __init__(self, size: GPTSize) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.width)
        self.scores = Linear(size.width, size.vocabulary, bias=False)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(x_BTC))


def next_token_loss(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32, nats per token."""
    return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten())


class NextTokenLoss(nn.Module):
    """The same as a module, in which a ledger knows that the forward pass of a pipeline goes on."""

    def forward(self, logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        return next_token_loss(logits_BTV, targets_BT)


class GPT(nn.Module):
    """Embedding, blocks, head; the head's matrix is the token table itself (tied), as in GPT-2.

    Args:
        kernel: "sdpa" (fused attention) or "explicit" (softmax of a T x T matrix).
        checkpointing: keep only each block's input and compute the block again in the backward pass.
    """

    def __init__(self, size: GPTSize = TINY, kernel: str = "sdpa", checkpointing: bool = False) -> None:
        super().__init__()
        self.size, self.checkpointing = size, checkpointing
        self.embedding = Embedding(size)
        self.blocks = nn.ModuleList(Block(size, kernel) for _ in range(size.layers))
        self.head = Head(size)
        self.head.scores.weight = self.embedding.tokens.weight

    def forward(self, ids_BT: torch.Tensor, targets_BT: torch.Tensor | None = None) -> torch.Tensor:
        """The loss where targets are given, else the logits (B, T, V)."""
        x_BTC = self.embedding(ids_BT)
        for block in self.blocks:
            if self.checkpointing and self.training:
                x_BTC = checkpoint(block, x_BTC, use_reentrant=False, preserve_rng_state=False)
            else:
                x_BTC = block(x_BTC)
        logits_BTV = self.head(x_BTC)
        return logits_BTV if targets_BT is None else next_token_loss(logits_BTV, targets_BT)
