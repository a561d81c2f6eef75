"""What transformers' Trainer makes of its arguments and of DeepSpeed's configuration, told by transformers'
and Accelerate's own code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from ..rehearsal.refusing import BadQuestion
from ..theory.deepspeed_config import ACCUMULATION, BY_WIDTH, MICRO, TRAIN
from .keyed_files import strict_json
from .of_accelerate import refused

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, TrainingArguments

    from .trainer_keys import Keys

BY_DATA = ("total_num_steps", "warmup_num_steps")  # of a scheduler: they follow from the data's length
OPTIMIZERS = {  # {transformers' name: parameters of DeepSpeed's for the same of torch}
    "adamw_torch": {"torch_adam": True},
    "adamw_torch_fused": {"torch_adam": True, "fused": True},
}


def configuration(keys: Keys, shape: PreTrainedConfig, ranks: int) -> tuple[dict, bool]:
    """(DeepSpeed's configuration as the Trainer hands it on, whether blocks are checkpointed).

    `TrainingArguments` itself reads the arguments.  Then follow the calls of `Trainer` up to
    `deepspeed.initialize`: `AcceleratorState`, `propagate_args_to_deepspeed`, `deepspeed_init` and
    `Accelerator._prepare_deepspeed`.  A scheduler's numbers of steps are not compared, for they follow from
    the data.  Without "deepspeed" among the arguments Accelerate's variables must say all.

    Args:
        shape: the model's configuration, for what is "auto" and depends on the hidden size.

    Raises:
        BadQuestion: transformers or Accelerate refuses it, or DeepSpeed would.
    """
    if "deepspeed" in keys.values:
        strict_json(keys.values["deepspeed"])
    with refused("transformers", f"{keys.path} with DeepSpeed's configuration"):
        arguments = _arguments(keys.values, ranks)
        plugin = arguments.deepspeed_plugin
        plugin.set_mixed_precision(arguments.mixed_precision)
        if not arguments.deepspeed:
            _propagate(plugin, arguments)
        _finalize(plugin.hf_ds_config, arguments, shape)
        plugin.deepspeed_config_process(must_match=False, **_last(shape))
    config = plugin.deepspeed_config
    _check_batches(config, arguments)
    del config[TRAIN]  # the product of the other two and the ranks
    if "optimizer" not in config:
        config |= _optimizer(config, arguments, keys.path)
    is_checkpointed = getattr(arguments, "activation_checkpointing", arguments.gradient_checkpointing)
    return config, bool(is_checkpointed)


def _arguments(values: dict, ranks: int) -> TrainingArguments:
    """The real arguments of so many ranks, which neither look for a GPU nor begin a process group."""
    import torch
    from transformers import TrainingArguments

    class OfRanks(TrainingArguments):
        world_size, _setup_devices, _n_gpu = ranks, torch.device("cpu"), 0

    return OfRanks(use_cpu=True, report_to="none", **values)


def _propagate(plugin, arguments):
    from transformers.integrations.deepspeed import propagate_args_to_deepspeed

    state = SimpleNamespace(deepspeed_plugin=plugin)
    propagate_args_to_deepspeed(SimpleNamespace(state=state), arguments)


def _finalize(config, arguments, shape):
    """`trainer_config_finalize`, which refuses contradictions."""
    params = (config.config.get("scheduler") or {}).get("params") or {}
    if arguments.max_steps < 1:
        params.update({name: "auto" for name in BY_DATA if name in params})
    config.trainer_config_finalize(arguments, SimpleNamespace(config=shape), max(arguments.max_steps, 1))


def _last(shape):
    """What `Accelerator._prepare_deepspeed` puts in the place of "auto" that is left; another is refused."""
    width = getattr(shape, "hidden_size", None)
    by_width = {f"zero_optimization.{key}": rule(width) for key, rule in BY_WIDTH.items() if width}
    return {"zero_optimization.stage3_gather_16bit_weights_on_model_save": False} | by_width


def _check_batches(config, arguments):
    """Refuse what the Trainer starts with and DeepSpeed stops, or counts otherwise."""
    if MICRO not in config and TRAIN not in config:
        raise BadQuestion(f'DeepSpeed\'s configuration says no {MICRO}: write "{MICRO}": "auto"')
    if config[ACCUMULATION] != arguments.gradient_accumulation_steps:
        counted = f"the Trainer accumulates {arguments.gradient_accumulation_steps}"
        raise BadQuestion(f'{counted}, and DeepSpeed is told of 1: write "{ACCUMULATION}": "auto"')
    config.setdefault(MICRO, arguments.per_device_train_batch_size)
    config.setdefault(TRAIN, "auto")


def _optimizer(config, arguments, path):
    """The Trainer's own optimizer as DeepSpeed's configuration names it.  It is left out where it is what
    `question.ask` takes without a name: torch's fused AdamW, and DeepSpeed's own with offload, by
    `map_pytorch_optim_to_deepspeed`."""
    name = str(getattr(arguments.optim, "value", arguments.optim))
    if name not in OPTIMIZERS:
        known = " and ".join(OPTIMIZERS)
        raise BadQuestion(f"{path} asks for optim {name}, whose states are not rehearsed: {known} are")
    offload = config["zero_optimization"].get("offload_optimizer") or {}
    on_host, is_fused = offload.get("device", "none") != "none", "fused" in OPTIMIZERS[name]
    is_default = config.get("zero_force_ds_cpu_optimizer", True) if on_host else is_fused
    return {} if is_default else {"optimizer": {"type": "AdamW", "params": dict(OPTIMIZERS[name])}}
