"""What the tensors of a DeepSpeed engine, or of a torch module and its optimizer, are for: where torch 2.11
and DeepSpeed 0.19 keep them.  `tests/measure/test_internals.py` names each that a new version lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .internals import tree_leaves

# DeepSpeed's optimizer wrappers, {class: {category: attributes}}; each attribute holds a tensor or containers
# of tensors.
WRAPPERS = {
    "deepspeed.runtime.fp16.unfused_optimizer.FP16_UnfusedOptimizer": {  # stage 0 in bf16
        "parameters": ("fp16_groups",),
        "master weights": ("fp32_groups",),
    },
    "deepspeed.runtime.fp16.fused_optimizer.FP16_Optimizer": {  # the same with DeepSpeed's own FusedAdam
        "parameters": ("fp16_groups_flat",),
        "master weights": ("fp32_groups_flat",),
    },
    "deepspeed.runtime.zero.stage_1_and_2.DeepSpeedZeroOptimizer": {
        "parameters": ("bit16_groups_flat",),
        "master weights": ("single_partition_of_fp32_groups",),
        "gradients": ("averaged_gradients", "grads_in_partition", "all_grad_tensors"),
        "buffers": (
            "ipg_buckets",
            "param_buffer_of_bit16_for_cpu_offload_groups",
            "temp_grad_buffer_for_cpu_offload",
        ),
    },
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": {
        "parameters": ("fp16_groups", "fp16_partitioned_groups_flat", "lp_param_buffer"),
        "master weights": ("fp32_partitioned_groups_flat",),
        "gradients": ("averaged_gradients", "grad_partitions_flat_buffer"),
        "buffers": ("ipg_buckets",),
    },
    # stage 1 with gradients accumulated in fp32, and pipelines
    "deepspeed.runtime.bf16_optimizer.BF16_Optimizer": {
        "parameters": ("bf16_groups_flat",),
        "master weights": ("fp32_groups_flat_partition",),
        "gradients": (
            "fp32_groups_gradients_flat",
            "fp32_groups_gradients",
            "fp32_groups_gradient_flat_partition",
        ),
    },
    "deepspeed.runtime.zero.parameter_offload.DeepSpeedZeRoOffload": {},  # stage 3 without an optimizer
    "deepspeed.runtime.utils.DummyOptim": {},  # none
}
STATELESS = tuple(name for name, attributes in WRAPPERS.items() if not attributes)
# Optimizers that keep all their tensors in `state`, as torch's own do.
WITH_STATE = ("deepspeed.ops.adam.fused_adam.FusedAdam", "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam")
# Of a parameter under ZeRO-3: this rank's part; with hpZ its part among its neighbours, until the step.
SHARDS = ("ds_tensor", "ds_secondary_tensor")


def owned_tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """(category, tensor) of a DeepSpeed engine, or of a torch module and its optimizer.

    Raises:
        TypeError: for an optimizer of a class that is not known here.
    """
    module = getattr(model, "module", model)
    optimizer = optimizer or getattr(model, "optimizer", None)
    yield from (("buffers", buffer) for buffer in module.buffers())
    if optimizer is not None:
        yield from _tensors_of_optimizer(optimizer)
    for parameter in module.parameters():
        yield "parameters", parameter.data
        shards = [getattr(parameter, name, None) for name in SHARDS]
        yield from (("parameters", shard) for shard in shards if shard is not None)
        if parameter.grad is not None:
            yield "gradients", parameter.grad


def _tensors_of_optimizer(optimizer):
    name = _name(optimizer)
    if name in WRAPPERS:
        for category, attributes in WRAPPERS[name].items():
            for attribute in attributes:  # DeepSpeed creates only those that its configuration needs
                yield from ((category, tensor) for tensor in _tensors_in(getattr(optimizer, attribute, None)))
        if name in STATELESS:
            return
        optimizer, name = optimizer.optimizer, _name(optimizer.optimizer)
    if not name.startswith("torch.optim.") and name not in WITH_STATE:
        raise TypeError(
            f"the ledger does not know where {name} keeps its tensors, and would count them as "
            '"other": watch the model alone and label them yourself, `ledger.label("optimizer states", '
            f"tensor)`, or name the class in {__name__}"
        )
    yield from (("optimizer states", tensor) for tensor in _tensors_in(dict(optimizer.state)))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    yield from (("gradients", each.grad) for each in parameters if each.grad is not None)


def _name(thing):
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _tensors_in(value):
    """Every tensor in nested containers and DeepSpeed's bucket objects (which keep theirs in `buffer`)."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, (list, set)):  # a class of its own, as DeepSpeed's GradPartitionBufferGroup
            yield from _tensors_in([*leaf])
        elif hasattr(leaf, "buffer"):
            yield from _tensors_in(leaf.buffer)
