"""Bytes of model states that one data-parallel rank holds under ZeRO stages 0 to 3.

`ideal_bytes` is the ZeRO paper (Rajbhandari et al., arXiv 1910.02054, section 5); `deepspeed_bytes` is DeepSpeed 0.19 to the byte, with its
padding, its buckets and the parameters that straddle two partitions.  Both for Adam, as {category: bytes}.
"""

MOMENTS = ("after step", "between micro-batches", "after backward")
BYTES = {"bf16": 2, "fp32": 4}


def _ceil(a, b):
    return -(-a // b)


def _check(ranks, stage, dtype, device="cpu"):
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage must be 0, 1, 2 or 3, not {stage!r}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks!r}")
    if dtype not in BYTES:
        raise ValueError(f'dtype must be "bf16" or "fp32", not {dtype!r}')
    if device not in ("cpu", "cuda"):
        raise ValueError(f'device must be "cpu" or "cuda", not {device!r}')


def ideal_bytes(parameters, ranks=1, stage=0, dtype="bf16"):
    """The paper's account, in bytes per rank, with everything in its place between forward and step.

    bf16 (mixed precision, K = 12): 2 + 2 + 12 bytes per parameter: parameters and gradients, and fp32 master weights, momentum and variance.
    fp32: 4 + 4 + 8, with no second copy of the weights.  Stage 1 divides the optimizer's part by the ranks, stage 2 the gradients too,
    stage 3 the parameters too (arXiv 1910.02054, sections 5.1 to 5.3).

    Returns:
        {"parameters", "gradients", "master weights", "optimizer states": bytes}, float where a division leaves a fraction.
    """
    _check(ranks, stage, dtype)
    element = BYTES[dtype]
    return {
        "parameters": element * parameters / (ranks if stage >= 3 else 1),
        "gradients": element * parameters / (ranks if stage >= 2 else 1),
        "master weights": (4 * parameters if dtype == "bf16" else 0) / (ranks if stage >= 1 else 1),
        "optimizer states": 8 * parameters / (ranks if stage >= 1 else 1),
    }


def deepspeed_bytes(
    sizes, ranks=1, rank=0, stage=0, dtype="bf16", moment="between micro-batches", reduce_bucket_size=500_000_000, overlap_comm=None,
    persistence_threshold=100_000, contiguous_gradients=True, grad_accum_dtype=None, sub_group_size=1_000_000_000, device="cpu",
):  # fmt: skip
    """What rank `rank` holds under DeepSpeed 0.19, to the byte, from its second step on.

    Derived from DeepSpeed's source and held against measurements by this course's tests: one parameter group, torch's AdamW, no offload.
    With A = parameters padded to a multiple of 2 x ranks and P = A / ranks: stage 1 holds e A + 12 P and between micro-batches full
    gradients and a bucket; stage 2 keeps whole every gradient that touches its partition; stage 3 rounds each parameter up to a
    multiple of the ranks, and its gradient partition and bucket are permanent.  In fp32 stages 1 to 3 keep a separate fp32 master copy
    all the same.  Gradients of a bf16 model that are accumulated in fp32 take 4 bytes: stage 1 keeps 4 A for ever beside the
    bf16 ones, stage 2 has 4 P, stage 3 its part.

    Args:
        sizes: number of elements of each parameter, in the model's order.
        moment: "after step", "between micro-batches" (after a backward pass that is not the last before a step) or "after backward"
            (the last one before a step).
        reduce_bucket_size: elements; DeepSpeed's key of that name.
        overlap_comm: DeepSpeed's key; by default True for stage 3 only, as in DeepSpeed.
        persistence_threshold: `stage3_param_persistence_threshold`; parameters up to this size stay gathered.
        contiguous_gradients: DeepSpeed's key; without it stages 1 and 3 keep no bucket.
        grad_accum_dtype: DeepSpeed's key: "bf16" or "fp32"; by default the model's dtype.
        sub_group_size: DeepSpeed's key for stage 3, elements: the partition is stepped in parts of about this size.
        device: "cpu" or "cuda", where torch's Adam (not the fused one) keeps its step counters on the CPU.

    Returns:
        {category: bytes}; "other" is the norm of the gradients and the overflow flag.
    """
    _check(ranks, stage, dtype, device)
    if moment not in MOMENTS:
        raise ValueError(f"moment must be one of {', '.join(MOMENTS)}; not {moment!r}")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank must be from 0 to {ranks - 1}, not {rank!r}")
    if grad_accum_dtype not in (None, dtype) and (grad_accum_dtype, stage == 0) != ("fp32", False):
        raise ValueError(f"DeepSpeed does not accumulate gradients in {grad_accum_dtype!r} for {dtype} at stage {stage}")
    element, wide = BYTES[dtype], grad_accum_dtype not in (None, dtype)
    if stage == 0:
        states = _stage_0(sizes, element, moment)
    elif stage == 3:
        states = _stage_3(sizes, ranks, element, 4 if wide else element, reduce_bucket_size, persistence_threshold)
    else:
        states = _stages_1_and_2(sizes, ranks, rank, stage, element, wide, moment, reduce_bucket_size * (2 if overlap_comm else 1))
    if not contiguous_gradients:
        states["buffers"] = 0
    if device == "cpu":  # a step counter for each tensor that Adam sees
        counters = {0: len(sizes), 3: len(_sub_groups(sizes, ranks, sub_group_size))}.get(stage, 1)
        states["optimizer states"] += 4 * counters
    return states


