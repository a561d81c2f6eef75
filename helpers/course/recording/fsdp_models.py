"""A model of transformers under FSDP2, by itself and through Accelerate, beside ZeRO-3 on the same model in
`rehearsed_models`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from helpers.course.models.published import PUBLISHED
from helpers.course.recording.rehearsed_models import TRAININGS, Training, phases

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

BESIDE = TRAININGS["Llama, stage 3"]
WAYS = ("torch", "torch, unsharded between", "Accelerate")


def fsdp_models(through: str) -> list[dict]:
    """The training of `BESIDE` in bf16 with masters in fp32, by phase."""
    return phases(partial(train, BESIDE, through))


def train(training: Training, through: str, begin: Callable[[str, object], None]) -> None:
    """The steps of a rank; the arguments of `begin` are those of `rehearsed_models.train`."""
    import deepspeed
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    deepspeed.init_distributed()
    device = deepspeed.get_accelerator().current_device_name()
    begin("building", None)
    with torch.device(device):
        shape = AutoConfig.for_model(**PUBLISHED[training.model])
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32).train()
    prepared = through_accelerate if through == "Accelerate" else wrapped
    model, optimizer = prepared(model, reshard=through != "torch, unsharded between")
    for _ in range(training.steps):
        begin("forward", None)
        ids = torch.randint(3, 1000, (training.micro_batch, training.sequence), device=device)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        begin("backward", None)
        loss.backward()
        del loss
        begin("step", None)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    begin("end", None)


def wrapped(
    model: nn.Module, reshard: bool, sums: torch.dtype | None = None, fused: bool | None = None
) -> tuple[nn.Module, Optimizer]:
    """Every block and the whole by `fully_shard`, and AdamW.

    Args:
        reshard: whether weights are given back after the forward pass.
        sums: the type in which ranks add gradients; bf16 if None.
        fused: whether AdamW is one kernel.
    """
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=sums or torch.bfloat16)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mp_policy=policy, reshard_after_forward=reshard)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)


def through_accelerate(model: nn.Module, reshard: bool) -> tuple[nn.Module, Optimizer]:
    """The same by Accelerate's plugin."""
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[type(model.model.layers[0]).__name__],
        reshard_after_forward=reshard,
    )
    accelerator = Accelerator(fsdp_plugin=plugin, mixed_precision="bf16")
    return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
