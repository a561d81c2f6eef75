"""Posing as a GPU: DeepSpeed's accelerator answers as its CUDA accelerator does where that changes what is
made.  The device is one that torch lets a program add, under the name `GPU`: tensors of torch's own "cuda"
cannot go backward where torch was built without CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch

GPU = "gpu"
GPUS = 8  # of a host where nothing was said
MEMORY = 80_000_000_000  # bytes of a GPU of which nothing was said
# An accelerator has a property for each, as `BFloat16Tensor`, which makes tensors of the type on it.
TYPES = {"BFloat16": torch.bfloat16, "Byte": torch.uint8} | {
    name: getattr(torch, name.lower()) for name in ("Double", "Float", "Half", "Int", "Long")
}

aten = torch.ops.aten


class DeviceModule:
    """`torch.gpu`, as `torch.cuda` is for CUDA: what torch asks a device for."""

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


def answers(capacity: float, gpus_per_host: int) -> dict[str, Callable | property]:
    """{name: method} of DeepSpeed's accelerator for CUDA, where that for the CPU answers otherwise; what its
    allocator says is in `requests`."""
    return {
        "device_name": lambda self, index=None: GPU,
        "current_device_name": lambda self: f"{GPU}:0",
        "device": lambda self, index=None: torch.device(GPU, 0),
        "current_device": lambda self: 0,
        "device_count": lambda self: gpus_per_host,
        "on_accelerator": lambda self, tensor: tensor.device.type == GPU,
        "is_synchronized_device": lambda self: False,
        "is_fp16_supported": lambda self: True,
        "total_memory": lambda self, index=None: capacity,
        "is_pinned": lambda self, tensor: False,
        "Event": property(lambda self: Idle),
    } | {
        f"{name}Tensor": property(lambda self, dtype=dtype: partial(torch.tensor, dtype=dtype, device=GPU))
        for name, dtype in TYPES.items()
    }


def attention(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What torch chooses on a GPU such as an H100, in the place of `plain`: cuDNN's kernel in 16 bits, the
    memory-efficient one in 32.  torch itself asks the device, and there is none."""

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **options):
        half = query.dtype in (torch.bfloat16, torch.float16)
        given = (query, key, value, attn_mask)
        if query.device.type != GPU or (options.get("enable_gqa") and not half):
            return plain(*given, dropout_p, is_causal, scale=scale, **options)
        kernel = getattr(aten, f"_scaled_dot_product_{'cudnn' if half else 'efficient'}_attention")
        return kernel(*given, True, dropout_p, is_causal, scale=scale)[0]

    return attend
