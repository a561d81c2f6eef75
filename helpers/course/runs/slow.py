"""Ranks that are joined by a slow link, and layers that sleep instead of computing.

On a laptop ranks share a few cores, and a message takes them from the work, so seconds say little about a
cluster.  Here a message *sleeps* as long as a link of some speed would need, and a layer sleeps as long as a
GPU would compute.  Neither uses a core, as a network card and a GPU use none of their host's.  Everything
else is real: ranks, messages, values, and the order in which things happen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import distributed as dist
from torch import nn
from helpers.tools.measure.messages import listen, listen_to_requests
from helpers.tools.measure.operations import OPERATIONS, SENDS_NOTHING, Message

Span = tuple[str, float, float]  # what it was, begin and end in seconds by the machine's clock


class SlowLink:
    """Messages of which each sleeps so many seconds and its bytes / bandwidth: a link that is slow whatever
    else the processor does.

    Attributes:
        spans: of the collectives that went over it.
    """

    def __init__(self, latency: float, bandwidth: float) -> None:
        self.latency, self.bandwidth = latency, bandwidth
        self.spans: list[Span] = []
        self._free, self._due = 0.0, {}

    # --- between two ranks: both ends sleep

    def _passes(self, tensor: torch.Tensor) -> None:
        time.sleep(self.latency + tensor.nbytes / self.bandwidth)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        dist.send(tensor, to)
        self._passes(tensor)

    def recv(self, tensor: torch.Tensor, source: int) -> None:
        dist.recv(tensor, source)
        self._passes(tensor)

    def slowed(self, exchange: Callable) -> Callable:
        """An exchange in which a message leaves while another arrives."""

        def slow(outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
            exchange(outgoing, incoming)
            self._passes(outgoing)

        return slow

    # --- collectives: the link carries one after another, and whoever waits for one sleeps until it is there

    @contextmanager
    def joins(self) -> Iterator[None]:
        """Inside, this rank's collectives take as long as over the link, by what a rank must send at least.
        Those that begin go on while the rank works; those of torch's C++ reducer, for which no Python waits,
        are not slowed."""
        self.spans, self._free = [], 0.0
        with ExitStack() as stack:
            stack.callback(listen(self._begins))
            stack.callback(listen_to_requests(self._waits))
            yield

    def _begins(self, message: Message, operator: str, arguments: dict) -> Callable | None:
        if OPERATIONS.get(message.operation, SENDS_NOTHING) == SENDS_NOTHING:
            return None
        begin = max(time.perf_counter(), self._free)
        self._free = end = begin + self.latency + message.ideal / self.bandwidth
        self.spans.append((message.operation.replace("_", "-"), begin, end))

        def under_way(request: dist.Work | None) -> None:
            if request is None:  # torch has waited already
                sleep_until(end)
            else:
                self._due[request] = end

        return under_way

    def _waits(self, request: dist.Work | None, wait: Callable[[], object], inside: bool) -> object:
        result = wait()
        sleep_until(self._due.pop(request, 0.0))
        return result


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))


class _Sleeps(torch.autograd.Function):
    @staticmethod
    def forward(context, x, layer):  # noqa: ANN001, ANN205  torch's own form
        context.layer = layer
        layer.sleep("forward")
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):  # noqa: ANN001, ANN205
        context.layer.sleep("backward")
        return gradient, None


class SleepingLayer(nn.Module):
    """A small linear layer whose passes take so many seconds each, in which the processor is free.

    Attributes:
        spans: of its passes, in order.
    """

    def __init__(self, width: int, forward: float = 0.0, backward: float = 0.0) -> None:
        super().__init__()
        self.inside = nn.Linear(width, width, bias=False)
        self.seconds = {"forward": forward, "backward": backward}
        self.spans: list[Span] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Sleeps.apply(self.inside(x), self)

    def sleep(self, which: str) -> None:
        if self.seconds[which]:
            begin = time.perf_counter()
            time.sleep(self.seconds[which])
            self.spans.append((which, begin, time.perf_counter()))


def sleeping_layers(count: int, width: int, forward: float = 0.0, backward: float = 0.0) -> nn.Sequential:
    """A model of such layers."""
    return nn.Sequential(*(SleepingLayer(width, forward, backward) for _ in range(count)))
