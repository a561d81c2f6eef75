"""Every formula of the course, as small pure functions of plain numbers: predict first, then measure.

All names of the table below, and the modules, are imported when they are asked for.
"""

from __future__ import annotations

import importlib

MODULES = {
    "backward": "Operation backward_operations gathered_bytes levels llama_moments",
    "combined": "cable_bytes coordinates groups_along sent_by_axis tensor_pipeline_held_bytes",
    "communication": "COLLECTIVES Pass collective_seconds hidden_fraction hiding_bandwidth wire_bytes"
    " zero_wire_bytes",
    "construction": "construction_peak_bytes largest_built_in_parts",
    "deepspeed_config": "",
    "experts": "all_to_all_bytes expert_capacity expert_parallel_bytes expert_parallel_wire_bytes",
    "fine_tuning": "disk_bytes fine_tuning_bytes frozen_bytes lora_activation_bytes lora_parameters"
    " offload_bytes quantised_bytes",
    "fsdp": "FSDP_MOMENTS ddp_bytes fsdp_bytes fsdp_wire_bytes",
    "gloo": "FRAME_HEADER FRAME_HEADERS GLOO_HEADER gloo_messages gloo_wire_bytes",
    "gpt_size": "GPTSize",
    "hardware": "HARDWARE PEAKS Cluster reference_cluster",
    "layers": "activation_parts attention_activation_bytes attention_flops attention_parameters"
    " block_activation_bytes block_flops block_parameters bytes_at_the_loss"
    " checkpointed_activation_bytes elements embedding_activation_bytes embedding_parameters"
    " feed_forward_activation_bytes feed_forward_flops feed_forward_parameters"
    " gpt_activation_bytes gpt_flops gpt_parameters head_activation_bytes korthikanti_block_bytes"
    " norm_activation_bytes norm_parameters pass_peak_bytes repeated_block_bytes tensors"
    " training_flops",
    "llama": "LlamaSize",
    "long_sequences": "llama_activation_bytes llama_wire_bytes loss_peak_bytes ring_activation_bytes"
    " ring_wire_bytes ulysses_activation_bytes ulysses_wire_bytes worst_moment_bytes",
    "known_machines": "MACHINES",
    "model_states": "MOMENTS deepspeed_bytes fullest_rank ideal_bytes step_peak_bytes",
    "peak": "OUTSIDE moment_parts moments needed_bytes peak_moments",
    "pipeline": "bubble_fraction micro_batches_in_flight pipeline_activation_bytes pipeline_held_bytes"
    " pipeline_seconds pipeline_stage_parameters pipeline_wire_bytes zero_bubble_fraction",
    "plan": "Plan",
    "planner": "all_plans cheapest plan_latency plan_messages plan_seconds",
    "roofline": "MachineConstants arithmetic_intensity flops_per_token matrix_bytes matrix_flops"
    " matrix_seconds mfu ridge roofline_rate roofline_seconds",
    "save_interval": "daly_interval hours_between_failures lost_share spares_missing_share young_interval",
    "schedules": "",
    "step_counts": "block_elementwise_bytes ends_elementwise_bytes gradient_copy_bytes operators"
    " optimizer_bytes step_messages",
    "step_time": "PassTime StepTime hiding_passes step_seconds",
    "tensor_parallel": "block_messages sequence_parallel_block_activation_bytes"
    " tensor_parallel_activation_bytes tensor_parallel_block_activation_bytes"
    " tensor_parallel_block_parameters tensor_parallel_block_seconds"
    " tensor_parallel_parameters tensor_parallel_wire_bytes",
    "zero_config": "ZeroConfig",
    "zero_plan": "ZeroPlan zero_3_passes",
}
HOMES = {name: f"{__name__}.{module}" for module, names in MODULES.items() for name in names.split()}
__all__ = sorted(HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in HOMES:
        known = ", ".join(__all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {known}")
    globals()[name] = getattr(importlib.import_module(HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*__all__, *MODULES])
