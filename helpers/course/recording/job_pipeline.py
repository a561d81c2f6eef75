"""A pipeline of 20 of the job's blocks on two GPUs, cut where both stages have as many layers, and where they
take as long."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn
from torch.utils.checkpoint import checkpoint
from helpers.course import job
from helpers.course.models.gpt import next_token_loss
from helpers.course.recording.experiment import deepspeed_configuration
from helpers.course.recording.experiments import schedule_of

if TYPE_CHECKING:
    from transformers import LlamaConfig

BLOCKS, MICRO_BATCHES = 20, 8
CUTS = {"by count": 11, "by seconds": 12}  # layers of the first stage: the embedding and so many blocks


class Block(nn.Module):
    """A checkpointed block of the job that knows its positions."""

    def __init__(self, shape: LlamaConfig) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        self.layer, self.rotary = LlamaDecoderLayer(shape, 0), LlamaRotaryEmbedding(shape)

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        places_bs = torch.arange(x_bsh.shape[1], device=x_bsh.device)[None]
        places = self.rotary(x_bsh, places_bs)
        return checkpoint(self.layer, x_bsh, position_embeddings=places, use_reentrant=False)


class Head(nn.Sequential):
    """The last norm, and scores of the vocabulary."""

    def __init__(self, shape: LlamaConfig) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        norm = LlamaRMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        super().__init__(norm, nn.Linear(shape.hidden_size, shape.vocab_size, bias=False))


class CutAt(PipelineModule):
    """A pipeline of two stages whose first has so many layers: DeepSpeed cuts by layers or by parameters."""

    def __init__(self, first: int, **more: object) -> None:
        self.first = first
        super().__init__(**more)

    def _partition_layers(self, method: str = "uniform") -> None:
        super()._partition_layers(method)
        self.parts = [0, self.first, len(self._layer_specs)]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])


def configuration(ranks: int, cut: str) -> dict:
    """In bf16 and with torch's fused AdamW."""
    config = deepspeed_configuration(micro_batches=MICRO_BATCHES)
    config["optimizer"]["params"]["fused"] = True
    return config


BLOCK, HEAD = 0.033, 0.060  # assumed: seconds of a checkpointed block's passes, and of the head's


def predicted(ranks: int, cut: str) -> dict[str, float]:
    """{"seconds": of a step's passes: the slower stage for each micro-batch, and the other one once}."""
    first = BLOCK * (CUTS[cut] - 1)
    last = BLOCK * (BLOCKS - CUTS[cut] + 1) + HEAD
    return {"seconds": round(MICRO_BATCHES * max(first, last) + min(first, last), 4)}


def job_pipeline(cut: str, config: dict) -> dict:
    """Steps of `MICRO_BATCHES` sequences of 8,192 tokens, every block checkpointed.

    Args:
        cut: one of `CUTS`.

    Returns:
        {"elements": parameters of this stage, "peak": {"allocated", "reserved": bytes at most}, and what
        `schedule_of` returns}.
    """
    from transformers import LlamaConfig

    deepspeed.init_distributed()
    keys = {name: value for name, value in job.MODELS["8 B"].items() if name != "model_type"}
    shape = LlamaConfig(**keys, attn_implementation="sdpa")

    layers = [
        LayerSpec(nn.Embedding, shape.vocab_size, shape.hidden_size),
        *[LayerSpec(Block, shape)] * BLOCKS,
        LayerSpec(Head, shape),
    ]
    torch.set_default_dtype(torch.bfloat16)
    with redirect_stdout(io.StringIO()):
        with torch.device("cuda"):
            net = CutAt(CUTS[cut], layers=layers, num_stages=2, loss_fn=next_token_loss)
        torch.set_default_dtype(torch.float32)
        engine, *_ = deepspeed.initialize(model=net, config=config)
        ids = torch.randint(3, 1000, (1, job.SEQUENCE), device=engine.device)
        clocked = schedule_of(engine, lambda step: engine.train_batch(iter([(ids, ids)] * MICRO_BATCHES)))
    found = torch.cuda.memory_stats()
    return {
        "elements": sum(parameter.numel() for parameter in engine.module.parameters()),
        "peak": {of: found[f"{of}_bytes.all.peak"] for of in ("allocated", "reserved")},
        **clocked,
    }
