"""Models of transformers: built from a configuration, partitioned or whole, and checkpointed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

    Model = TypeVar("Model", bound=nn.Module)


def build_transformers(
    shape: PreTrainedConfig, config: dict | None = None, seed: int = 0, architecture: str | None = None
) -> PreTrainedModel:
    """A model of transformers from its configuration, as a `GPTNeoXConfig`: a causal language model, or the
    class of that name; partitioned as it is built where `config`, DeepSpeed's, says ZeRO stage 3."""
    import transformers
    from transformers.integrations import HfDeepSpeedConfig

    torch.manual_seed(seed)
    known = HfDeepSpeedConfig(config) if config else None  # transformers asks for it while this object lives
    if architecture is None:
        model = transformers.AutoModelForCausalLM.from_config(shape)
    else:
        kind = getattr(transformers, architecture)
        is_whole = isinstance(shape, kind.config_class)
        model = kind._from_config(shape if is_whole else shape.get_text_config())
    del known
    return model


def checkpointed(model: Model, blocks: bool | int = True) -> Model:
    """Let every block of a transformers model keep its input alone, by checkpointing without reentrance (the
    method's name has changed); or so many of them, the first.

    Raises:
        ValueError: the model has fewer blocks that can be checkpointed.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    if blocks is not True:
        from transformers.modeling_layers import GradientCheckpointingLayer

        every = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
        if not 0 < blocks <= len(every):
            raise ValueError(f"{blocks} blocks cannot be checkpointed: this model has {len(every)}")
        for block in every[blocks:]:
            block.gradient_checkpointing = False
    return model
