"""Experts on different ranks (DeepSpeed's AutoEP): whether it knows the model's, and what a rehearsal puts in
the place of what depends on numbers or needs a GPU's compiler.

Which tokens go to which expert is not known without numbers: they are spread evenly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from .refusing import BadQuestion
from .working import size, work

if TYPE_CHECKING:
    from deepspeed.module_inject.auto_ep_layer import SplitPlan
    from torch.autograd.function import FunctionCtx
    from transformers import PreTrainedConfig

    from ..theory.deepspeed_config import Configuration

SECTION = "expert_parallel"
# Other kernels and other ways to send, which need a GPU.
USUAL = {"comm_backend": "comm", "async_split_plan": False, "gate_up_impl": "separate"}
USUAL |= {"use_grouped_mm": True, "row_weighting_impl": "auto"}
COMBINING = ("auto", "weighted_sum", "legacy_bmm")


def check(known: Configuration, ranks: int, name: str, shape: PreTrainedConfig) -> int:
    """Over how many ranks the experts are divided; lets AutoEP divide a model without memory, before the real
    one is built.

    Raises:
        BadQuestion: it is not rehearsed, or AutoEP cannot divide this model.
    """
    from deepspeed.module_inject.auto_ep import AutoEP
    from deepspeed.module_inject.auto_ep_config import validate_autoep_config, validate_autoep_post_detection

    from .of_transformers import build_transformers

    config = copy.copy(known.deepspeed.expert_parallel_config)  # AutoEP fills it from the model
    for key, usual in USUAL.items():
        if getattr(config, key) != usual:
            raise BadQuestion(f"{SECTION}.{key} is not rehearsed: leave it out")
    if config.combine_impl not in COMBINING:
        raise BadQuestion(f"{SECTION}.combine_impl {config.combine_impl!r} is not rehearsed: leave it out")
    if known.deepspeed.use_data_before_expert_parallel_:
        raise BadQuestion(f"{SECTION} is not rehearsed with use_data_before_expert_parallelism: leave it out")
    if ranks % config.autoep_size:
        raise BadQuestion(f"{SECTION}.autoep_size {config.autoep_size} does not divide {ranks:,} ranks")
    try:
        validate_autoep_config(config, ranks, pp_size=1, tp_size=1, sp_size=1, zero_stage=known.stage)
        with torch.device("meta"):
            model = build_transformers(shape, architecture=name)
        dividing = AutoEP(model, config)
        found = dividing.ep_parser()
        validate_autoep_post_detection(config, found)
        with torch.device("meta"):
            dividing.replace_moe_layers(found, ep_size=config.autoep_size, ep_rank=0)
    except Exception as error:  # of its own, or where it does not fit the installed transformers
        by = f"DeepSpeed {version('deepspeed')} with transformers {version('transformers')}"
        words = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise BadQuestion(f"AutoEP of {by} does not divide {name}: {words}") from error
    if not found:
        raise BadQuestion(f"AutoEP finds no experts in {name}: leave {SECTION} out")
    return config.autoep_size


# --- what is put in the place of functions of DeepSpeed; see `patches`


def evenly(plain: Callable[..., SplitPlan], **given: object) -> SplitPlan:
    """`compute_split_plan` and its messages: each expert gets as many rows as any other."""
    from deepspeed import comm

    plan, ranks, own = plain(**given), given["ep_size"], given["num_local_experts"]
    each, more = divmod(given["selected_experts"].numel(), ranks * own)
    rows = [each + (expert < more) for expert in range(ranks * own)]
    by_rank = [sum(rows[first : first + own]) for first in range(0, len(rows), own)]
    mine = by_rank[comm.get_rank(given["ep_group"])]
    return plan._replace(input_splits=by_rank, output_splits=[mine] * ranks)


def places(
    counts: torch.Tensor, starts: torch.Tensor, offsets: torch.Tensor, own: int, ranks: int, length: int
) -> torch.Tensor:
    """`fill_indices_wrapper` and `fill_indices_cpu`: where each row goes."""
    return torch.full((length,), -1, dtype=torch.int32, device=counts.device)


def gathered(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """`gather_rows`, a kernel of Triton."""
    made = rows.contiguous().new_empty(index.numel(), rows.shape[1])
    work.kernel(2 * size(made))
    return made


def on_a_gpu(rows: torch.Tensor) -> bool:
    """`permute_rows_supported`"""
    return rows.device.type != "cpu" and rows.dim() == 2


class SwiGLU(torch.autograd.Function):
    """DeepSpeed's kernel of Triton: it keeps its two inputs, and makes one tensor forward, two backward."""

    @staticmethod
    def forward(context: FunctionCtx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        context.save_for_backward(gate, up)
        work.kernel(3 * size(gate))
        return torch.empty_like(gate)

    @staticmethod
    def backward(context: FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gradient = gradient.contiguous()
        work.kernel(5 * size(gradient))
        return tuple(torch.empty_like(saved) for saved in context.saved_tensors)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`swiglu`"""
    return SwiGLU.apply(gate, up)