def _stage_0(sizes, element, moment):
    total = sum(sizes)
    return {
        "parameters": element * total,
        "gradients": 0 if moment == "after step" else element * total,
        "master weights": 4 * total if element == 2 else 0,
        "optimizer states": 8 * total,
        "buffers": 0,
        "other": 0,
    }


def _stages_1_and_2(sizes, ranks, rank, stage, element, wide, moment, bucket):
    total = sum(sizes)
    part, pieces = _partition(sizes, ranks, rank)
    padded = part * ranks
    touching = sum(sizes[index] for index in pieces)
    padding = part - sum(pieces.values())
    gradients = {
        "after step": 0,
        "between micro-batches": element * (total if stage == 1 else touching),
        "after backward": element * (touching + padding),
    }
    if wide and stage == 1:  # another optimizer, with fp32 sums of all gradients for ever, and no bucket
        gradients = {when: 4 * padded + (0 if when == "after step" else element * total) for when in MOMENTS}
        bucket = 0
    elif wide:
        gradients = {when: 0 if when == "after step" else 4 * part for when in MOMENTS}
    return {
        "parameters": element * padded,
        "gradients": gradients[moment],
        "master weights": 4 * part,
        "optimizer states": 8 * part,
        "buffers": element * bucket if stage == 1 and moment == "between micro-batches" else 0,
        "other": 4,
    }


def _partition(sizes, ranks, rank):
    """Stages 1 and 2: elements of a rank's partition, padding included; and which of them each parameter gives, {its index: elements}."""
    part = _ceil(sum(sizes), 2 * ranks) * 2
    first, last, offset, pieces = rank * part, (rank + 1) * part, 0, {}
    for index, size in enumerate(sizes):
        if (piece := min(offset + size, last) - max(offset, first)) > 0:
            pieces[index] = piece
        offset += size
    return part, pieces


def _sub_groups(sizes, ranks, limit):
    """Stage 3: elements of each sub-group of a rank's partition: parameters in order, until `limit` is reached."""
    groups = [0]
    for size in sizes:
        if groups[-1] >= limit:
            groups.append(0)
        groups[-1] += _ceil(size, ranks)
    return groups


def _gathered(sizes, ranks, persistence_threshold):
    """Stage 3: elements of the parameters that stay gathered; none with one rank, whose shard is the whole parameter."""
    return 0 if ranks == 1 else sum(_ceil(size, ranks) * ranks for size in sizes if size <= persistence_threshold)


def _stage_3(sizes, ranks, element, gradient, bucket, persistence_threshold):
    part = sum(_ceil(size, ranks) for size in sizes)
    return {
        "parameters": element * (part + _gathered(sizes, ranks, persistence_threshold)),
        "gradients": gradient * part,
        "master weights": 4 * part,
        "optimizer states": 8 * part,
        "buffers": element * bucket,
        "other": 9,
    }


def step_peak_bytes(
    sizes, ranks=1, rank=0, stage=0, reduce_bucket_size=500_000_000, overlap_comm=None, persistence_threshold=100_000,
    sub_group_size=1_000_000_000, device="cpu",
):  # fmt: skip
    """The most that rank `rank` holds while the optimizer steps, in bf16 with torch's AdamW and nothing of the forward pass alive, to the byte.

    Derived from DeepSpeed 0.19's source like `deepspeed_bytes`.  What is stepped at once (all parameters at stage 0, the partition at
    stages 1 and 2, a sub-group of it at stage 3) has its gradients copied to fp32, 4 bytes, and Adam needs 4 more for the square root of
    the variance; on a CPU, where it takes one tensor after another, 8 for that tensor beside 4 for the one before.  At stages 1 and 2 the
    most may come before Adam, with the bf16 gradients still there: one flat copy in bf16 and one in fp32, or, for the norm of the
    gradients, the partition's part of one parameter in fp64.

    Args:
        sub_group_size: `sub_group_size` of stage 3, elements.
        device: "cpu" or "cuda", where Adam takes all tensors at once.
        others: as in `deepspeed_bytes`.
    """
    keys = {"overlap_comm": overlap_comm, "persistence_threshold": persistence_threshold, "sub_group_size": sub_group_size, "device": device}
    states = (sizes, ranks, rank, stage, "bf16")
    held, full = (sum(deepspeed_bytes(*states, moment, reduce_bucket_size, **keys).values()) for moment in ("after step", "after backward"))
    adam = 4 if device == "cuda" else 8
    if stage == 0:
        one_by_one = max(4 * before + 8 * size for before, size in zip((0, *sizes), sizes))
        return full + 4 * sum(sizes) + (4 * sum(sizes) if device == "cuda" else one_by_one)
    if stage == 3:
        groups = _sub_groups(sizes, ranks, sub_group_size)
        return held - 2 * _gathered(sizes, ranks, persistence_threshold) + (4 + adam) * max(groups) + 16 + 8 * len(groups)
    part, pieces = _partition(sizes, ranks, rank)
    copies = 6 * part if len(pieces) > 1 else 4 * part
    return 8 + max(held + (4 + adam) * part, full + copies, full + 8 * max(pieces.values(), default=0))
