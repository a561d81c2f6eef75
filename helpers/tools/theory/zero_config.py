"""What of a DeepSpeed configuration decides the bytes of a rank's model states, in one place."""

from __future__ import annotations

from dataclasses import dataclass

ELEMENT_BYTES = {"bf16": 2, "fp32": 4}  # bytes per element
DTYPES = tuple(ELEMENT_BYTES)
# DeepSpeed's key in `zero_optimization`: its name here (DeepSpeed's, without the stage in front where one is
# plain).
KEYS = {
    "stage": "stage",
    "reduce_bucket_size": "reduce_bucket_size",
    "overlap_comm": "overlap_comm",
    "contiguous_gradients": "contiguous_gradients",
    "sub_group_size": "sub_group_size",
    "stage3_param_persistence_threshold": "persistence_threshold",
}
WHOLE_NUMBERS = (
    "stage",
    "reduce_bucket_size",
    "sub_group_size",
    "persistence_threshold",
)  # DeepSpeed admits 5e8 for them
# Keys of `zero_optimization` that put states elsewhere, or keep others: {key: the value that changes
# nothing}.
NOT_COVERED = {
    "zero_hpz_partition_size": 1,
    "mics_shard_size": -1,
    "zenflow": None,
    "stage3_model_persistence_threshold": None,
}
OFFLOAD = ("offload_optimizer", "offload_param")


@dataclass(frozen=True, kw_only=True)
class ZeroConfig:
    """ZeRO's stage, and the keys of DeepSpeed that say how many bytes it holds; defaults are DeepSpeed's
    0.19, with bf16.

    Attributes:
        stage: 0 to 3.
        dtype: "bf16" or "fp32", of parameters.
        grad_accum_dtype: "bf16" or "fp32", in which gradients are accumulated; by default `dtype`.
        reduce_bucket_size: elements.
        overlap_comm: a second bucket while the first is on its way, at stages 1 and 2; by default DeepSpeed's
        (False there). contiguous_gradients: without it no bucket is kept.
        persistence_threshold: `stage3_param_persistence_threshold`; parameters up to so many elements stay
            gathered at stage 3.
        sub_group_size: elements; at stage 3 the partition is stepped in parts of about this size.

    Raises:
        ValueError: for a value that DeepSpeed does not take, or that the formulas do not cover.
    """

    stage: int = 0
    dtype: str = "bf16"
    grad_accum_dtype: str | None = None
    reduce_bucket_size: int = 500_000_000
    overlap_comm: bool | None = None
    contiguous_gradients: bool = True
    persistence_threshold: int = 100_000
    sub_group_size: int = 1_000_000_000

    def __post_init__(self):
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage must be 0, 1, 2 or 3, not {self.stage!r}")
        if self.dtype not in DTYPES:
            raise ValueError(f'dtype must be "bf16" or "fp32", not {self.dtype!r}')
        if self.grad_accum_dtype not in (None, self.dtype) and (
            self.grad_accum_dtype != "fp32" or self.stage == 0
        ):
            raise ValueError(
                f"DeepSpeed does not accumulate gradients in {self.grad_accum_dtype!r} for "
                f"{self.dtype} at stage {self.stage}"
            )

    @classmethod
    def from_deepspeed(cls, config: dict) -> ZeroConfig:
        """The same of a DeepSpeed configuration, a dict as `deepspeed.initialize` takes it; like there,
        without "bf16" it is fp32.

        What does not change the bytes of model states (batch sizes, learning rates, tensor parallelism) is
        passed over.
        """
        zero = config.get("zero_optimization", {})
        other = [key for key in OFFLOAD if (zero.get(key) or {}).get("device", "none") != "none"]
        other += [key for key, harmless in NOT_COVERED.items() if zero.get(key, harmless) != harmless]
        if other:
            raise ValueError(f"the formulas do not cover {', '.join(other)}, which puts states elsewhere")
        if config.get("fp16", {}).get("enabled"):
            raise ValueError("the formulas do not cover fp16: use bf16 or fp32")
        found = {name: zero[key] for key, name in KEYS.items() if key in zero}
        found |= {name: int(found[name]) for name in WHOLE_NUMBERS if name in found}
        dtype = "bf16" if config.get("bf16", {}).get("enabled") else "fp32"
        return cls(
            dtype=dtype, grad_accum_dtype=config.get("data_types", {}).get("grad_accum_dtype"), **found
        )

    @classmethod
    def of(cls, config: ZeroConfig | dict) -> ZeroConfig:
        """Of either form."""
        return config if isinstance(config, cls) else cls.from_deepspeed(config)

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
