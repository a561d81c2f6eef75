"""LoRA of the job's model on a card of 24 GB: one GPU whose allocator may have no more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from helpers.course import job
from helpers.course.job.plans import PLANS
from helpers.course.recording.in_ranks import limit_memory, seconds_of
from helpers.tools.measure import internals
from helpers.tools.rehearsal.of_transformers import checkpointed

PLAN = "LoRA, 1 GPU of 24 GB"
LIMIT = 23_100_000_000  # bytes of such a card that the allocator can have
STEPS, TILE = 3, 1024  # steps by the clock; tokens of a tile
WAYS = ("plain", "checkpointed", "checkpointed, DeepSpeed's loss", "checkpointed, tiles")


def predicted(ranks: int, how: str) -> dict[str, float]:
    """{"GB": needed at most}: of tensors alone, as they were counted without memory before."""
    told = {
        "checkpointed": 31.1,
        "checkpointed, DeepSpeed's loss": 23.4,
        "checkpointed, tiles": 20.3,
    }
    return {"GB": told[how]} if how in told else {}


def small_card(how: str, config: dict) -> dict[str, object]:
    """Steps of two micro-batches, first on the whole GPU, then within `LIMIT`, with expandable segments.

    Args:
        how: one of `WAYS`.

    Returns:
        {"peak": {"requested", "allocated", "reserved": bytes at most on the whole GPU}, "seconds": [of each
        step there], "within": [of each step within the limit], or "words" of the error}.
    """
    import deepspeed
    from deepspeed.runtime.chunked_cross_entropy import install_chunked_causal_lm_loss
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    internals.grow_segments()
    deepspeed.init_distributed()
    shape = AutoConfig.for_model(**job.MODELS["8 B"])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).train()
    if how == "checkpointed, DeepSpeed's loss":
        install_chunked_causal_lm_loss(model)
    if how != "plain":
        model.enable_input_require_grads()
        model = checkpointed(model)
    model = get_peft_model(model, LoraConfig(r=16, task_type="CAUSAL_LM"))
    model = Tiled(model) if how == "checkpointed, tiles" else Whole(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    ids = torch.randint(3, 1000, (1, job.SEQUENCE), device="cuda")

    def step():
        for _ in range(config["gradient_accumulation_steps"]):
            engine.backward(engine(ids))
            engine.step()

    return whole_and_within(step)


def whole_and_within(step: Callable[[], None]) -> dict[str, object]:
    """What `small_card` returns, of one step."""
    step()
    torch.cuda.reset_peak_memory_stats()
    seconds = [round(seconds_of(step), 6) for _ in range(STEPS)]
    found = torch.cuda.memory_stats()
    peak = {of: found[f"{of}_bytes.all.peak"] for of in ("requested", "allocated", "reserved")}
    torch.cuda.empty_cache()
    limit_memory(LIMIT)
    try:
        within = {"within": [round(seconds_of(step), 6) for _ in range(STEPS)]}
    except torch.OutOfMemoryError as error:
        within = {"words": str(error).splitlines()[0]}
    return {"peak": peak, "seconds": seconds, **within}


class Whole(nn.Module):
    """A model of transformers that returns its own loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_bs: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids_bs, labels=ids_bs, use_cache=False).loss


class Tiled(Whole):
    """Its head and loss for one tile of tokens after another, each computed again in the backward pass."""

    def forward(self, ids_bs: torch.Tensor) -> torch.Tensor:
        whole = self.model.get_base_model()
        x_bsh = whole.model(input_ids=ids_bs, use_cache=False).last_hidden_state

        def summed(part_NC, targets_N):
            return F.cross_entropy(whole.lm_head(part_NC).float(), targets_N, reduction="sum")

        tiles = zip(x_bsh[:, :-1].flatten(0, 1).split(TILE), ids_bs[:, 1:].flatten().split(TILE))
        return sum(checkpoint(summed, *tile, use_reentrant=False) for tile in tiles) / (ids_bs.numel() - 1)


def configuration(ranks: int, how: str) -> dict:
    """The plan's, with a short step."""
    return PLANS[PLAN].config | {"gradient_accumulation_steps": 2}
