"""The models that the course trains: a GPT in plain torch (`gpt`), and the ways to build one (`factories`)."""

from helpers.models.factories import build, build_transformers, module_sizes
from helpers.models.gpt import (
    GPT,
    GPT2,
    GPT2_XL,
    GPT3,
    TINY,
    Attention,
    Block,
    Embedding,
    FeedForward,
    GPTSize,
    Head,
    Linear,
    NextTokenLoss,
    Table,
    explicit_attention,
    next_token_loss,
)

__all__ = [
    "Attention",
    "Block",
    "Embedding",
    "FeedForward",
    "GPT",
    "GPT2",
    "GPT2_XL",
    "GPT3",
    "GPTSize",
    "Head",
    "Linear",
    "NextTokenLoss",
    "TINY",
    "Table",
    "build",
    "build_transformers",
    "explicit_attention",
    "module_sizes",
    "next_token_loss",
]
