"""What a rehearsal puts in the place of functions of torch, DeepSpeed and the ledger; see `patches`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import torch
from helpers.tools.measure.internals import in_backward
from helpers.tools.rehearsal.asked import questions
from helpers.tools.rehearsal.fake import DEVICE, raised, without_mode

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor
    from helpers.tools.measure.ledger import OutOfMemory

# --- torch


def reduced(self: FakeTensor, protocol: int) -> tuple:
    return without_mode(self).__reduce_ex__(protocol)


def formatted(self: FakeTensor, specification: str) -> str:
    return format(self.item() if specification and self.dim() == 0 else repr(self), specification)


def no_numbers(*arguments: object, **options: object) -> NoReturn:
    raise RuntimeError(
        "a rehearsal has no numbers that could be saved: leave saving out of the function that is rehearsed"
    )


def apply_in_place(
    self: torch.nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """`torch.nn.Module._apply` that gives every parameter new data and keeps the parameter."""
    if recurse:
        for child in self.children():
            child._apply(function)
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                set_data(parameter, function(parameter.data))
                if parameter.grad is not None:
                    set_data(parameter.grad, function(parameter.grad.data))
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = function(buffer)
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


def passing(plain: Callable, tell: Callable[[str, object], None]) -> Callable:
    """`Ledger.__torch_dispatch__` that answers the question for a device, tells the name and the results of
    each operation, and has not around it what torch puts there for its compiler."""
    plain = inspect.unwrap(plain)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is DEVICE:
            return args[0].device
        results = plain(self, function, types, args, kwargs)
        tell(function.__name__, results)
        return results

    return __torch_dispatch__


def said_later(plain: Callable[..., OutOfMemory]) -> Callable[..., OutOfMemory | None]:
    """`Ledger._refusal`, which gives None during a backward pass, where nothing may be raised."""

    def refusal(self, record, function):
        error = plain(self, record, function)
        if not in_backward():
            return error
        if not raised:
            raised.append(error)
        return None

    return refusal


def saying(plain: Callable) -> Callable:
    """A backward pass, and after it what was refused meanwhile."""

    def run_backward(*arguments, **options):
        inner = in_backward()  # of a checkpoint that computes its block again by a backward pass of its own
        if not inner:
            raised.clear()
        found = plain(*arguments, **options)
        if raised and not inner:
            raise raised.pop()
        return found

    return run_backward


def with_limit(plain: Callable[..., None], posing: str, memory: float) -> Callable[..., None]:
    """A ledger of the posing device that was given no limit takes the pose's."""

    def __init__(self, device=None, limit=None):
        plain(self, device, limit)
        if limit is None and self.device == posing:
            self.limit = memory

    return __init__


# --- messages: torch's back end "fake" takes them and sends none


Collective = Callable[..., torch.distributed.Work | None]
Group = torch.distributed.ProcessGroup


def reducing_in_a_copy(plain: Collective) -> Collective:
    def reduce_scatter(output, input, *arguments, **options):
        copy = input.clone()
        work = plain(output, input, *arguments, **options)
        del copy
        return work

    return reduce_scatter


def in_vain(rank: int, ranks: int) -> Callable[..., None]:
    """`init_process_group` with the back end that sends nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    plain = torch.distributed.init_process_group

    def init_process_group(*arguments, **options):
        plain("fake", rank=rank, world_size=ranks, store=FakeStore())

    return init_process_group


def anywhere(plain: Callable[..., Group]) -> Callable[..., Group]:
    """`new_group` with the same back end as all ranks have together."""

    def new_group(ranks=None, timeout=None, backend=None, *arguments, **options):
        return plain(ranks, timeout, None, *arguments, **options)

    return new_group


def left_as_they_are(*arguments: object, **options: object) -> None:
    """`broadcast_object_list`: this rank's own objects stand for those of the rank that would send."""


def everyone_says_the_same(object_list: list, obj: object, group: Group | None = None) -> None:
    """`all_gather_object`: the names are torch's."""
    object_list[:] = [obj] * len(object_list)


# --- DeepSpeed


def scaling(plain: Callable[..., None]) -> Callable[..., None]:
    """An optimizer that finds its loss scale: where gradients overflow a step is left out, and none does
    here."""

    def update_scale(self, *arguments, **options):
        if getattr(self, "loss_scale_config", self).dynamic_loss_scale:
            questions.scaled()
        return plain(self, *arguments, **options)

    return update_scale


def agreed(numbers: list[int]) -> None:
    """The messages of ZeRO-3's check, without its verdict."""
    from deepspeed.runtime.zero import utils

    with suppress(RuntimeError):
        utils.assert_lst_len_same_as_other_ranks(numbers)
    utils.get_lst_from_rank0(numbers)
