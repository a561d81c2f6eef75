"""What one rank holds and sends under PyTorch's own data parallelism: DDP, and FSDP2 with replicas (HSDP).

For AdamW, to the byte.  DDP is Li et al., arXiv 2006.15704, sections 3.2 and 4.2; FSDP is Zhao et al., arXiv
2304.11277, section 3.2, with replicas in section 3.2.2.  Where FSDP2 cuts, and what it pads, was read in
torch 2.13 (`torch.distributed.fsdp`: `FSDPParam`, `foreach_reduce`) and is held against real ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .communication import wire_bytes
from .model_states import ADAM, COUNTER, _ceil, _check_job
from .zero_config import ELEMENT_BYTES

FSDP_MOMENTS = ("after forward", "after backward", "after step")
MESH = 4  # bytes per rank of the mesh's own tensor, on the CPU


def ddp_bytes(
    elements: Sequence[int], *, moment: str = "after backward", bucket_view: bool = False, device: str = "cpu"
) -> dict[str, int]:
    """What a rank holds under `DistributedDataParallel` of an fp32 model, from the second step on, {category:
    bytes}: 4 + 4 + 8 bytes per parameter, and 4 of buckets, "other".

    The buckets, in which gradients are sent, are there all the time.  With `bucket_view` (DDP's
    `gradient_as_bucket_view`) gradients lie in them and are never given back: `zero_grad` fills in zeros.

    The moment is one of `FSDP_MOMENTS`; "after step" is after `zero_grad`.  On the device "cuda" torch keeps
    small tensors on the CPU: Adam's counters, FSDP's mesh.
    """
    _check_job(1, 0, device, moment, FSDP_MOMENTS)
    total = ELEMENT_BYTES["fp32"] * sum(elements)
    return {
        "parameters": total,
        "gradients": total if bucket_view or moment == "after backward" else 0,
        "optimizer states": ADAM * sum(elements) + (COUNTER * len(elements) if device == "cpu" else 0),
        "other": 0 if bucket_view else total,
    }


def fsdp_bytes(
    groups: Sequence[Sequence[Sequence[int]]],
    *,
    ranks: int,
    rank: int = 0,
    replicas: int = 1,
    moment: str = "after backward",
    reshard: bool | None = None,
    dtype: str = "fp32",
    device: str = "cpu",
) -> dict[str, int]:
    """What a rank holds under `fully_shard` of an fp32 model with AdamW, from the second step on: {category:
    bytes}; "other" is the mesh's list of ranks.

    With S = ranks / replicas, the ranks that share one copy of the model: of a parameter of shape (d, ...) a
    rank keeps rows of dimension 0, r = ceil(d / S) at most; the last ranks may have fewer, or none.
    Parameters and gradients are padded to r rows on every rank, 4 bytes per element each; Adam's two means
    are not, 8 bytes for each element that is really there.  A group that is gathered adds all its rows, S r
    of each parameter.  `dtype="bf16"`, mixed precision (`MixedPrecisionPolicy(param_dtype=torch.bfloat16)`),
    only changes what is gathered: the shard is the fp32 master copy, and its reduced gradient is fp32 again.

    Args:
        groups: shapes of the parameters that each call of `fully_shard` took, the root's last.
        replicas: copies of the model, each sharded among ranks / replicas neighbours (HSDP); 1 for FSDP.
        reshard: `reshard_after_forward` of every call; None is FSDP2's default, True except for the root.
    """
    _check_job(ranks, rank, device, moment, FSDP_MOMENTS)
    sharing, element = _sharing(ranks, replicas), ELEMENT_BYTES["fp32"]
    padded = sum(_padded(shape, sharing) for group in groups for shape in group)
    own = sum(_rows(shape, sharing, rank % sharing) * prod(shape[1:]) for group in groups for shape in group)
    gathered = 0
    if moment == "after forward":
        there = {None: groups[-1:], True: [], False: groups}[reshard]
        rows = sum(_padded(shape, sharing) for group in there for shape in group)
        gathered = ELEMENT_BYTES[dtype] * sharing * rows
    small = device == "cpu"
    return {
        "parameters": element * padded + gathered,
        "gradients": element * padded if moment == "after backward" else 0,
        "optimizer states": ADAM * own + COUNTER * small * sum(map(len, groups)),
        "other": MESH * ranks * small,
    }


def fsdp_wire_bytes(
    groups: Sequence[Sequence[Sequence[int]]],
    *,
    ranks: int,
    replicas: int = 1,
    reshard: bool | None = None,
    dtype: str = "fp32",
    reduce_dtype: str | None = None,
) -> dict[str, float]:
    """Bytes that a rank sends under `fully_shard` for one micro-batch, by bandwidth-optimal collectives:
    {"all_gather", "reduce_scatter", "all_reduce": bytes}.

    Each group is all-gathered for its forward pass, and again for its backward pass where it was released in
    between; its gradients are reduce-scattered once, in `reduce_dtype` (by default `dtype`).  With replicas
    this goes on among ranks / replicas, and then the shards' gradients are all-reduced among the replicas
    (arXiv 2304.11277, section 3.2.2).
    """
    _check_job(ranks, 0)
    sharing, reduced = _sharing(ranks, replicas), ELEMENT_BYTES[reduce_dtype or dtype]
    sent = dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), 0.0)
    for index, group in enumerate(groups):
        padded = sum(_padded(shape, sharing) for shape in group)
        twice = index < len(groups) - 1 if reshard is None else reshard  # the root is the last
        gathered = ELEMENT_BYTES[dtype] * padded * sharing
        sent["all_gather"] += (1 + twice) * wire_bytes("all_gather", gathered, sharing)
        sent["reduce_scatter"] += wire_bytes("reduce_scatter", reduced * padded * sharing, sharing)
        sent["all_reduce"] += wire_bytes("all_reduce", reduced * padded, replicas)
    return sent


def _sharing(ranks, replicas):
    """How many ranks share one copy of the model."""
    if replicas < 1 or ranks % replicas:
        raise ValueError(f"{replicas} replicas of a model cannot share {ranks} ranks equally")
    return ranks // replicas


def _padded(shape, sharing):
    """Elements that each rank keeps room for."""
    return _ceil(shape[0], sharing) * prod(shape[1:])


def _rows(shape, sharing, place):
    """Rows of a parameter that a rank has, as `torch.chunk` gives them."""
    most = _ceil(shape[0], sharing)
    return max(0, min(most, shape[0] - place * most))
