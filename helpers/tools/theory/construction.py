"""Bytes that a rank holds while a model is being built: whole, or partitioned layer by layer under
DeepSpeed's `zero.Init`."""

from __future__ import annotations

from collections.abc import Sequence

from ..whole import whole
from .layers import FP32
from .zero_config import ZeroConfig


def construction_peak_bytes(
    modules: Sequence[Sequence[int]], ranks: int = 1, dtype: str = "bf16", partitioned: bool = True
) -> int:
    """The most bytes that a rank holds while modules, of so many elements in each own parameter, are built in
    order (a tied matrix counts where it is made).

    Whole, that is the model.  Under `zero.Init` (`partitioned`; the ZeRO paper's stage 3, arXiv 1910.02054,
    section 5.3, applied from the start) a module's own parameters are created whole, each in fp32 and then
    cast to `dtype`, so that for a moment it exists twice; when the module is complete, each is replaced by a
    shard of ceil(elements / N).
    """
    element_bytes = ZeroConfig(dtype=dtype).element_bytes
    whole(ranks, "ranks")
    if not partitioned:
        return element_bytes * sum(map(sum, modules))
    being_made = FP32 + (element_bytes if dtype != "fp32" else 0)  # bytes per element: in fp32, and its cast
    held = peak = 0
    for module in modules:
        for elements in module:
            peak = max(peak, held + being_made * elements)
            held += element_bytes * elements
        for elements in module:
            shard = element_bytes * -(-elements // ranks)
            peak = max(peak, held + shard)
            held += shard - element_bytes * elements
    return peak


def largest_built_in_parts(memory: float, ranks: int, largest: float) -> float:
    """Parameters of the largest model that N ranks of `memory` bytes build under `zero.Init` in bf16: each
    holds 2 bytes of its 1/N of the model, and for a moment 6 bytes per element of the `largest` tensor."""
    if memory <= 6 * largest:
        need = f"6 x {largest:,.0f} bytes for a moment"
        raise ValueError(f"the largest tensor alone needs {need}, and a rank has {memory:,.0f}")
    return (memory - 6 * largest) * ranks / 2
