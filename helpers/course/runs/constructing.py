"""Building a model in a rank: what it holds meanwhile, and what DeepSpeed moves to the training device
afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from helpers.course import models
from helpers.course.models.factories import counted_build
from helpers.course.training.comparable import own_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def construct(size: models.GPTSize, dtype: str = "fp32", config: dict | None = None) -> dict[str, int]:
    """`counted_build` of a GPT in a rank: in full in the host's memory, in "fp32" or "bf16", or partitioned
    as it is built where a configuration of stage 3 is given, which then decides about the dtype."""
    import deepspeed

    deepspeed.init_distributed()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if dtype == "bf16" and config is None else torch.float32)
    try:
        device = "cpu" if config is None else None
        return counted_build(lambda: models.build(models.GPT, size, config=config), device)
    finally:
        torch.set_default_dtype(before)


WAYS = ("in full", "in full, then sharded", "in parts")


def moved_by_initialize(config: dict, size: models.GPTSize, how: str) -> str:
    """What `deepspeed.initialize` moves to the training device in one piece, in a rank: each call of
    `Module.to`, in words, or "nothing".

    Args:
        config: DeepSpeed's, of stage 3 in bf16.
        how: one of `WAYS`: "in full"; so too, in bf16, and then sharded by `zero.Init(module=)`, one
            parameter at a time; or "in parts", where each parameter is sharded as it is built.
    """
    import deepspeed

    calls, original = [], torch.nn.Module.to
    deepspeed.init_distributed()
    model = models.build(models.GPT, size, config=config if how == "in parts" else None)

    def to(module, *arguments, **options):
        weights = list(module.parameters())
        calls.append(f"{sum(weight.numel() for weight in weights):,} elements in {weights[0].dtype}")
        return original(module, *arguments, **options)

    torch.nn.Module.to = to
    try:
        if how == "in full, then sharded":
            deepspeed.zero.Init(module=model.bfloat16(), config_dict_or_path=config)
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    finally:
        torch.nn.Module.to = original
    return "; ".join(calls) or "nothing"


def beginning_of(model: PreTrainedModel, config: dict) -> dict[str, float]:
    """How a causal language model of transformers begins that DeepSpeed trains by this configuration, in a
    rank: {"sharded parameters": how many had been sharded before `initialize`, "table's deviation": the
    standard deviation of its token table, "first loss": of this rank's rows, in nats}."""
    import deepspeed

    model.loss_type = "ForCausalLM"  # transformers cannot tell it from every class's name, and would say so
    sharded = sum(hasattr(parameter, "ds_tensor") for parameter in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    with deepspeed.zero.GatheredParameters(table := model.get_input_embeddings().weight):
        deviation = table.std().item()
    ids, _ = own_rows(0, engine.device)
    loss = engine(ids, labels=ids).loss.item()
    return {"sharded parameters": sharded, "table's deviation": deviation, "first loss": loss}
