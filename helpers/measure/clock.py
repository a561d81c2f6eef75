"""When this rank works and when its messages are under way, by the clock.

    with Clock() as clock:
        with clock.work("backward"):
            loss.backward()

Times are seconds of the machine's monotonic clock, which its processes share.  For the CPU and gloo: on a GPU both work and messages are
queued, and their host times say little.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager


class Clock:
    """Notes every all-reduce of `deepspeed.comm` between entering and leaving, and the work that is named.

    Attributes:
        boxes: list of (kind, label, start, end): kind is "all-reduce", or what `work` was given; all-reduces are numbered from 1.
    """

    def __init__(self):
        self.boxes, self._open, self._ended = [], 0, threading.Condition()

    @contextmanager
    def work(self, kind, label=""):
        start = time.perf_counter()
        yield
        self._note(kind, label, start)

    def begun_during(self, kind):
        """How many all-reduces began while work of this kind was going on, and how many there were."""
        spans = [(start, end) for name, _, start, end in self.boxes if name == kind]
        begun = [start for name, _, start, _ in self.boxes if name == "all-reduce"]
        return sum(any(first <= start < last for first, last in spans) for start in begun), len(begun)

    def _note(self, kind, label, start):
        with self._ended:
            self.boxes.append((kind, label, start, time.perf_counter()))

    def _all_reduce(self, tensor, *arguments, async_op=False, **options):
        self._count += 1
        label, start = str(self._count), time.perf_counter()
        request = self._untimed(tensor, *arguments, async_op=async_op, **options)
        if request is None or not async_op:
            self._note("all-reduce", label, start)
            return request
        with self._ended:
            self._open += 1
        request.get_future().add_done_callback(lambda done: self._done(label, start))
        return request

    def _done(self, label, start):
        self._note("all-reduce", label, start)
        with self._ended:
            self._open -= 1
            self._ended.notify()

    def __enter__(self):
        import deepspeed.comm as comm

        self._count, self._untimed = 0, comm.all_reduce
        comm.all_reduce = self._all_reduce
        return self

    def __exit__(self, *problem):
        import deepspeed.comm as comm

        comm.all_reduce = self._untimed
        with self._ended:  # a request's end is told by another thread, perhaps a moment after it was waited for
            self._ended.wait_for(lambda: self._open == 0, timeout=5)
        del self._ended, self._untimed  # what is left is plain data
