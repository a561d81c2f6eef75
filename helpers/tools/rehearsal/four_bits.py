"""A stand-in for bitsandbytes: linear layers that hold what its `Linear4bit` holds and allocate what it
allocates, and have no numbers.

transformers and peft find it under the name of bitsandbytes and do with it what they do with the library
itself.  QLoRA (Dettmers et al., arXiv 2305.14314, section 3) keeps two weights in a byte, and a scale for
every block of 64.  Double quantisation keeps a scale in a byte too, and one in fp32 for every 256 of them.  A
product makes the whole weight anew in 16 bits, forward and backward.  Sizes are those of bitsandbytes 0.50,
which takes another way forward with few tokens: up to 1,536 it can make the weight in parts.
"""

from __future__ import annotations

import importlib.machinery
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "bitsandbytes"
BLOCK, SCALES = 64, 256  # weights of a block; blocks that share a scale of their scales
CODE, SCALE_CODE = 16, 256  # fp32 numbers that four bits, and eight, can mean


@dataclass
class Quantisation:
    """What is kept beside packed weights.

    Attributes:
        shape, dtype: of the weight that is made anew.
        tensors: scales, what codes mean, and with double quantisation the scales' own.
        blocks: how many scales there are.
        is_double: whether they are quantised themselves.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensors: tuple[torch.Tensor, ...]
    blocks: int
    is_double: bool


class Product(torch.autograd.Function):
    """`F.linear` with a weight that is made anew each time.  No input is kept for a weight that is not
    trained; the packed weights are, so that ZeRO-3 cannot give a gathered one back before the backward
    pass."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        x: torch.Tensor,
        packed: torch.Tensor,
        bias: torch.Tensor | None,
        kept: Quantisation,
    ) -> torch.Tensor:
        context.kept = kept
        context.packed = packed.view(-1, 1) if context.needs_input_grad[0] else None
        scales = [x.new_zeros(kept.blocks, dtype=torch.float32) for _ in range(2 * kept.is_double)]
        y = F.linear(x, x.new_zeros(kept.shape), bias)
        del scales  # until here
        return y

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        kept, scales = context.kept, None
        if kept.is_double:
            scales = gradient.new_zeros(kept.blocks, dtype=torch.float32)
        weight = gradient.new_zeros(kept.shape, dtype=kept.dtype)
        del scales
        return gradient @ weight.to(gradient.dtype), None, None, None


class Linear4bit(nn.Linear):
    """A frozen linear layer; packed once it is `placed`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool,
        compute_dtype: torch.dtype,
        *,
        compress_statistics: bool,
        quant_type: str,
        quant_storage: torch.dtype,
    ) -> None:
        super().__init__(inputs, outputs, bias, dtype=compute_dtype)
        self.compute_dtype, self.is_double, self.quant_type = compute_dtype, compress_statistics, quant_type
        self.quant_storage = quant_storage

    def placed(self, device: str, shared: torch.Tensor | None) -> None:
        """Read the weight onto a device and pack it.

        Args:
            shared: what eight bits mean, of which every double quantisation makes a copy.
        """
        whole = torch.zeros_like(self.weight, device=device)
        blocks, fp32 = math.ceil(whole.numel() / BLOCK), {"dtype": torch.float32, "device": device}
        packed = whole.new_zeros((whole.numel() + 1) // 2, 1, dtype=self.quant_storage)
        scales, code = torch.zeros(blocks, **fp32), torch.zeros(CODE, **fp32)
        tensors = (code, scales)
        if self.is_double:
            offset = scales.mean()
            shifted = scales - offset
            in_bytes, own = shifted.to(torch.uint8), torch.zeros(math.ceil(blocks / SCALES), **fp32)
            tensors = (code, in_bytes, offset, own, shared, shared.clone())
            del shifted
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight.quant_state = Quantisation(
            tuple(whole.shape), whole.dtype, tensors, blocks, self.is_double
        )
        self.weight.compress_statistics, self.weight.quant_type = self.is_double, self.quant_type  # peft asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        y = Product.apply(x.to(self.compute_dtype), self.weight, bias, self.weight.quant_state)
        return y.to(x.dtype)


class Linear8bitLt(nn.Linear):
    """Never made; peft asks whether a layer is one."""


def stand_in() -> None:
    """Let transformers and peft find these layers under the library's name, in this process."""
    from peft import import_utils
    from transformers.integrations import bitsandbytes as integration

    library = ModuleType(NAME)
    library.__spec__ = importlib.machinery.ModuleSpec(NAME, None)
    library.nn = SimpleNamespace(Linear4bit=Linear4bit, Linear8bitLt=Linear8bitLt)
    sys.modules[NAME] = integration.bnb = library
    sys.modules.pop("peft.tuners.lora.bnb", None)
    for asked in (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available):
        asked.cache_clear()


def loaded(
    build: Callable[[], PreTrainedModel], device: str, dtype: torch.dtype, is_double: bool = True
) -> PreTrainedModel:
    """A model as `from_pretrained` loads it in four bits: made without memory, then read onto the device one
    tensor after another; transformers chooses which linear layers are packed.

    Args:
        build: makes the model, with parameters of `dtype`.
    """
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import HfQuantizer

    stand_in()
    with torch.device("meta"):
        model = build()
    whole = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    wanted = SimpleNamespace(
        quantization_method=lambda: "nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=is_double,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_quant_storage=torch.uint8,
    )
    replace_with_bnb_linear(model, whole, wanted)
    place(model, device)
    model.is_loaded_in_4bit = True
    return model


def place(model: nn.Module, device: str) -> None:
    """Put every tensor of a model onto a device; a tensor that two modules share stays one."""
    made, shared = {}, None
    for module in model.modules():
        if isinstance(module, Linear4bit):
            if module.is_double and shared is None:
                shared = torch.zeros(SCALE_CODE, dtype=torch.float32, device=device)
            module.placed(device, shared)
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if tensor.device.type != "meta":
                continue
            if tensor not in made:
                there = torch.zeros_like(tensor, device=device)
                is_parameter = isinstance(tensor, nn.Parameter)
                made[tensor] = nn.Parameter(there, tensor.requires_grad) if is_parameter else there
            setattr(module, name, made[tensor])
