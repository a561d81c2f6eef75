"""Model states that one data-parallel rank holds under ZeRO stages 0 to 3, for Adam, as {category: bytes}.

`ideal_bytes` is the ZeRO paper (Rajbhandari et al., arXiv 1910.02054, section 5); `deepspeed_bytes` is
DeepSpeed 0.19 to the byte, with its padding, its buckets and the parameters that straddle two partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..whole import check_choice, whole
from .zero_config import ELEMENT_BYTES, ZeroConfig

MOMENTS = ("after step", "between micro-batches", "after backward")
MASTER = 4  # bytes per element of the fp32 copy that the optimizer updates
ADAM = 8  # and of momentum and variance, in fp32
COUNTER = 4  # bytes of the step counter that torch's Adam keeps for each tensor
NORM = {1: 4, 2: 4, 3: 8}  # by stage, bytes of DeepSpeed's norm of the gradients: fp32, at stage 3 fp64
OVERFLOW_FLAG = 1  # byte, at stage 3
FP32_GRADIENT, ROOT = 4, 4  # while Adam steps, bytes per element: the gradient, and the root of the variance
ALIGNMENT = 2  # stages 1 and 2 pad a partition to a multiple of so many elements (NCCL's 4 bytes in bf16)


def _ceil(a, b):
    return -(-a // b)


def _check_job(ranks, rank, device="cpu", moment=None, moments=(None,)):
    whole(ranks, "ranks")
    whole(rank, "rank", 0, ranks - 1)
    check_choice("device", device, ("cpu", "cuda"))
    check_choice("moment", moment, moments)


def ideal_bytes(parameters: float, ranks: int = 1, stage: int = 0, dtype: str = "bf16") -> dict[str, float]:
    """The paper's account, in bytes per rank of a model of so many `parameters`, with everything in its place
    between forward and step: {"parameters", "gradients", "master weights", "optimizer states": bytes}.

    bf16 (mixed precision, K = 12): 2 + 2 + 12 bytes per parameter: parameters and gradients, and fp32 master
    weights, momentum and variance.  fp32: 4 + 4 + 8, with no second copy of the weights.  Stage 1 divides the
    optimizer's part by the ranks, stage 2 the gradients too, stage 3 the parameters too (arXiv 1910.02054,
    sections 5.1 to 5.3).
    """
    ZeroConfig(stage=stage, dtype=dtype)  # refuses others
    _check_job(ranks, 0)
    element = ELEMENT_BYTES[dtype]
    return {
        "parameters": element * parameters / (ranks if stage >= 3 else 1),
        "gradients": element * parameters / (ranks if stage >= 2 else 1),
        "master weights": (MASTER * parameters if dtype == "bf16" else 0) / (ranks if stage >= 1 else 1),
        "optimizer states": ADAM * parameters / (ranks if stage >= 1 else 1),
    }


def deepspeed_bytes(
    elements: Sequence[int],
    config: ZeroConfig | dict,
    *,
    ranks: int = 1,
    rank: int = 0,
    moment: str = "between micro-batches",
    device: str = "cpu",
    fused: bool = False,
) -> dict[str, int]:
    """What a rank holds under DeepSpeed 0.19, to the byte, from its second step on: {category: bytes};
    "other" is the norm of the gradients and the overflow flag.

    One parameter group, torch's AdamW, no offload.  With A = parameters padded to a multiple of 2 x ranks and
    P = A / ranks: stage 1 holds e A + 12 P and between micro-batches full gradients and a bucket; stage 2
    keeps whole every gradient that touches its partition; stage 3 rounds each parameter up to a multiple of
    the ranks, and its gradient partition and bucket are permanent.  In fp32 stages 1 to 3 keep a separate
    fp32 master copy all the same.  Gradients of a bf16 model that are accumulated in fp32 take 4 bytes: stage
    1 keeps 4 A for ever beside the bf16 ones, stage 2 has 4 P, stage 3 its part.

    Args:
        elements: of each parameter, in the model's order.
        moment: one of `MOMENTS`; "after backward" is after the last backward pass before a step.
        device: "cpu" or "cuda", where torch's Adam keeps its step counters on the CPU unless it is `fused`.
    """
    config = ZeroConfig.of(config)
    _check_job(ranks, rank, device, moment, MOMENTS)
    if config.stage == 0:
        states, stepped = _stage_0(elements, config, moment), len(elements)
    elif config.stage == 3:
        states, stepped = _stage_3(elements, config, ranks), len(_sub_groups(elements, config, ranks))
    else:
        states, stepped = _stages_1_and_2(elements, config, ranks, rank, moment), 1
    if device == "cpu" or fused:
        states["optimizer states"] += COUNTER * stepped
    return states


def _stage_0(elements, config, moment):
    total = sum(elements)
    return {
        "parameters": config.element_bytes * total,
        "gradients": 0 if moment == "after step" else config.element_bytes * total,
        "master weights": MASTER * total if config.dtype == "bf16" else 0,
        "optimizer states": ADAM * total,
        "buffers": 0,
        "other": 0,
    }


def _stages_1_and_2(elements, config, ranks, rank, moment):
    elements = _in_order(elements, config, ranks)
    total, element = sum(elements), config.element_bytes
    part, pieces = partition(elements, ranks, rank)
    touching = sum(elements[index] for index in pieces)
    padding = part - sum(pieces.values())
    between = element * (total if config.stage == 1 else touching)
    gradients = {"between micro-batches": between, "after backward": element * (touching + padding)}
    bucket = element * config.bucket if config.stage == 1 and moment == "between micro-batches" else 0
    held = gradients.get(moment, 0)
    if config.sums_in_fp32 and config.stage == 1:
        # another optimizer, with fp32 sums of all gradients for ever, and no bucket
        held = config.gradient_bytes * part * ranks + (0 if moment == "after step" else element * total)
        bucket = 0
    elif config.sums_in_fp32:
        held = 0 if moment == "after step" else config.gradient_bytes * part
    return {
        "parameters": element * part * ranks,
        "gradients": held,
        "master weights": MASTER * part,
        "optimizer states": ADAM * part,
        "buffers": bucket,
        "other": NORM[config.stage],
    }


def _in_order(elements, config, ranks):
    """Stages 1 and 2: the parameters in the order from which partitions are cut."""
    if not config.round_robin_gradients:
        return elements
    return [count for rank in range(ranks) for count in elements[rank::ranks]]


def partition(elements: Sequence[int], ranks: int, rank: int) -> tuple[int, dict[int, int]]:
    """Stages 1 and 2: elements of a rank's partition, padded; and {index of a parameter: what it gives}."""
    part = _ceil(sum(elements), ALIGNMENT * ranks) * ALIGNMENT
    first, last, offset, pieces = rank * part, (rank + 1) * part, 0, {}
    for index, count in enumerate(elements):
        if (piece := min(offset + count, last) - max(offset, first)) > 0:
            pieces[index] = piece
        offset += count
    return part, pieces


