"""Posing as a GPU: a device that is not the CPU, and DeepSpeed's accelerator answering as its CUDA
accelerator does where that changes what is made.

The device is the one that torch lets a program add, under the name `GPU`: tensors of torch's own "cuda"
cannot go backward where torch was built without CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

GPU = "gpu"
GPUS = 8  # of a host, as far as a program asks
MEMORY = 80_000_000_000  # bytes of a GPU of which nothing was said
TENSORS = {  # properties of an accelerator: types of tensors on it
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.double,
    "FloatTensor": torch.float,
    "HalfTensor": torch.half,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}

aten = torch.ops.aten


class DeviceModule:
    """`torch.gpu`, as `torch.cuda` is for CUDA: what torch asks a device for."""

    device_count = staticmethod(lambda: GPUS)
    current_device = staticmethod(lambda: 0)
    is_available = is_initialized = staticmethod(lambda: True)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16, torch.float16])
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: None)
    device = staticmethod(lambda device: contextlib.nullcontext())
    synchronize = staticmethod(lambda device=None: None)


class Idle:
    """A stream or an event that has nothing to wait for."""

    def __init__(self, *arguments: object, **options: object) -> None: ...

    def __getattr__(self, name):
        return lambda *arguments, **options: True


def answers(memory: float) -> dict[str, Callable | property]:
    """{name: method} of DeepSpeed's accelerator for CUDA, where that for the CPU answers otherwise."""
    return {
        "device_name": lambda self, index=None: GPU,
        "current_device_name": lambda self: f"{GPU}:0",
        "device": lambda self, index=None: torch.device(GPU, 0),
        "current_device": lambda self: 0,
        "device_count": lambda self: GPUS,
        "on_accelerator": lambda self, tensor: tensor.device.type == GPU,
        "is_synchronized_device": lambda self: False,
        "is_fp16_supported": lambda self: True,
        "available_memory": lambda self, index=None: memory,
        "total_memory": lambda self, index=None: memory,
        "pin_memory": lambda self, tensor, *options, **more: tensor,
        "is_pinned": lambda self, tensor: False,
        "Event": property(lambda self: Idle),
    } | {
        name: property(lambda self, dtype=dtype: lambda *of: torch.tensor(*of, dtype=dtype, device=GPU))
        for name, dtype in TENSORS.items()
    }


def attention(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What torch chooses on a GPU as H100 and H200 are, in the place of `plain`: cuDNN's kernel in 16 bits,
    the memory-efficient one in 32.

    torch itself asks the device, and there is none.
    """

    def chosen(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
    ):
        half = query.dtype in (torch.bfloat16, torch.float16)
        if query.device.type != GPU or (enable_gqa and not half):
            return plain(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        kernel = (
            aten._scaled_dot_product_cudnn_attention if half else aten._scaled_dot_product_efficient_attention
        )
        return kernel(query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale)[0]

    return chosen
