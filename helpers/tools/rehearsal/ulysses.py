"""Sequences on several ranks (DeepSpeed's Ulysses for transformers' models): each has a part of every
sequence, and some heads of the whole where attention is computed.

Registered and trained as Accelerate and transformers' Trainer do it.  What a data loader sends is left out: a
rank begins with its part of a batch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from .refusing import BadQuestion

if TYPE_CHECKING:
    from types import ModuleType

    from deepspeed import DeepSpeedEngine
    from torch.autograd.function import FunctionCtx
    from transformers import PreTrainedConfig, PreTrainedModel

    from ..theory.deepspeed_config import Configuration
    from .question import Question

SECTION = "sequence_parallel_size"
ATTENTION = "sdpa"
ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}  # layers


def check(
    known: Configuration, ranks: int, name: str, shape: PreTrainedConfig, sequence: int, labels: str
) -> int:
    """How many ranks share a sequence.

    Raises:
        BadQuestion: Ulysses cannot divide the model, or the ranks or the sequence cannot be divided so.
    """
    size, text = known.config[SECTION], shape.get_text_config()
    heads, key_heads = (getattr(text, f"num_{kind}_heads", None) for kind in ("attention", "key_value"))
    for what, number in {f"{ranks:,} ranks": ranks, f"a sequence of {sequence:,} tokens": sequence}.items():
        if number % size:
            raise BadQuestion(f"{SECTION} {size} does not divide {what}")
    if "data_parallel_size" in known.config:
        raise BadQuestion(f"data_parallel_size with {SECTION} is not rehearsed: leave it out")
    if labels != "tokens":
        raise BadQuestion(f"{name} has one label for a sequence, which Ulysses divides: leave {SECTION} out")
    if others := set(getattr(text, "layer_types", None) or ()) - ATTENDING:
        raise BadQuestion(
            f"DeepSpeed's Ulysses divides attention, and {name} has {', '.join(sorted(others))}"
        )
    if not heads or not key_heads:
        raise BadQuestion(f"DeepSpeed's Ulysses needs num_key_value_heads, and {name} has none")
    if heads % size or key_heads % size and size % key_heads:
        both = f"{heads} attention heads and {key_heads} key-value heads"
        raise BadQuestion(f"DeepSpeed's Ulysses does not divide {both} over {size} ranks")
    return size


def registered(model: PreTrainedModel, question: Question) -> ModuleType | None:
    """Let the model's attention pass through Ulysses; what `deepspeed.initialize` takes as `mpu`."""
    if question.axes.sequence == 1:
        return None
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    return UlyssesSPAttentionHF.register_with_transformers(
        model, ATTENTION, question.axes.sequence, question.micro_batch, disable_in_eval=True
    )


def batch(question: Question, device: torch.device) -> dict[str, torch.Tensor]:
    """A rank's part of a micro-batch, as DeepSpeed's `UlyssesSPDataLoaderAdapter` gives it."""
    from deepspeed.utils import groups

    tokens = question.sequence // question.axes.sequence
    first = tokens * groups._get_sequence_parallel_rank()
    sizes = question.micro_batch, tokens
    ids, labels = (torch.zeros(sizes, dtype=torch.int64, device=device) for _ in range(2))
    positions = torch.arange(first, first + tokens, device=device).repeat(question.micro_batch, 1)
    return {"input_ids": ids, "position_ids": positions, "shift_labels": labels}


def loss(engine: DeepSpeedEngine, question: Question, options: dict) -> torch.Tensor:
    """The loss of a micro-batch, the mean over all ranks that share its sequences."""
    from transformers.integrations.deepspeed import deepspeed_sp_compute_loss

    parallel = SimpleNamespace(sp_backend="deepspeed", sp_size=question.axes.sequence)
    inputs = batch(question, engine.device) | options
    return deepspeed_sp_compute_loss(None, engine, inputs, return_outputs=False, pc=parallel)


# --- what is put in the place of functions of DeepSpeed; see `patches`


class Exchange(torch.autograd.Function):
    """Every rank's part of a tensor to that rank, forward and backward."""

    @staticmethod
    def forward(context: FunctionCtx, group: object, x: torch.Tensor) -> torch.Tensor:
        from deepspeed import comm

        context.group = group
        received = torch.empty_like(x)
        comm.all_to_all_single(received, x, group=group)
        return received

    @staticmethod
    def backward(context: FunctionCtx, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, Exchange.forward(context, context.group, gradient.contiguous())


def exchanged(group: object, x: torch.Tensor) -> torch.Tensor:
    """`_dim_zero_all_to_all`, an operator of DeepSpeed's own, of which torch runs the shape alone where there
    are no numbers."""
    return Exchange.apply(group, x.contiguous())