def fullest_rank(elements: Sequence[int], ranks: int) -> int:
    """Stages 1 and 2: the rank whose partition touches the most elements, whole parameters counted."""
    part = _ceil(sum(elements), ALIGNMENT * ranks) * ALIGNMENT
    touched, offset = [0] * ranks, 0
    for count in elements:
        for rank in range(offset // part, (offset + count - 1) // part + 1):
            touched[rank] += count
        offset += count
    return touched.index(max(touched))


def _stage_3(elements, config, ranks):
    part = sum(_ceil(count, ranks) for count in elements)
    return {
        "parameters": config.element_bytes * (part + _gathered(elements, config, ranks)),
        "gradients": config.gradient_bytes * part,
        "master weights": MASTER * part,
        "optimizer states": ADAM * part,
        "buffers": config.element_bytes * config.bucket,
        "other": NORM[3] + OVERFLOW_FLAG,
    }


def _sub_groups(elements, config, ranks):
    """Stage 3: elements of each sub-group of a partition: parameters until `sub_group_size` is reached."""
    groups = [0]
    for count in elements:
        if groups[-1] >= config.sub_group_size:
            groups.append(0)
        groups[-1] += _ceil(count, ranks)
    return groups


def _gathered(elements, config, ranks):
    """Stage 3: elements of the parameters that stay gathered; one rank's shards are whole anyway."""
    if ranks == 1:
        return 0
    return sum(_ceil(count, ranks) * ranks for count in elements if count <= config.persistence_threshold)


def step_peak_bytes(
    elements: Sequence[int],
    config: ZeroConfig | dict,
    *,
    ranks: int = 1,
    rank: int = 0,
    device: str = "cpu",
    fused: bool = False,
) -> int:
    """The most bytes that a rank holds while the optimizer steps, in bf16 with torch's AdamW and nothing of
    the forward pass alive, to the byte; arguments as in `deepspeed_bytes`.

    What is stepped at once (all parameters at stage 0, the partition at stages 1 and 2, a sub-group of it at
    stage 3) has its gradients copied to fp32, 4 bytes, and Adam needs 4 more for the square root of the
    variance, unless it is `fused`; on a CPU, where it takes one tensor after another, 8 for that tensor
    beside 4 for the one before.  At stages 1 and 2 the most may come before Adam, with the bf16 gradients
    still there: one flat copy in bf16 and one in fp32, or, for the norm of the gradients, the partition's
    part of one parameter in fp64.  Above stage 0 the step also has the norm of the gradients twice, with and
    without the loss scale, and stage 3 one for each sub-group.
    """
    config = ZeroConfig.of(config)
    if config.dtype != "bf16" or config.sums_in_fp32 or not config.contiguous_gradients:
        raise ValueError(f"step_peak_bytes covers bf16 with gradients in bf16 and contiguous, not {config}")
    keys = {"ranks": ranks, "rank": rank, "device": device, "fused": fused}
    held, full = (
        sum(deepspeed_bytes(elements, config, moment=moment, **keys).values())
        for moment in ("after step", "after backward")
    )
    root = 0 if fused else ROOT
    roots = root if device == "cuda" else 2 * root  # on a CPU a second one, for the tensor that is stepped
    if config.stage == 0:
        temporary = root * sum(elements)
        if device == "cpu":
            temporary = max(root * before + roots * count for before, count in zip((0, *elements), elements))
        return full + FP32_GRADIENT * sum(elements) + temporary
    norms = 2 * NORM[config.stage]
    if config.stage == 3:
        groups = _sub_groups(elements, config, ranks)
        held -= config.element_bytes * _gathered(elements, config, ranks)  # given back before the step
        each = FP32_GRADIENT + max(roots, config.element_bytes)  # before Adam its gradients are flat in bf16
        return held + each * max(groups) + norms + NORM[3] * len(groups)
    part, pieces = partition(_in_order(elements, config, ranks), ranks, rank)
    flat = config.element_bytes * part if len(pieces) > 1 else 0  # one parameter's gradient is flat already
    copied = max(flat + FP32_GRADIENT * part, 8 * max(pieces.values(), default=0))
    return norms + max(held + (FP32_GRADIENT + roots) * part, full + copied)
