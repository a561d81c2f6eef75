"""The keys that DeepSpeed 0.19.8 knows, and what it passes over or fails on later."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

_names = str.split
BATCHES = _names("train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps")
TRAIN, MICRO, ACCUMULATION = BATCHES
# Sections that DeepSpeed reads by pydantic: it drops "auto" from them and refuses keys that it does not know.
MODELS = _names(
    "bf16 bfloat16 comet comms_logger compile csv_monitor fp16 hybrid_engine tensor_parallel tensorboard "
    "timers wandb weight_quantization zero_optimization"
)
SECTIONS = MODELS + _names(
    "activation_checkpointing aio autotuning checkpoint data_efficiency data_types datastates_ckpt "
    "expert_parallel flops_profiler optimizer pipeline scheduler torch_autocast"
)
TEXTS = _names("communication_data_type gradient_allreduce_op log_level seq_parallel_communication_data_type")
NUMBERS = _names(  # and booleans
    "allgather_size data_parallel_size dataloader_drop_last disable_allgather disable_python_gc dump_state "
    "gradient_clipping gradient_predivide_factor managed_gradient_accumulation memory_breakdown "
    "prescale_gradients sequence_parallel_size steps_per_print use_data_before_expert_parallelism "
    "vocabulary_size wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"
)
KNOWN = {  # of these sections DeepSpeed passes over other keys without a word
    "": [*SECTIONS, *TEXTS, *NUMBERS, *BATCHES],
    "data_types": _names("grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"),
    "optimizer": _names("type params legacy_fusion"),
    "scheduler": _names("type params"),
    "torch_autocast": _names("enabled dtype lower_precision_safe_modules"),
}


class BadConfiguration(ValueError):
    """A configuration that cannot be read, or that DeepSpeed refuses; says which key and why."""


def check_kinds(config: dict) -> None:
    """Refuse where DeepSpeed would fail later on: a section is no object, or a text stands for a number."""
    for key in set(SECTIONS) & set(config):
        if not isinstance(config[key], (dict, bool) if key == "zero_optimization" else dict):
            raise BadConfiguration(f"{key} must be an object with keys, not {config[key]!r}")
    for key in set(NUMBERS) & set(config):
        if isinstance(config[key], str) and config[key] != "auto":
            raise BadConfiguration(f"{key} must be a number or a boolean, not the text {config[key]!r}")


def unknown_keys(config: dict) -> Iterator[str]:
    """A sentence for each key that DeepSpeed passes over."""
    for section, known in KNOWN.items():
        for key in sorted(set(config.get(section, {}) if section else config) - set(known)):
            alike = "".join(f" (is it {name}?)" for name in difflib.get_close_matches(key, known, 1))
            yield f"DeepSpeed knows no {f'{section}.{key}' if section else key} and passes over it{alike}"
