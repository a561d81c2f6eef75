"""Matrix products of bf16 numbers on a CPU: computed in fp32, and rounded to bf16 once.

This is what processors with instructions for bf16 do, but for the order of the sums.  On all others torch's
own bf16 products are up to 20 times slower than those of fp32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")  # what linear layers and `@` between matrices become


def rounded_once(operator: torch._ops.OpOverload) -> Callable[..., torch.Tensor]:
    """A CPU kernel of the operator, which takes tensors of one dtype, and numbers.

    It lies below autograd and torch's modes: what they keep and count are bf16 tensors.  Its own fp32 ones
    are the working memory of a kernel, which nobody sees.
    """
    torchs = torch.library.get_kernel(operator, "CPU")

    def kernel(keys, *tensors, **numbers):
        if tensors[0].dtype == torch.bfloat16:
            return operator(*(tensor.float() for tensor in tensors), **numbers).bfloat16()
        return torchs.call_boxed(keys, *tensors, **numbers)

    return kernel


LIBRARY = torch.library.Library("aten", "IMPL")
with warnings.catch_warnings(action="ignore"):  # it replaces torch's kernels, which torch tells
    for product in PRODUCTS:
        kernel = rounded_once(getattr(torch.ops.aten, product).default)
        LIBRARY.impl(product, kernel, "CPU", with_keyset=True, allow_override=True)
