"""Short ways where there are many ranks: a thousand have a thousand parts of every parameter, and DeepSpeed
looks at each whenever it gathers a parameter or scatters a gradient.  Without numbers in them they need not
be looked at; what is made of them has the same bytes, and lives as long."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor

from .working import size, work

if TYPE_CHECKING:
    from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle

# the function in DeepSpeed's `partition_parameters` that looks at every rank's part
GATHERING = "_all_gather_dtype"


@torch.no_grad()
def reduce_scatter_coalesced(tensors: list[torch.Tensor], group: object = None) -> list[torch.Tensor]:
    """The gradients' parts are put together, rank by rank and padded, and scattered in one message."""
    from deepspeed import comm
    from deepspeed.runtime.comm import coalesced_collectives

    def part(tensor, each, rank):
        return min(max(tensor.numel() - rank * each, 0), each)

    rank, ranks = comm.get_rank(group), comm.get_world_size(group)
    parts = [math.ceil(tensor.numel() / ranks) for tensor in tensors]
    if len(tensors) == 1 and tensors[0].numel() % ranks == 0:
        flat = tensors[0].view(-1)
    else:
        short = [
            (one, tensor, each)
            for tensor, each in zip(tensors, parts)
            for one in range(tensor.numel() // each if each else ranks, ranks)
        ]
        short.sort(key=lambda padded: padded[0])
        padding = [tensor.new_empty(each - part(tensor, each, one)) for one, tensor, each in short]  # noqa: F841
        flat = tensors[0].new_empty(ranks * sum(parts))
        work.kernel(2 * size(flat))
    flat.div_(ranks)
    mine = flat.narrow(0, rank * sum(parts), sum(parts))
    coalesced_collectives._torch_reduce_scatter_fn(flat, mine, group=group)
    starts = itertools.accumulate(parts, initial=0)
    return [
        mine.narrow(0, start, part(tensor, each, rank)) for start, tensor, each in zip(starts, tensors, parts)
    ]


def wait(plain: Callable, self: AllGatherCoalescedHandle, handle_dependency: bool = True) -> None:
    """`AllGatherCoalescedHandle.wait`: every parameter is put together from all ranks' parts."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

    if self.complete or self.quantization or self.use_secondary_tensor:
        return plain(self, handle_dependency)
    self.allgather_handle.wait()
    for parameter in self.params:
        whole = self.partitions[0].new_empty(parameter.ds_numel)
        work.kernel(2 * size(whole))
        parameter.data = whole.view(parameter.ds_shape).to(parameter.ds_tensor.dtype)
        parameter.ds_status = ZeroParamStatus.AVAILABLE
    self.complete = True
    if not get_accelerator().is_synchronized_device() and not handle_dependency:
        # a view of what was received, which keeps that alive
        self.data_buffer.append(self.partitions[:1])
    return None


def narrow(plain: Callable, self: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """`Tensor.narrow`, of a tensor without numbers and outside of what autograd follows: the view alone.  Of
    what ZeRO-3 gathers it makes one for each rank; there the first stands for all."""
    if type(self) is not FakeTensor or self.constant is not None or torch.is_grad_enabled():
        return plain(self, dim, start, length)
    is_gathered = sys._getframe(2).f_code.co_name == GATHERING
    if is_gathered and "part" in vars(self):
        return self.part
    with fake_tensor.in_kernel_invocation_manager(self.fake_mode):
        made = plain(self, dim, start, length)
    made = self.fake_mode.memory.wrap(made, self._fake_device)
    if is_gathered:
        self.part = made
    return made
