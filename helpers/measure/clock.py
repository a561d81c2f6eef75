"""When this rank works and when its messages are under way, by the clock.

    with Clock() as clock:
        with clock.work("backward"):
            loss.backward()

For the CPU and gloo: a GPU only queues work and messages, and their times on the host say little.  Not to be used inside `Traffic`,
which makes every message wait for its end.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

PATIENCE = 5.0  # seconds for the last messages to end


class Clock:
    """Notes every all-reduce of `deepspeed.comm` between entering and leaving, and the work that is named.  To be entered once.

    Attributes:
        boxes: list of (kind, label, start, end): kind is "all-reduce", or what `work` was given; all-reduces are numbered from 1, and last
            from the call until the sum has arrived.  Seconds of the machine's monotonic clock, which its processes share.
    """

    def __init__(self):
        self.boxes, self._count, self._open, self._ended = [], 0, 0, threading.Condition()

    @contextmanager
    def work(self, kind, label=""):
        """Note the time of the block as work of a kind."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._note(kind, label, start)

    @property
    def seconds(self):
        """From the first beginning to the last end."""
        return max(end for *_, end in self.boxes) - min(start for *_, start, _ in self.boxes)

    def milliseconds(self):
        """The boxes with times in milliseconds since the first beginning, for `plots.timeline`."""
        begin = min(start for *_, start, _ in self.boxes)
        return [(kind, label, 1e3 * (start - begin), 1e3 * (end - begin)) for kind, label, start, end in self.boxes]

    def begun_during(self, kind):
        """How many all-reduces began while work of this kind was going on, and how many there were."""
        spans = [(start, end) for name, _, start, end in self.boxes if name == kind]
        begun = [start for name, _, start, _ in self.boxes if name == "all-reduce"]
        return sum(any(first <= start < last for first, last in spans) for start in begun), len(begun)

    def _note(self, kind, label, start):
        with self._ended:
            self.boxes.append((kind, label, start, time.perf_counter()))

    def _all_reduce(self, *arguments, **options):
        self._count += 1
        label, start = str(self._count), time.perf_counter()
        request = self._untimed(*arguments, **options)
        if request is None:  # it has waited
            self._note("all-reduce", label, start)
        else:
            with self._ended:
                self._open += 1
            request.get_future().add_done_callback(lambda done: self._done(label, start))
        return request

    def _done(self, label, start):
        """In a thread of the back end, perhaps a moment after the request was waited for."""
        self._note("all-reduce", label, start)
        with self._ended:
            self._open -= 1
            self._ended.notify()

    def __enter__(self):
        import deepspeed.comm as comm

        self._untimed = comm.all_reduce
        comm.all_reduce = self._all_reduce
        return self

    def __exit__(self, kind, *problem):
        import deepspeed.comm as comm

        comm.all_reduce = self._untimed
        with self._ended:
            finished = self._ended.wait_for(lambda: self._open == 0, timeout=PATIENCE)
        del self._ended, self._untimed  # what is left is plain data
        if not finished and kind is None:
            raise RuntimeError(f"{self._open} all-reduces have not ended: wait for every request inside the clock's block")
