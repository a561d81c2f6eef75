"""What of DeepSpeed's configuration this command does not rehearse: refused by name, before anything is built
or written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..place import OURS

if TYPE_CHECKING:
    from ..theory.deepspeed_config import Configuration

OWN_FUNCTION = f"needs a function of your own for {OURS}.rehearse"
QUANTIZED = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")


class BadQuestion(ValueError):
    """What was asked cannot be read or is not rehearsed; says what to do."""


def refuse(known: Configuration) -> None:
    """Raises a `BadQuestion` that names the first key in use that is not rehearsed."""
    for name, is_used in {**features(known), **of_zero(known)}.items():
        if is_used:
            raise BadQuestion(
                f"this command rehearses ZeRO, AutoTP, AutoEP and Ulysses; {name} {OWN_FUNCTION}"
            )
    if "nvme" in known.offload.values():
        raise BadQuestion(
            '"nvme" is not rehearsed: ask with "device": "cpu", whose GPU holds the same but for buffers'
        )
    whole = known.deepspeed
    if whole.optimizer_name not in (None, "adam", "adamw"):
        raise BadQuestion(
            f"the optimizer {known.config['optimizer']['type']} is not rehearsed: its states are not Adam's; "
            f"ask with AdamW, or use {OURS}.rehearse"
        )
    params = whole.optimizer_params or {}
    if params.get("amsgrad") and not params.get("torch_adam"):
        raise BadQuestion('DeepSpeed\'s own Adam has no amsgrad: leave it out, or add "torch_adam": true')


def features(known: Configuration) -> dict[str, object]:
    """{a section: whether it is in use}."""
    whole, written = known.deepspeed, known.config
    stages = written.get("pipeline", {}).get("stages", 1)
    return {
        "pipeline": isinstance(stages, int) and stages > 1,
        "data_efficiency": whole.data_efficiency_enabled,
        "hybrid_engine": whole.hybrid_engine.enabled,
        "autotuning": whole.autotuning_config.enabled,
        "torch_autocast": whole.torch_autocast_enabled,
        "bf16.bf16_master_weights_and_grads": whole.bfloat16_config.bf16_master_weights_and_grads,
        "fp16.fp16_master_weights_and_grads": whole.float16_config.fp16_master_weights_and_grads,
        "compile.deepcompile": whole.compile_config.deepcompile,
        "weight_quantization": written.get("weight_quantization", {"enabled": False}).get("enabled", True),
    }


def of_zero(known: Configuration) -> dict[str, object]:
    """{a key of "zero_optimization": whether it is in use}."""
    zero = known.zero
    offload = zero.offload_optimizer if "offload_optimizer" in known.offload else None
    return {
        "zenflow": zero.zenflow,
        **{name: known.stage == 3 and getattr(zero, name) for name in QUANTIZED},
        "offload_optimizer.super_offload": offload and offload.super_offload,
        "offload_optimizer.ratio": offload and offload.ratio < 1,
    }
