"""What operations return, remembered by the shapes of what they are given: a model does the same operations
in every layer and every step.  torch's own mode remembers too, and takes some ten times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .fake import Weightless

UNSEEN = object()  # instead of what an operation returns, where it has not been seen yet
ALIKE = {torch.ops.aten.cat.default, torch.ops.aten._unsafe_view.default}  # beside all views
COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unknown(Exception):
    """An argument by which nothing can be remembered."""


class Memory:
    """Operations by what they were given; the mode is the rehearsal's, to which tensors belong."""

    def __init__(self, mode: Weightless) -> None:
        self.mode, self.made, self.never, self.views, self.like = mode, {}, set(), {}, None

    def looks(self, function: OpOverload) -> bool:
        """Whether an operation is done by `view`: its kernel for the device "meta" is all that there is to
        it, and is quick."""
        if function not in self.views:
            made_of_others = function.has_kernel_for_dispatch_key(COMPOSED)
            self.views[function] = function in ALIKE or (function.is_view and not made_of_others)
        return self.views[function]

    def recall(self, function: OpOverload, args: tuple, kwargs: dict) -> tuple[tuple | None, object]:
        """(key, result) of an operation: a key of None where nothing can be remembered, a result of `UNSEEN`
        where it is to be found out."""
        if function in self.never:
            return None, UNSEEN
        tensors = []
        try:
            key = key_of(function, args, kwargs, tensors)
        except Unknown:
            return None, UNSEEN
        plan = self.made.get(key)
        return key, UNSEEN if plan is None else self.follow(plan, tensors)

    def learn(self, key: tuple, function: OpOverload, args: tuple, kwargs: dict, result: object) -> None:
        """Remember what an operation has returned; or never to ask again, for one whose result is a part of
        what it was given."""
        tensors = []
        try:
            if key_of(function, args, kwargs, tensors) != key:
                raise Unknown  # the operation has changed the shape of something
            self.made[key] = plan_of(result, tensors, {tensor.untyped_storage()._cdata for tensor in tensors})
        except Unknown:
            self.never.add(function)

    def follow(self, plan: tuple, tensors: list[FakeTensor]) -> object:
        """A result from its plan."""
        kind, what = plan
        if kind == "new":
            return self.new(*what)
        if kind == "given":
            return tensors[what]
        return kind(self.follow(part, tensors) for part in what) if what is not None else None

    def new(
        self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            return self.wrap(torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)

    def wrap(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        """A tensor of the mode around one on the device "meta"; as `FakeTensor` makes it, with the attributes
        of one that it made before."""
        if self.like is None:
            self.like = dict(vars(FakeTensor(self.mode, meta, device)))
        options = {"dispatch_device": True, "device_for_backend_keys": device}
        made = torch.Tensor._make_subclass(FakeTensor, meta, False, **options)
        vars(made).update(self.like, _fake_device=device)
        return made

    def view(self, function: OpOverload, args: tuple, kwargs: dict) -> object:
        """What an operation returns that looks at its first argument's storage in another way, or puts
        tensors together."""
        first = args[0][0] if type(args[0]) in (list, tuple) else args[0]
        if not isinstance(first, FakeTensor) or first.constant is not None:
            return UNSEEN
        with fake_tensor.in_kernel_invocation_manager(self.mode):
            made = function(*args, **kwargs)
        if isinstance(made, torch.Tensor):
            return self.wrap(made, first._fake_device)
        return type(made)(self.wrap(part, first._fake_device) for part in made)


def key_of(function: OpOverload, args: tuple, kwargs: dict, tensors: list[FakeTensor]) -> tuple:
    """By what an operation is remembered; its tensors are gathered in `tensors`."""
    given = described(args, tensors), described(tuple(kwargs.items()), tensors)
    return function, *given, torch.get_default_dtype()


def described(value: object, tensors: list[FakeTensor]) -> tuple:
    """A value as something by which to remember: shapes for tensors, which are gathered in `tensors`."""
    if isinstance(value, FakeTensor):
        if value.constant is not None or value.layout is not torch.strided:
            raise Unknown
        tensors.append(value)
        return value.shape, value.stride(), value.dtype, value._fake_device, value.storage_offset()
    if type(value) in (tuple, list, torch.Size):
        return tuple([described(part, tensors) for part in value])
    if isinstance(value, PLAIN):
        return type(value), value
    raise Unknown


def plan_of(result: object, tensors: list[FakeTensor], storages: set[int]) -> tuple:
    """How to make a result again."""
    if isinstance(result, FakeTensor):
        given = next((place for place, tensor in enumerate(tensors) if tensor is result), None)
        if given is not None:
            return "given", given
        own = result.untyped_storage()
        whole = result.storage_offset() == 0 and own.nbytes() == result.itemsize * extent(result)
        is_plain = result.constant is None and result.layout is torch.strided
        if own._cdata in storages or not (whole and is_plain):
            raise Unknown
        return "new", (result.shape, result.stride(), result.dtype, result._fake_device)
    if isinstance(result, (tuple, list)):  # also with names
        return list if type(result) is list else tuple, [plan_of(part, tensors, storages) for part in result]
    if result is None:
        return None, None
    raise Unknown


def extent(tensor: torch.Tensor) -> int:
    """Elements of the storage that a tensor spans."""
    steps = ((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return 1 + sum(steps) if tensor.numel() else 0
