"""Matrix products of bf16 numbers on a CPU: computed in fp32, and rounded to bf16 once.

This is what processors with instructions for bf16 do, but for the order of the sums.  On all others torch's
own bf16 products are up to 20 times slower than those of fp32.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # what linear layers and `@` between matrices become


def rounded_once(operator: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    """A kernel of the operator, which takes tensors that share a dtype and a device, and numbers.

    It lies below autograd and torch's modes: what they keep and count are bf16 tensors.  Its own fp32 ones
    are the working memory of a kernel, which nobody sees.
    """
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def run(keys, *tensors, **numbers):
        if tensors[0].dtype == torch.bfloat16 and tensors[0].is_cpu:
            return operator(*(tensor.float() for tensor in tensors), **numbers).bfloat16()
        return operator.redispatch(keys & below, *tensors, **numbers)

    return run


LIBRARY = torch.library.Library("aten", "IMPL")
if os.environ.get("DS_ACCELERATOR") != "cuda":  # ranks on GPUs multiply there alone
    for product in PRODUCTS:
        kernel = rounded_once(getattr(torch.ops.aten, product).default)
        LIBRARY.impl(product, kernel, "BackendSelect", with_keyset=True)
