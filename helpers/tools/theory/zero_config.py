"""What of a DeepSpeed configuration decides the bytes of a rank's model states, in one place."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass

from ..whole import check_choice, whole
from .deepspeed_config import Configuration, read

ELEMENT_BYTES = {"bf16": 2, "fp32": 4}  # bytes per element
COUNTED = (  # fields of DeepSpeed's `zero_optimization`, without the stage in front
    *("stage", "reduce_bucket_size", "overlap_comm", "contiguous_gradients", "sub_group_size"),
    *("param_persistence_threshold", "round_robin_gradients"),
)
NOT_COUNTED = {  # fields of `zero_optimization` that change the bytes of these stages, unless they are so
    "parameter_alignment": ((1, 2), False),
    "compute_grad_norm": ((1, 2), True),
    "zenflow": ((1, 2, 3), None),
    "zero_hpz_partition_size": ((3,), 1),
    "zero_quantized_weights": ((3,), False),
    "zero_quantized_nontrainable_weights": ((3,), False),
    "zero_quantized_gradients": ((3,), False),
    "module_granularity_threshold": ((3,), 0),
    "model_persistence_threshold": ((3,), sys.maxsize),
}


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    """ZeRO's stage, and the keys of DeepSpeed that say how many bytes it holds; defaults are those of 0.19,
    with bf16.  A ValueError for a value that DeepSpeed does not take, or that the formulas do not cover."""

    stage: int = 0
    dtype: str = "bf16"  # or "fp32", of parameters
    grad_accum_dtype: str | None = None  # in which gradients are accumulated; by default `dtype`
    reduce_bucket_size: int = 500_000_000  # elements
    # at stages 1 and 2 a second bucket while the first is on its way; by default at stage 3 alone
    overlap_comm: bool | None = None
    contiguous_gradients: bool = True  # without it no bucket is kept
    persistence_threshold: int = 100_000  # parameters up to so many elements stay gathered at stage 3
    sub_group_size: int = 1_000_000_000  # elements; at stage 3 the partition is stepped in such parts
    # at stages 1 and 2 the ranks take the parameters in turn, and partitions are cut from that order
    round_robin_gradients: bool = False

    def __post_init__(self):
        if self.overlap_comm is None:
            object.__setattr__(self, "overlap_comm", self.stage == 3)
        whole(self.stage, "stage", 0, 3)
        check_choice("dtype", self.dtype, ELEMENT_BYTES)
        if self.sums_in_fp32 and (self.grad_accum_dtype != "fp32" or self.stage == 0):
            place = f"in {self.grad_accum_dtype!r} for {self.dtype} at stage {self.stage}"
            raise ValueError(f"DeepSpeed does not accumulate gradients {place}")

    @classmethod
    def of(cls, config: ZeroConfig | Configuration | dict, *, offloaded: bool = False) -> ZeroConfig:
        """Of itself, or of a DeepSpeed configuration, as `deepspeed_config.read` takes or returns it.

        What does not change the bytes of model states is passed over: batch sizes, learning rates, and what
        decides which parameters a rank has, as tensor parallelism.  Python warns of what was assumed, and of
        keys that DeepSpeed does not know.  A ValueError names a key that is not counted, such as offload,
        unless the caller counts it (`offloaded`).
        """
        if isinstance(config, cls):
            return config
        known = config if isinstance(config, Configuration) else read(config)
        for note in known.notes:
            warnings.warn(note, stacklevel=3)
        if names := ", ".join(_not_counted(known, offloaded)):
            raise ValueError(f"the formulas do not count {names}: use another value, or measure it")
        fields = {name.removeprefix("param_"): getattr(known.zero, name) for name in COUNTED}
        return cls(dtype=known.dtype, grad_accum_dtype=_short(known.deepspeed.grad_accum_dtype), **fields)

    @property
    def element_bytes(self) -> int:
        """Bytes per element of parameters."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def sums_in_fp32(self) -> bool:
        """Whether gradients are accumulated in fp32 beside a bf16 model."""
        return self.grad_accum_dtype not in (None, self.dtype)

    @property
    def gradient_bytes(self) -> int:
        """Bytes per element of accumulated gradients."""
        return ELEMENT_BYTES[self.grad_accum_dtype or self.dtype]

    @property
    def bucket(self) -> int:
        """Elements of the buckets in which gradients are reduced."""
        if not self.contiguous_gradients:
            return 0
        return self.reduce_bucket_size * (2 if self.overlap_comm and self.stage < 3 else 1)


def _not_counted(known, offloaded):
    """The keys that change the bytes of model states, or put them elsewhere, and are not counted here."""
    zero, other = known.zero, known.deepspeed
    for name, (stages, harmless) in NOT_COUNTED.items():
        if known.stage in stages and getattr(zero, name) != harmless:
            yield f"zero_optimization.{name}"
    if not offloaded:
        yield from known.offload
    sections = {
        "fp16.enabled": other.float16_config.enabled,
        "bf16.bf16_master_weights_and_grads": other.bfloat16_config.bf16_master_weights_and_grads,
        "bf16.immediate_grad_update": other.bfloat16_config.immediate_grad_update,
        "torch_autocast": other.torch_autocast_enabled,
        "hybrid_engine": other.hybrid_engine.enabled,
        "expert_parallel": other.expert_parallel_config.enabled,
        "compile.deepcompile": other.compile_config.deepcompile,
        "weight_quantization": other.weight_quantization_config,
        "optimizer.params.amsgrad": (other.optimizer_params or {}).get("amsgrad"),
        f"optimizer.type {other.optimizer_name}": other.optimizer_name not in (None, "adam", "adamw"),
        "communication_data_type": _short(other.communication_data_type) not in (None, known.dtype),
    }
    yield from (name for name, value in sections.items() if value)


def _short(dtype):
    """DeepSpeed's spellings of a type, as "float32" and "torch.float32", to "fp32"; None stays None."""
    from deepspeed.runtime.config import DtypeEnum

    return dtype and DtypeEnum(dtype).name
