"""When this rank works, when its messages are under way, and when it waits, by the clock.

    with Clock() as clock:
        clock.watch(engine)              # its forward and backward passes and steps, or
        with clock.work("backward"):     # whatever you name
            loss.backward()

On a CPU the times are those of the machine's monotonic clock, which its processes share, so that all ranks
have one axis (`timelines`).  On a GPU, where the host only queues work, they are those of CUDA events in the
stream that is current at each place.  A clock slows down what it measures a little, and says by how much
(`cost`); a `Ledger` or a `Traffic` would by far more, and is refused beside it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING

from .timelines import MESSAGES, Noted
from .together import measuring

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from .operations import Message

PATIENCE = 5.0  # seconds for the last messages to end
# Instructions of DeepSpeed's pipelines, methods of its other engines, and the kind of their boxes.
INSTRUCTIONS = {"ForwardPass": "forward", "BackwardPass": "backward", "OptimizerStep": "optimizer"}
METHODS = {"forward": "forward", "backward": "backward", "step": "optimizer"}
SAMPLES = 200  # notes that the cost of one is measured with


class Clock(Noted):
    """Notes when a rank works, sends messages, and waits, between entering and leaving.

    Enter it once.  What `Noted` has can be read afterwards.

    Args:
        device: "cpu" or "cuda"; by default the one that this rank's accelerator is.
    """

    _undo: ExitStack | None = None  # inside the block

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self._device = device or ("cuda" if os.environ.get("DS_ACCELERATOR") == "cuda" else "cpu")
        self._counts, self._ended = Counter(), threading.Condition()
        self._open, self._requests = {}, {}  # messages under way, {(kind, label): start}; {request: message}

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    # --- work

    @contextmanager
    def work(self, kind: str, label: str = "") -> Iterator[None]:
        """Note the time of the block as work of a kind."""
        start = self._now()
        try:
            yield
        finally:
            self._note(kind, label, start)

    def watch(self, engine: DeepSpeedEngine) -> Clock:
        """Note the forward and backward passes and the steps of a DeepSpeed engine, a pipeline's too;
        micro-batches are numbered from 1.

        Raises:
            RuntimeError: outside of the clock's block.
        """
        from .internals import replaced, wrap_instructions

        if self._undo is None:
            text = "watch() belongs inside the clock's block: with Clock() as clock: clock.watch(engine)"
            raise RuntimeError(text)

        def timed(name, function):
            kind = (INSTRUCTIONS | METHODS).get(name)

            @wraps(function)
            def note(*arguments, **options):
                with self.work(kind, self._number(kind)):
                    return function(*arguments, **options)

            return note if kind else function

        if hasattr(engine, "train_batch") and hasattr(engine, "grid"):
            self._undo.callback(wrap_instructions(engine, timed))
        else:
            for name in METHODS:
                self._undo.callback(replaced(engine, name, timed(name, getattr(engine, name))))
        return self

    # --- messages

    def _begin(self, message: Message, operator: str, arguments: dict) -> Callable:
        kind, start = MESSAGES[message.operation], self._now()
        label = self._number(kind)
        self.sizes[kind, label] = message.bytes

        def under_way(request):
            if request is None:  # the back end has waited, or has put what follows in line behind the message
                self._note(kind, label, start, blocking=True)
                return
            self._requests[request] = kind, label, start
            with self._ended:
                self._open[kind, label] = start
            if self._device == "cpu":
                try:
                    request.get_future().add_done_callback(lambda future: self._finish(kind, label))
                except RuntimeError:  # sending and receiving have none, and end when they are waited for
                    pass

        return under_way

    def _finish(self, kind, label):
        """The first who knows that a message has arrived says so: the rank that waited, or a thread of the
        back end."""
        end = self._now()
        with self._ended:
            if (start := self._open.pop((kind, label), None)) is not None:
                self.boxes.append((kind, label, start, end))
                self._ended.notify()

    def _wait(self, request, wait, inside):
        start = self._now()
        result = wait()
        kind, label, begin = self._requests.pop(request, ("", "", start))
        if inside:  # a function of torch that returns when its message has arrived
            with self._ended:
                self.blocked.append((begin, self._now()))
        else:
            self._note("waiting", kind, start, blocking=True)
        self._finish(kind, label)
        return result

    def _number(self, kind):
        self._counts[kind] += 1
        return str(self._counts[kind])

    # --- time

    def _now(self):
        if self._device == "cpu":
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note(self, kind, label, start, blocking=False):
        end = self._now()
        with self._ended:
            self.boxes.append((kind, label, start, end))
            if blocking:
                self.blocked.append((start, end))

    def __enter__(self):
        from .internals import open_modes
        from .messages import listen, listen_to_requests

        modes, undo = [type(mode).__name__ for mode in open_modes()], ExitStack()
        undo.enter_context(measuring("Clock", of_time=True, modes=modes))
        self._undo = undo
        self._undo.callback(listen(self._begin))
        self._undo.callback(listen_to_requests(self._wait))
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
            self._origin = self._now()
            torch.cuda.synchronize()
            self._begun = time.perf_counter()
        return self

    def __exit__(self, kind, *problem):
        self._undo.close()
        self._undo = None
        if self._device == "cuda":  # what nobody waited for by its request is waited for with everything else
            for message in list(self._open):
                self._finish(*message)
        with self._ended:
            self._ended.wait_for(lambda: not self._open, timeout=PATIENCE)
            unfinished, self._open, self._requests = len(self._open), {}, {}
        if kind is not None:
            return
        if unfinished:
            raise RuntimeError(
                f"{unfinished} messages have not ended: wait for every request inside the clock's block"
            )
        scratch, started = Clock(self._device), time.perf_counter()
        for _ in range(SAMPLES):
            with scratch.work("forward"):
                pass
        self.cost = (time.perf_counter() - started) / SAMPLES * len(self.boxes)
        if self._device == "cuda":
            self._put_seconds_for_events()

    def _put_seconds_for_events(self):
        import torch

        torch.cuda.synchronize()

        def seconds(event):
            return self._begun + self._origin.elapsed_time(event) / 1e3

        self.boxes = [(kind, label, seconds(start), seconds(end)) for kind, label, start, end in self.boxes]
        self.blocked = [(seconds(start), seconds(end)) for start, end in self.blocked]
