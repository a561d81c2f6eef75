"""Building a model from a fixed seed, whole or partitioned while it is built."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from helpers.models.gpt import Block, Embedding, Head


def build(model_class, *arguments, config=None, seed=0, **options):
    """Build a model from a fixed seed; partitioned as it is built where the configuration says ZeRO stage 3.

    The one place that knows `zero.Init`: configuration, not code, selects it.
    """
    torch.manual_seed(seed)
    stage = (config or {}).get("zero_optimization", {}).get("stage", 0)
    if stage == 3:
        import deepspeed

        partitioned = deepspeed.zero.Init(config_dict_or_path=config)
    else:
        partitioned = nullcontext()
    with partitioned:
        return model_class(*arguments, **options)


def module_sizes(size):
    """For every module of a GPT, in the order of construction, the elements of each of its own parameters (the head's matrix, not yet tied, too)."""
    with torch.device("meta"):  # shapes without numbers
        pieces = [Embedding(size), *(Block(size) for _ in range(size.layers)), Head(size)]
    return [[parameter.numel() for parameter in module.parameters(recurse=False)] for piece in pieces for module in piece.modules()]


def build_transformers(shape, config=None, seed=0):
    """A causal language model of transformers, partitioned as it is built where `config` says ZeRO stage 3.

    Args:
        shape: a configuration of transformers, for instance a `GPTNeoXConfig`.
        config: DeepSpeed's.
    """
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    torch.manual_seed(seed)
    known = HfDeepSpeedConfig(config) if config else None  # transformers asks for it while this object lives
    model = AutoModelForCausalLM.from_config(shape)
    del known
    return model
