"""Where torch and DeepSpeed keep the tensors of a training job: (category, tensor) for each, read off the live objects.

Written against DeepSpeed 0.19; an attribute that a version or a stage lacks is passed over.  Which optimizer class a stage uses:
stage 0 in bf16 FP16_UnfusedOptimizer, stages 1 and 2 DeepSpeedZeroOptimizer, stage 3 DeepSpeedZeroOptimizer_Stage3, BF16_Optimizer
for pipelines and fp32 accumulation.
"""

from __future__ import annotations

import torch

# Attributes of DeepSpeed's optimizer wrappers; each holds a tensor or containers of tensors.
ATTRIBUTES = {
    "parameters": ("bit16_groups_flat", "bf16_groups_flat", "fp16_groups_flat", "fp16_groups", "lp_param_buffer", "fp16_partitioned_groups_flat"),
    "master weights": (
        "single_partition_of_fp32_groups", "fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat",
    ),
    "gradients": (
        "averaged_gradients", "grads_in_partition", "all_grad_tensors", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat",
        "fp32_groups_gradients", "fp32_groups_gradient_flat_partition",
    ),
    "buffers": ("ipg_buckets", "param_buffer_of_bit16_for_cpu_offload_groups", "temp_grad_buffer_for_cpu_offload"),
}  # fmt: skip


def tensors_in(value):
    """Every tensor in nested lists, dicts and DeepSpeed's bucket objects (which keep theirs in `buffer`)."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from tensors_in(part)
    elif hasattr(value, "buffer") and not isinstance(value, torch.nn.Module):
        yield from tensors_in(value.buffer)


def owned_tensors(model, optimizer=None):
    """(category, tensor) of a DeepSpeed engine, or of a torch module and its optimizer."""
    module = getattr(model, "module", model)
    optimizer = optimizer or getattr(model, "optimizer", None)
    inner = getattr(optimizer, "optimizer", optimizer)
    for buffer in module.buffers():
        yield "buffers", buffer
    for category, names in ATTRIBUTES.items():
        for name in names:
            for tensor in tensors_in(getattr(optimizer, name, None)):
                yield category, tensor
    if inner is not None:
        for tensor in tensors_in(dict(inner.state)):
            yield "optimizer states", tensor
        for group in inner.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    yield "gradients", parameter.grad
    for parameter in module.parameters():
        yield "parameters", parameter.data
        if (shard := getattr(parameter, "ds_tensor", None)) is not None:
            yield "parameters", shard
        if parameter.grad is not None:
            yield "gradients", parameter.grad
