"""The job's model as a list of layers, and what a rank holds that has one stage of it, rehearsed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from helpers.course.job.reference import MODELS, SEQUENCE
from helpers.tools.rehearsal.naming import OTHER

if TYPE_CHECKING:
    from deepspeed import PipelineEngine
    from transformers import LlamaConfig

PHASES = {"ForwardPass": "forward", "BackwardPass": "backward", "OptimizerStep": "step"}


class Block(nn.Module):
    """A block of the job that knows its positions."""

    def __init__(self, shape: LlamaConfig) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        self.layer, self.rotary = LlamaDecoderLayer(shape, 0), LlamaRotaryEmbedding(shape)

    def forward(self, x_bsh: torch.Tensor) -> torch.Tensor:
        places_bs = torch.arange(x_bsh.shape[1], device=x_bsh.device)[None]
        return self.layer(x_bsh, position_embeddings=self.rotary(x_bsh, places_bs))


class Head(nn.Sequential):
    """The last norm, and scores of the vocabulary."""

    def __init__(self, shape: LlamaConfig) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        norm = LlamaRMSNorm(shape.hidden_size, eps=shape.rms_norm_eps)
        super().__init__(norm, nn.Linear(shape.hidden_size, shape.vocab_size, bias=False))


def next_token_loss(logits_bsV: torch.Tensor, targets_bs: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in fp32."""
    return F.cross_entropy(logits_bsV.float().flatten(0, 1), targets_bs.flatten())


def shape_of(model: str = "8 B") -> LlamaConfig:
    from transformers import LlamaConfig

    keys = {name: value for name, value in MODELS[model].items() if name != "model_type"}
    return LlamaConfig(**keys, attn_implementation="sdpa")


def begins(blocks: Sequence[int]) -> list[int]:
    """Where stages of so many blocks begin and end in the list of layers, whose first is the embedding and
    whose last the head."""
    ends = [1 + sum(blocks[: stage + 1]) for stage in range(len(blocks))]
    return [0, *ends[:-1], ends[-1] + 1]


def engine_of(
    blocks: Sequence[int], config: dict, block: type[nn.Module] = Block, model: str = "8 B"
) -> PipelineEngine:
    """DeepSpeed's engine of a pipeline whose stages have so many blocks each, in bf16.  DeepSpeed itself cuts
    by layers or by parameters only."""
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    class CutAt(PipelineModule):
        def _partition_layers(self, method: str = "uniform") -> None:
            super()._partition_layers(method)
            self.parts = begins(blocks)
            stage = self._topo.get_coord(self.global_rank).pipe
            self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])

    shape = shape_of(model)
    layers = [LayerSpec(nn.Embedding, shape.vocab_size, shape.hidden_size)]
    layers += [*[LayerSpec(block, shape)] * sum(blocks), LayerSpec(Head, shape)]
    torch.set_default_dtype(torch.bfloat16)
    with redirect_stdout(io.StringIO()):
        with torch.device(deepspeed.get_accelerator().current_device_name()):
            net = CutAt(layers=layers, num_stages=len(blocks), loss_fn=next_token_loss)
        torch.set_default_dtype(torch.float32)
        return deepspeed.initialize(model=net, config=config)[0]


def arrived(phase: str, parts: dict[str, int]) -> dict[str, int]:
    """Parts of a moment, where what has arrived counts as an activation: a stage keeps it as its input."""
    if phase in ("forward", "backward", "messages"):
        parts = dict(parts)
        parts["activations"] = parts.get("activations", 0) + parts.pop(OTHER, 0)
    return parts


def two_steps(blocks: Sequence[int], config: dict) -> dict:
    """For `rehearse`: of a stage what `fitting.two_steps` returns of a rank, "states" after a step, and
    "passes", {"forward", "backward", "step": counts of one pass}.

    A step has one micro-batch more than stages: what more would hold is what these hold.
    """
    import deepspeed
    from helpers.tools.measure.internals import wrap_instructions
    from helpers.tools.measure.ledger import Ledger
    from helpers.tools.measure.traffic import Traffic
    from helpers.tools.rehearsal.fitting import highest_moments
    from helpers.tools.rehearsal.naming import parts_at
    from helpers.tools.rehearsal.requests import recorder
    from helpers.tools.rehearsal.working import listening, work

    deepspeed.init_distributed()
    accumulation, marks, count = config["gradient_accumulation_steps"], [], len(blocks) + 1

    def begin(phase: str) -> None:
        marks.append((ledger.clock, phase))
        ledger.mark(phase)
        work.begin(phase)

    def marked(name: str, instruction: object) -> object:
        def execute(*arguments: object, **options: object) -> None:
            begin(PHASES.get(name, "messages"))
            instruction(*arguments, **options)

        return execute

    with Ledger() as ledger, listening():
        begin("building")
        engine = engine_of(blocks, config | {"gradient_accumulation_steps": count})
        ledger.watch(engine)
        wrap_instructions(engine, marked)
        ids = torch.zeros(1, SEQUENCE, dtype=torch.int64, device=engine.device)
        for _ in range(2):
            with Traffic() as traffic:
                engine.train_batch(iter([(ids, ids)] * count))
        states = ledger.snapshot("states").categories
        begin("end")
        ledger.categories()
        sent = {"send": traffic.logged.get("send", 0) / count * accumulation}
        moments = highest_moments(ledger, marks)
        return {
            "elements": sum(parameter.numel() for parameter in engine.module.parameters()),
            "states": states,
            "parts": {
                phase: arrived(phase, parts_at(ledger, moment, recorder.made, shape_of().vocab_size))
                for phase, moment in moments.items()
            },
            "requests": recorder.requests,
            "sent": sent,
            "passes": dict(work.passes[-2 * count - 1 :]),
        }
