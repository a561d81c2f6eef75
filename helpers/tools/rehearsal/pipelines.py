"""Pipelines: a stage is told by the stage before which shapes it will receive.  Files carry them from
rehearsal to rehearsal.  A `Clock` is of no use here; `theory.schedules.replay` says when stages work."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from deepspeed.runtime.pipe.engine import PipelineEngine

# of what a stage sends: whether that is a tuple, and of each tensor its shape and type
Shapes = tuple[bool, list[tuple[list[int], torch.dtype]]]


class NeedsRank(BaseException):
    """The rehearsed rank must be told something by another one, to be rehearsed before: its number is the
    argument.  Not an `Exception`, so that no program takes it for an error of its own."""


class Mail:
    """The shapes that ranks have sent one another, in a folder: a file for each from one rank to another."""

    def __init__(self, folder: str | Path) -> None:
        self.folder, self.counts = Path(folder), Counter()

    def _next(self, source, target):
        self.counts[source, target] += 1
        return self.folder / f"{source}-{target}-{self.counts[source, target]}"

    def post(self, source: int, target: int, value: Shapes) -> None:
        self._next(source, target).write_bytes(pickle.dumps(value))

    def take(self, source: int, target: int) -> Shapes:
        file = self._next(source, target)
        if not file.exists():
            raise NeedsRank(source)
        return pickle.loads(file.read_bytes())


def send(plain: Callable, mail: Mail, self: PipelineEngine, buffer: object, stage: int) -> None:
    """`PipelineEngine._send_tensor_meta`: the same messages, and a shape by mail for each."""
    tensors = [buffer] if isinstance(buffer, torch.Tensor) else buffer
    shapes = [(list(tensor.shape), tensor.dtype) for tensor in tensors]
    mail.post(self.global_rank, self.grid.stage_to_global(stage), (isinstance(buffer, tuple), shapes))
    plain(self, buffer, stage)


def receive(plain: Callable, mail: Mail, self: PipelineEngine, stage: int) -> object:
    """`PipelineEngine._recv_tensor_meta`, which `plain` would read from numbers."""
    from deepspeed.runtime.pipe import p2p
    from deepspeed.runtime.pipe.engine import TENSOR_META_SIZE

    p2p.recv(torch.empty(TENSOR_META_SIZE, dtype=torch.int32, device=self.device), stage)
    several, shapes = mail.take(self.grid.stage_to_global(stage), self.global_rank)
    buffers = tuple(self._allocate_or_extend_buffers(place, *shape) for place, shape in enumerate(shapes))
    return buffers if several else buffers[0]
