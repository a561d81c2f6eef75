"""Tensors with a shape, a type and a device, and no numbers: torch's `FakeTensorMode`, which also answers
where a program asks for a number.

What a tensor holds is known where a program plainly said it: whole numbers and booleans that it made on the
CPU (ranks of a group, shapes, offsets) keep their values up to `KNOWN` of them.  Of all others a program may
ask (`.item()`, `bool()`), and is answered 1.0, or 0 where the type is of whole numbers; of what `all()`
returned, yes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

from . import asked
from .remembered import UNSEEN, Memory

if TYPE_CHECKING:
    from torch._ops import OpOverload

aten = torch.ops.aten
CPU = torch.device("cpu")
KNOWN = 2**16  # elements
DEVICE = torch.ops.prim.device.default
DRAWN = {  # at random, as what a batch is put together from
    *(getattr(aten.randint, name) for name in ("default", "low", "generator", "low_generator")),
    *(aten.randperm.default, aten.randperm.generator),
}
FILLED = {aten.zeros.default, aten.ones.default, aten.full.default}
COUNTED = {aten.arange.default, aten.arange.start, aten.arange.start_step}
MAKERS = {aten.empty.memory_format, *FILLED, *COUNTED, *DRAWN}  # of new tensors
# "Is it so everywhere?" is answered with yes: no padding, no number that is not finite.
ALL = {aten.all.default, aten.all.dim}
SAME = {aten.equal.default, aten.allclose.default}  # and so is "are they alike?"
NONE_HERE = "depends on the numbers in a tensor, and a rehearsal has none"
WITHOUT_NUMBERS = {  # what torch raises: what it means
    DataDependentOutputException: f"what {{}} returns {NONE_HERE}",
    DynamicOutputShapeException: f"the shape of what {{}} returns {NONE_HERE}",
    UnsupportedOperatorException: "torch does not know which shape {} returns: it cannot be rehearsed",
}


class NoNumbers(RuntimeError):
    """A program did what depends on the numbers in a tensor, or what a rehearsal cannot do; says what."""


# The last error of an operation: torch loses what is raised in a backward pass on an added device.
raised = []


class Weightless(FakeTensorMode):
    """The mode of a rehearsal: every tensor that is made under it has no numbers."""

    avoid_device_init = True  # torch.tensor(..., device=a GPU): made on the CPU, then moved
    # torch would wrap the method below, which takes longer than the method
    _should_skip_dynamo = classmethod(lambda cls: False)

    def __init__(self):
        super().__init__(allow_non_fake_inputs=True)
        self.memory = Memory(self)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is DEVICE:  # asked several times by every operation
            return args[0].device
        if self.memory.looks(function) and (made := self.memory.view(function, args, kwargs)) is not UNSEEN:
            return made
        if function.namespace == "c10d":  # a message: nobody knows the numbers any more
            for leaf in tree_leaves(args):
                if isinstance(leaf, FakeTensor) and leaf.constant is not None:
                    self.fake_tensor_converter.invalidate_constant_aliases(leaf.constant)
        if function in MAKERS:
            return self._make(function, args, kwargs)
        if function in ALL:
            made = super().__torch_dispatch__(function, types, args, kwargs)
            made.answer = True
            return made
        key, made = self.memory.recall(function, args, kwargs)
        if made is not UNSEEN:
            return made
        try:
            made = super().__torch_dispatch__(function, types, args, kwargs)
        except tuple(WITHOUT_NUMBERS) as error:
            if function is aten._local_scalar_dense.default:  # .item(), bool(), float(), int()
                return asked.answered(answer(args[0]))
            if function in SAME:
                return asked.answered(True)
            raised[:] = [NoNumbers(WITHOUT_NUMBERS[type(error)].format(function))]
            raise raised[0] from None
        if key is not None:
            self.memory.learn(key, function, args, kwargs, made)
        return made

    def _make(self, function, args, kwargs):
        """A new tensor; one of whole numbers or booleans on the CPU has its numbers, unless they are too
        many."""
        device = torch.device(kwargs.get("device") or CPU)
        with fake_tensor.no_dispatch():
            shape = shaped(function, args, {**kwargs, "device": "meta", "pin_memory": False})
            is_whole = not (shape.is_floating_point() or shape.is_complex())
            is_known = device.type == "cpu" and shape.numel() <= KNOWN and is_whole
            made = function(*args, **kwargs) if is_known else None
        if is_known:
            return self.fake_tensor_converter.from_real_tensor(self, made, make_constant=True)
        return self.memory.wrap(shape, FakeTensor._normalize_fake_device(device))


def answer(tensor: FakeTensor) -> bool | float:
    """What a program is told that asks for the number in a tensor."""
    if tensor.dtype is torch.bool:
        return vars(tensor).get("answer", False)
    return 1.0 if tensor.is_floating_point() else 0


def shaped(function: OpOverload, args: tuple, kwargs: dict) -> torch.Tensor:
    """A new tensor on the device "meta": some by `aten.empty`, for which torch would call `torch.full` or
    `torch.empty`, and these `zero.Init` replaces."""
    if function is aten.full.default and kwargs.get("dtype") is None:
        kwargs["dtype"] = {bool: torch.bool, int: torch.int64}.get(type(args[1]))
    if function in DRAWN:
        kwargs["generator"] = None  # one of the CPU does not draw for "meta"
        function = function.overloadpacket
    return aten.empty.memory_format(args[0], **kwargs) if function in FILLED else function(*args, **kwargs)


def without_mode(tensor: FakeTensor) -> torch.Tensor:
    """How a tensor of a rehearsal leaves it: with its numbers where they are known, else as shape and type,
    on torch's device "meta"."""
    if tensor.constant is not None:
        with fake_tensor.no_dispatch():
            return tensor.constant.clone()
    return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")
