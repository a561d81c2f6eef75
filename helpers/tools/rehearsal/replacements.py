"""What a rehearsal puts in the place of functions of torch, DeepSpeed and the ledger; see `patches`.

A replacement that needs what it replaces is given that first, as `plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import torch

from ..measure.internals import in_backward
from . import asked
from .fake import DEVICE, raised, without_mode

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor

    from ..measure.ledger import Ledger, OutOfMemory

# --- torch


def reduced(self: FakeTensor, protocol: int) -> tuple:
    return without_mode(self).__reduce_ex__(protocol)


def deep_copied(plain: Callable[..., FakeTensor], self: FakeTensor, memo: dict) -> FakeTensor:
    """`FakeTensor.__deepcopy__`: of a parameter its data alone, as `torch.nn.Parameter` has it."""
    if not isinstance(self, torch.nn.Parameter):
        return plain(self, memo)
    if id(self) not in memo:
        memo[id(self)] = torch.nn.Parameter(self.data.clone(), self.requires_grad)
    return memo[id(self)]


def formatted(self: FakeTensor, specification: str) -> str:
    return format(self.item() if specification and self.dim() == 0 else repr(self), specification)


def no_numbers(*arguments: object, **options: object) -> NoReturn:
    no = "a rehearsal has no numbers that could be saved"
    raise RuntimeError(f"{no}: leave saving out of the function that is rehearsed")


def apply_in_place(self: torch.nn.Module, function: Callable, recurse: bool = True) -> torch.nn.Module:
    """`torch.nn.Module._apply` that gives every parameter new data and keeps the parameter."""
    for child in self.children() if recurse else ():
        child._apply(function)
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                set_data(parameter, function(parameter.data))
                if parameter.grad is not None:
                    set_data(parameter.grad, function(parameter.grad.data))
    for name, buffer in self._buffers.items():
        self._buffers[name] = None if buffer is None else function(buffer)
    return self


plain_data = torch.Tensor.data


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """`tensor.data = value`, also across devices: torch does it from the CPU to a GPU, but not to a device
    that a program has added."""
    if tensor.device.type == value.device.type:
        plain_data.__set__(tensor, value)
    else:
        torch._C._swap_tensor_impl(tensor, value.detach().requires_grad_(tensor.requires_grad))
    if hasattr(tensor, "_fake_device"):
        tensor._fake_device = value.device


# --- the ledger


def dispatching(plain: Callable, on: str, tell: Callable[[object, tuple, dict, object], None]) -> Callable:
    """`Ledger.__torch_dispatch__` that answers the question for a device; the ledger of the posing device
    tells each operation, what it was given, and its results. No error shows frames so named."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is DEVICE:
            return args[0].device
        results = plain(self, function, types, args, kwargs)
        if self.device == on:
            tell(function, args, kwargs or {}, results)
        return results

    return __torch_dispatch__


def refusal(plain: Callable, self: Ledger, records: list, function: Callable) -> OutOfMemory | None:
    """`Ledger._refusal`, which gives None during a backward pass, where nothing may be raised."""
    error = plain(self, records, function)
    if not in_backward():
        return error
    if not raised:
        raised.append(error)
    return None


def run_backward(plain: Callable, *arguments: object, **options: object) -> object:
    """A backward pass, and after it what was refused meanwhile."""
    inner = in_backward()  # of a checkpoint that computes its block again by a backward pass of its own
    if not inner:
        raised.clear()
    found = plain(*arguments, **options)
    if raised and not inner:
        raise raised.pop()
    return found


def begin(plain: Callable, on: str, room: float | None, self: Ledger, *given: object, **more: object) -> None:
    """`Ledger.__init__`: one of the posing device that was given no limit takes the pose's."""
    plain(self, *given, **more)
    if self.limit is None and self.device == on:
        self.limit = room


# --- messages: torch's back end "fake" takes them and sends none


def reducing_in_a_copy(
    plain: Callable, output: torch.Tensor, input: torch.Tensor, *arguments: object, **options: object
) -> torch.distributed.Work | None:
    copy = input.clone()
    work = plain(output, input, *arguments, **options)
    del copy
    return work


def in_vain(plain: Callable, rank: int, ranks: int, /, *arguments: object, **options: object) -> None:
    """`init_process_group` with the back end that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    plain("fake", rank=rank, world_size=ranks, store=FakeStore())


def anywhere(plain: Callable, *arguments: object, **options: object) -> torch.distributed.ProcessGroup:
    """`new_group` with the same back end as all ranks have together; ranks and a timeout go before it."""
    return plain(*arguments[:2], **(options | {"backend": None}))


def left_as_they_are(*arguments: object, **options: object) -> None:
    """`broadcast_object_list`: this rank's own objects stand for those of the rank that would send."""


def everyone_says_the_same(object_list: list, obj: object, group: object = None) -> None:
    """`all_gather_object`: the names are torch's."""
    object_list[:] = [obj] * len(object_list)


# --- DeepSpeed


def nothing(*arguments: object) -> None:
    """An operator that changes numbers alone."""


def update_scale(plain: Callable, self: object, *arguments: object, **options: object) -> None:
    """Of an optimizer that finds its loss scale, and leaves out a step whose gradients overflow: none do."""
    if getattr(self, "loss_scale_config", self).dynamic_loss_scale:
        asked.scaled()
    plain(self, *arguments, **options)


def agreed(numbers: list[int]) -> None:
    """The messages of ZeRO-3's check, without its verdict."""
    from deepspeed.runtime.zero import utils

    with suppress(RuntimeError):
        utils.assert_lst_len_same_as_other_ranks(numbers)
    utils.get_lst_from_rank0(numbers)


def unchecked_bounds(plain: Callable, size: int, first: int, end: int, *group: object) -> int:
    """`_validate_vocab_shard_bounds`: its messages, without its verdict; it gives the size of the vocabulary,
    with which only numbers are compared."""
    with suppress(ValueError):
        plain(size, first, end, *group)
    return end
