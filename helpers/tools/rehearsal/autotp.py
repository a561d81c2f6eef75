"""Matrices on several ranks (DeepSpeed's AutoTP): whether it can divide a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .refusing import BadQuestion

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..theory.deepspeed_config import Configuration

SECTION = "tensor_parallel"


def check(known: Configuration, ranks: int, name: str, shape: PreTrainedConfig) -> int:
    """How many ranks share a matrix; asks AutoTP whether it can divide the model, before that is built.

    Raises:
        BadQuestion: it cannot, or the ranks cannot be divided so.
    """
    import torch
    from deepspeed.module_inject.auto_tp import AutoTP
    from deepspeed.module_inject.tp_plan_converter import TPPlanConverter
    from deepspeed.module_inject.tp_shard import AutoTPMeta
    from deepspeed.runtime.tensor_parallel.config import _get_hf_tp_plan

    from .of_transformers import build_transformers

    tensor = known.deepspeed.tensor_parallel_config.autotp_size
    if ranks % tensor:
        raise BadQuestion(f"{SECTION}.autotp_size {tensor} does not divide {ranks:,} ranks")
    heads = AutoTPMeta.from_model_config(shape).num_kv_heads
    if known.stage == 3 and heads is not None and tensor > heads:
        empty = f"{tensor - heads} of {tensor} ranks would have no part of its {heads} key-value heads"
        raise BadQuestion(f"DeepSpeed's ZeRO-3 fails where AutoTP leaves a rank nothing: {empty}")
    if known.deepspeed.tensor_parallel_config.get_partition_config_object() is not None:
        return tensor
    with torch.device("meta"):
        model = build_transformers(shape, architecture=name)
    try:
        plan = _get_hf_tp_plan(model)
        if not plan or TPPlanConverter.convert(plan) is None:
            AutoTP.tp_parser(model)
    except (AssertionError, ValueError) as error:
        words = " ".join(str(error).split()).rstrip(".")
        raise BadQuestion(f"DeepSpeed's AutoTP does not divide {name}: {words}") from error
    return tensor
