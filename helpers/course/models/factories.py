"""Building a model from a fixed seed, whole or partitioned while it is built, and what that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from helpers.course.models.gpt import Block, Embedding, GPTSize, Head
from helpers.tools.measure.ledger import Ledger
from helpers.tools.theory.deepspeed_config import read

Model = TypeVar("Model", bound=nn.Module)


def build(
    model_class: Callable[..., Model],
    *arguments: object,
    config: dict | None = None,
    seed: int = 0,
    **options: object,
) -> Model:
    """Build a model from a fixed seed; partitioned as it is built where the configuration says ZeRO stage 3.

    The one place that knows `zero.Init`: configuration, not code, selects it.
    """
    torch.manual_seed(seed)
    if not config or read(config).stage != 3:
        return model_class(*arguments, **options)
    import deepspeed

    with deepspeed.zero.Init(config_dict_or_path=config):
        return model_class(*arguments, **options)


def counted_build(build: Callable[[], nn.Module], device: str | None) -> dict[str, int]:
    """What a model takes on a device, or the rank's own: {"held": bytes of its parameters when it is built,
    "peak": bytes at most}."""
    with Ledger(device) as ledger:
        model, peak = build(), ledger.peak
        return {"held": ledger.watch(model).snapshot("built")["parameters"], "peak": peak}


def module_sizes(size: GPTSize) -> list[list[int]]:
    """For every module of a GPT, in the order of construction, the elements of each of its own parameters
    (the head's matrix, not yet tied, too)."""
    with torch.device("meta"):  # shapes without numbers
        pieces = [Embedding(size), *(Block(size) for _ in range(size.layers)), Head(size)]
    modules = [module for piece in pieces for module in piece.modules()]
    return [[parameter.numel() for parameter in module.parameters(recurse=False)] for module in modules]
