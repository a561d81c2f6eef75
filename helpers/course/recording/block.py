"""One block of Llama 3 8B whose matrices several ranks share, by torch's own tensor parallelism: seconds and
bytes of its forward and backward passes, with and without sequence parallelism."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

import deepspeed
import deepspeed.comm as comm
import torch
from helpers.course.recording.in_ranks import busy, device, on_gpu, seconds_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

WARM_UP, PASSES = 5, 20
BLOCKS = {
    "Llama 3 8B": (
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
        },
        8192,
    ),
}


def block(of: tuple[dict, int], sequence_parallel: bool) -> dict:
    """The block in bf16 on one sequence, by the clock.

    Args:
        of: keys of LlamaConfig, and tokens of the sequence.
        sequence_parallel: whether norms and residuals are divided by tokens among the ranks, too
            (Korthikanti et al., arXiv 2205.05198, section 4.2.2).

    Returns:
        {"seconds": [of each forward and backward pass], "median": of them; "parameters": elements on this
        rank, "kept": bytes that the forward pass leaves for the backward pass, "peak": bytes at most beside
        what was there before (both 0 on a CPU), "busy": what `busy` returns}.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    deepspeed.init_distributed()
    keys, tokens = of
    ranks, shape = comm.get_world_size(), LlamaConfig(**keys, attn_implementation="sdpa")
    torch.manual_seed(0)
    with torch.device(device()):
        layer = LlamaDecoderLayer(shape, 0).bfloat16()
        rotary = LlamaRotaryEmbedding(shape)
        divide(layer, torch.distributed.init_device_mesh(kind(), (ranks,)), sequence_parallel)
        own = tokens // ranks if sequence_parallel else tokens
        x_bsh = torch.randn(1, own, shape.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        places = rotary(x_bsh.detach(), torch.arange(tokens)[None])

    def forward():
        return layer(x_bsh, position_embeddings=places)

    def both():
        forward().backward(torch.ones_like(x_bsh))

    for _ in range(WARM_UP):
        both()
    seconds = [seconds_of(both) for _ in range(PASSES)]
    return {
        "seconds": [round(each, 6) for each in seconds],
        "median": statistics.median(seconds),
        "parameters": sum(local(parameter).numel() for parameter in layer.parameters()),
        **memory(forward, x_bsh),
        "busy": busy(both),
    }


def kind() -> str:
    return "cuda" if on_gpu() else "cpu"


def local(parameter: torch.Tensor) -> torch.Tensor:
    """What this rank has of a parameter."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def divide(layer: torch.nn.Module, mesh: DeviceMesh, sequence_parallel: bool) -> None:
    """Columns of q, k, v, gate and up, and rows of the output and down, on different ranks."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    if mesh.size() == 1:
        return
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    between = Shard(1) if sequence_parallel else Replicate()
    plan = dict.fromkeys(columns, ColwiseParallel())
    plan |= {name: RowwiseParallel(output_layouts=between) for name in ("self_attn.o_proj", "mlp.down_proj")}
    if sequence_parallel:
        plan |= {
            "input_layernorm": SequenceParallel(use_local_output=True),
            "post_attention_layernorm": SequenceParallel(use_local_output=True),
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": between},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
                use_local_output=True,
            ),
            "mlp": PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(Replicate(),), use_local_output=True
            ),
        }
    parallelize_module(layer, mesh, plan)


def memory(forward: Callable[[], torch.Tensor], x_bsh: torch.Tensor) -> dict[str, int]:
    """{"kept", "peak"} of one forward and backward pass."""
    if not on_gpu():
        forward().backward(torch.ones_like(x_bsh))
        return {"kept": 0, "peak": 0}
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = forward()
    kept = torch.cuda.memory_allocated() - before
    result.backward(torch.ones_like(x_bsh))
    return {"kept": kept, "peak": torch.cuda.max_memory_allocated() - before}
