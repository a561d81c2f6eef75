"""The model of the fine-tuning experiments: ChatGLM3's architecture from the transformers library, with
adapters of the peft library.

Both libraries are imported by the functions that need them, so that a rank that needs neither pays for
neither.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from helpers.course.models.gpt import next_token_loss

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import GlmConfig, PreTrainedModel

# ChatGLM3-6B's shape as keys of transformers' GlmConfig: 6,243,584,000 parameters.
CHATGLM_6B = {
    "vocab_size": 65024,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 28,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "attention_bias": True,
}
TINY_CHATGLM = CHATGLM_6B | {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
}
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj")  # the layers that get adapters: all of attention


def chatglm(shape: Mapping[str, int], **more: object) -> GlmConfig:
    """The configuration, in bf16."""
    from transformers import GlmConfig

    return GlmConfig(**shape, dtype="bfloat16", pad_token_id=0, eos_token_id=1, **more)


def rehearsed(shape: Mapping[str, int]) -> PreTrainedModel:
    """The same model on the device meta, where tensors have shapes and no numbers.  Its attention is flash
    attention's by name, since torch would take the explicit kernel there, with its s x s scores."""
    from transformers import AttentionInterface, AutoModelForCausalLM

    def attend(module, query, key, value, mask, scaling=None, **options):
        attended = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, 0.0, True, scale=scaling
        )[0]
        return attended.transpose(1, 2), None

    AttentionInterface.register("by_shape", attend)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(chatglm(shape, attn_implementation="by_shape"))


def with_adapters(model: PreTrainedModel, in_fp32: bool = True) -> PeftModel:
    """Freeze a model of transformers, in place, and put LoRA adapters of rank 8 beside its attention's
    layers; peft keeps them `in_fp32` beside a bf16 model, unless it is told not to."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    wanted = LoraConfig(r=8, lora_alpha=16, target_modules=list(ADAPTED), task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        # peft asks transformers by a name that will change
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, wanted, autocast_adapter_dtype=in_fp32)


def elements_by_kind(model: PeftModel) -> dict[str, list[int]]:
    """{kind: elements of each parameter} of a model of `with_adapters`, in its order: "matrices" are frozen
    and in its blocks, where QLoRA quantises them; other "frozen" ones are norms, biases, the embedding and
    the head; and "trained"."""
    elements = {"matrices": [], "frozen": [], "trained": []}
    for name, parameter in model.named_parameters():
        in_a_block = parameter.dim() == 2 and ".layers." in name
        kind = "trained" if parameter.requires_grad else "matrices" if in_a_block else "frozen"
        elements[kind].append(parameter.numel())
    return elements


class WithLoss(nn.Module):
    """A model of `with_adapters` and its loss in one module: head and loss for `chunks` parts of the tokens,
    one after another, each computed again in the backward pass."""

    def __init__(self, model: PeftModel, chunks: int = 1) -> None:
        super().__init__()
        self.model, self.chunks = model, chunks

    def forward(
        self, ids_bs: torch.Tensor, targets_bs: torch.Tensor, positions_bs: torch.Tensor | None = None
    ) -> torch.Tensor:
        whole = self.model.get_base_model()
        x_bsh = whole.model(input_ids=ids_bs, position_ids=positions_bs, use_cache=False).last_hidden_state
        if self.chunks == 1:
            return next_token_loss(whole.lm_head(x_bsh), targets_bs)

        def summed(part_NC, targets_N):
            return F.cross_entropy(whole.lm_head(part_NC).float(), targets_N, reduction="sum")

        # in two dimensions, so that a part takes the same kernel when it is computed again
        parts = zip(x_bsh.flatten(0, 1).chunk(self.chunks), targets_bs.flatten().chunk(self.chunks))
        return sum(checkpoint(summed, *part, use_reentrant=False) for part in parts) / targets_bs.numel()
