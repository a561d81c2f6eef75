"""Where a step's time goes, kernel by kernel: a block of the job, and 16 of its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile
from helpers.course import job
from helpers.course.job.reference import cut
from helpers.course.recording.in_ranks import device, seconds_of
from helpers.tools.rehearsal.of_transformers import checkpointed

BLOCKS = {"a block": 1, "16 blocks": 16}
WARM_UP, PASSES, PROFILED, NAME = 3, 10, 2, 160  # the last: characters of a kernel's name


def waterfall(blocks: str, checkpointing: bool) -> dict[str, dict]:
    """The job's model with some of its blocks, in bf16 on one GPU, one sequence of 8,192 tokens.

    A single block stands alone, without embedding and loss.

    Returns:
        {"forward", "forward and backward", and with the loss "update", by torch's fused AdamW in bf16:
        {"seconds": [of each pass, by the clock], "kernels": {name: [how many, seconds] of one pass}}}.
    """
    torch.manual_seed(0)
    passes = whole(BLOCKS[blocks], checkpointing) if blocks != "a block" else alone(checkpointing)
    found = {}
    for name, call in passes.items():
        for _ in range(WARM_UP):
            call()
        seconds = [round(seconds_of(call), 6) for _ in range(PASSES)]
        found[name] = {"seconds": seconds, "kernels": kernels(call)}
    return found


def alone(checkpointing: bool) -> dict[str, Callable[[], object]]:
    """The passes of one block."""
    from torch.utils.checkpoint import checkpoint
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    keys = {name: value for name, value in job.MODELS["8 B"].items() if name != "model_type"}
    shape = LlamaConfig(**keys, attn_implementation="sdpa")
    with torch.device(device()):
        layer = LlamaDecoderLayer(shape, 0).bfloat16()
        x_bsh = torch.randn(1, job.SEQUENCE, shape.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        places = LlamaRotaryEmbedding(shape)(x_bsh.detach(), torch.arange(job.SEQUENCE)[None])

    def forward():
        if checkpointing:
            return checkpoint(layer, x_bsh, position_embeddings=places, use_reentrant=False)
        return layer(x_bsh, position_embeddings=places)

    return {"forward": forward, "forward and backward": lambda: forward().backward(torch.ones_like(x_bsh))}


def whole(blocks: int, checkpointing: bool) -> dict[str, Callable[[], object]]:
    """The passes of a model with so many blocks, embedding, head and loss."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.for_model(**job.MODELS[cut(blocks)])
    with torch.device(device()):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).train()
        ids = torch.randint(3, 1000, (1, job.SEQUENCE))
    if checkpointing:
        checkpointed(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def forward():
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    return {
        "forward": forward,
        "forward and backward": lambda: forward().backward(),
        "update": optimizer.step,
    }


def kernels(call: Callable[[], object]) -> dict[str, list]:
    """{a kernel's name: [how many of one call, their seconds]}, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for _ in range(PROFILED):
            call()
        torch.cuda.synchronize()
    counts, seconds = Counter(), Counter()
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name[:NAME]] += 1
            seconds[event.name[:NAME]] += 1e-6 * event.time_range.elapsed_us()
    return {
        name: [round(counts[name] / PROFILED, 1), round(total / PROFILED, 8)]
        for name, total in seconds.most_common()
    }
