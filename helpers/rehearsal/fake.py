"""Tensors with a shape, a type and a device, and no numbers: torch's `FakeTensorMode`, which also answers where a program asks for a number.

What a tensor holds is known where a program plainly said it: whole numbers and booleans that it made on the CPU (ranks of a group, shapes,
offsets) keep their values up to `KNOWN` of them.  Of all others a program may ask (`.item()`, `bool()`), and is answered 1.0, or 0 where the
type is of whole numbers.
"""

from __future__ import annotations

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_leaves
from helpers.rehearsal.remembered import UNSEEN, Memory

aten = torch.ops.aten
CPU = torch.device("cpu")
KNOWN = 2**16  # elements
MAKERS = {  # of tensors whose numbers a program says
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.empty.memory_format,
    aten.full.default,
    aten.ones.default,
    aten.zeros.default,
}


class NoNumbers(RuntimeError):
    """A program did what depends on the numbers in a tensor, or what a rehearsal does not know how to do; says what."""


raised = []  # the last error that was raised within an operation


def noted(error):
    """The error, to be raised: torch loses what is raised in a backward pass on a device that a program has added."""
    raised[:] = [error]
    return error


class Weightless(FakeTensorMode):
    """The mode of a rehearsal: every tensor that is made under it has no numbers."""

    avoid_device_init = True  # torch.tensor(..., device=a GPU): made on the CPU, then moved
    _should_skip_dynamo = classmethod(lambda cls: False)  # torch would wrap the method below, which takes longer than the method

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.memory = Memory(self)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.prim.device.default:  # asked several times by every operation
            return torch.device("meta") if self.in_kernel_invocation else args[0]._fake_device
        if self.memory.looks(function) and (made := self.memory.view(function, args, kwargs)) is not UNSEEN:
            return made
        if function.namespace == "c10d":  # a message: nobody knows the numbers any more
            self._forget(args)
        if function in MAKERS and (made := self._known(function, args, kwargs)) is not None:
            return made
        key, made = self.memory.recall(function, args, kwargs)
        if made is not UNSEEN:
            return made
        try:
            made = super().__torch_dispatch__(function, types, args, kwargs)
        except DataDependentOutputException:
            if function is aten._local_scalar_dense.default:  # .item(), bool(), float(), int()
                return 1.0 if args[0].is_floating_point() else 0
            if function is aten.equal.default:
                return True
            raise noted(NoNumbers(f"what {function} returns depends on the numbers in a tensor, and a rehearsal has none")) from None
        except DynamicOutputShapeException:
            raise noted(NoNumbers(f"the shape of what {function} returns depends on the numbers in a tensor, and a rehearsal has none")) from None
        except UnsupportedOperatorException:
            raise noted(NoNumbers(f"torch does not know which shape {function} returns, so that it cannot be rehearsed")) from None
        if key is not None:
            self.memory.learn(key, function, args, kwargs, made)
        return made

    def _known(self, function, args, kwargs):
        """A tensor of whole numbers or booleans on the CPU with its numbers; None for another, or for too many."""
        if (kwargs.get("device") or CPU).type != "cpu" or (kwargs.get("dtype") or torch.int).is_floating_point:
            return None
        with fake_tensor.no_dispatch():
            shape = function(*args, **{**kwargs, "device": "meta"})
            if shape.numel() > KNOWN or shape.is_floating_point() or shape.is_complex():
                return None
            made = function(*args, **kwargs)
        return self.fake_tensor_converter.from_real_tensor(self, made, make_constant=True)

    def _forget(self, args):
        for leaf in tree_leaves(args):
            if isinstance(leaf, FakeTensor) and leaf.constant is not None:
                self.fake_tensor_converter.invalidate_constant_aliases(leaf.constant)


def without_mode(tensor):
    """How a tensor of a rehearsal leaves it: with its numbers where they are known, else as shape and type, on torch's device "meta"."""
    if tensor.constant is not None:
        with fake_tensor.no_dispatch():
            return tensor.constant.clone()
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")
