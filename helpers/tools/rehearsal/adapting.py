"""Models of which a part is frozen: LoRA, QLoRA, and parameters by name.

QLoRA (Dettmers et al., arXiv 2305.14314): two weights of a frozen matrix in a byte; for each block of 64 the
largest of them, itself in 8 bits with a scale for each 256.  As bitsandbytes does it, a product makes the
matrix anew in 16 bits, forward and backward, and keeps no input for a weight that is not trained.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

BLOCK, SCALES = 64, 256  # weights of a block; blocks that share a scale
CODE = 16  # values that four bits can mean


class FourBits(torch.autograd.Function):
    """`F.linear` with a weight that is made from four bits for each product."""

    @staticmethod
    def forward(context, x, packed, shape):
        context.save_for_backward(packed)
        context.shape = shape
        return F.linear(x, x.new_empty(shape))

    @staticmethod
    def backward(context, y_gradient):
        return y_gradient @ y_gradient.new_empty(context.shape), None, None


class Linear4Bit(nn.Linear):
    """A frozen linear layer in four bits: its weight in bytes, and what bitsandbytes calls its quantisation
    state."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        weights = linear.weight.numel()
        blocks = -(-weights // BLOCK)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(torch.empty(-(-weights // 2), 1, dtype=torch.uint8), requires_grad=False)
        fp32 = -(-blocks // SCALES) + CODE
        for name, size in (
            ("absmax", blocks),
            ("scales_and_code", 4 * fp32),
        ):  # bytes: an engine casts floats
            self.register_buffer(name, torch.empty(size, dtype=torch.uint8), persistent=False)
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = FourBits.apply(x, self.weight, (self.out_features, self.in_features))
        return y if self.bias is None else y + self.bias


def quantised(model: nn.Module) -> nn.Module:
    """The model with its linear layers in four bits, except those that make logits."""
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child is not head:
                setattr(module, name, Linear4Bit(child))
    return model


def with_lora(model: nn.Module, rank: int, targets: Sequence[str] = ()) -> nn.Module:
    """The model, frozen, with LoRA adapters by peft beside the linear layers of these names (by default all
    but the head).

    Raises:
        ValueError: peft finds none of the targets, or refuses them.
    """
    from peft import LoraConfig, get_peft_model

    wanted = LoraConfig(r=rank, target_modules=list(targets) or "all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():  # peft asks transformers by a name that will change
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        return get_peft_model(model, wanted)


def freeze(model: nn.Module, patterns: Sequence[str]) -> nn.Module:
    """The model with every parameter frozen whose name fits one of the patterns, such as "*embed*".

    Raises:
        ValueError: a pattern fits none.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ValueError(f"no parameter's name fits {pattern!r}; there are {', '.join(names[:3])}, ...")
    for name, parameter in model.named_parameters():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
    return model
