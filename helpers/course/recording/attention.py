"""Attention of the job's block by the clock: each mask by each of torch's kernels that takes it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from helpers.course import job
from helpers.course.recording.in_ranks import seconds_of

TOKENS = (8192, 32768, 131072)
MASKS = ("none", "causal", "causal, as a tensor", "window of 4096, as a tensor")
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
KERNELS["efficient"] = SDPBackend.EFFICIENT_ATTENTION
WARM_UP, PASSES, WINDOW = 2, 5, 4096
LONG = 131072  # tokens: a mask has 17 GB, and the efficient kernel takes eight seconds


def predicted(ranks: int, tokens: int) -> dict[str, float]:
    """{mask: seconds of both passes}, by 497 TFLOP/s forward and backward where no tensor says what is seen,
    which skips the unseen half, and 325 and 258 with one, which skips nothing."""
    flops = 4 * 32 * tokens**2 * 128
    whole = flops * 3.5 / 497e12
    masked = flops / 325e12 + 2.5 * flops / 258e12
    return {mask: {"none": whole, "causal": whole / 2}.get(mask, masked) for mask in MASKS}


def attention(tokens: int) -> list[dict]:
    """Forward and backward passes of one sequence with the job's 32 query heads of 128 channels and 8 of
    keys, in bf16, keys repeated beforehand as transformers does it.

    Returns:
        [{"mask": one of `MASKS`, "kernel": one of `KERNELS`, "forward", "both": [seconds of each pass], or
        "words": why that kernel refuses}]; what a mask of no tensor computes is half for "causal".
    """
    shape = job.MODELS["8 B"]
    heads = shape["num_attention_heads"]
    with torch.device("cuda"):
        q, k, v = (
            torch.randn(1, heads, tokens, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
        )
    found = []
    for mask in MASKS:
        if "tensor" in mask and tokens >= LONG:
            continue
        chosen = arguments(mask, tokens)
        for name, backend in KERNELS.items():
            if name == "efficient" and tokens >= LONG:
                continue
            with sdpa_kernel(backend):
                found.append({"mask": mask, "kernel": name, **clocked(q, k, v, chosen)})
    return found


def arguments(mask: str, tokens: int) -> dict:
    """Of `scaled_dot_product_attention`."""
    if mask in ("none", "causal"):
        return {"is_causal": mask == "causal"}
    seen = torch.ones(tokens, tokens, dtype=torch.bool, device="cuda").tril_()
    return {"attn_mask": (seen if "causal" in mask else seen.triu_(1 - WINDOW))[None, None]}


def clocked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chosen: dict) -> dict:
    """Seconds of both passes, or the words of the refusal."""

    def forward():
        return scaled_dot_product_attention(q, k, v, **chosen)

    def both():
        forward().backward(v)

    try:
        return {"forward": of(forward), "both": of(both)}
    except RuntimeError as error:
        return {"words": str(error).splitlines()[0]}


def of(call: Callable[[], object]) -> list[float]:
    for _ in range(WARM_UP):
        call()
    return [round(seconds_of(call), 6) for _ in range(PASSES)]
