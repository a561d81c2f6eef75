"""What a `Clock` has noted on each rank: its readings, all ranks on one axis, and a Chrome trace."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .operations import OPERATIONS

Box = tuple[str, str, float, float]  # kind, label, start, end
WORK = ("forward", "backward", "optimizer")
# DeepSpeed's name of an operation, and the kind of its box: mostly the collective's name.
MESSAGES = {name: collective.replace("_", "-") for name, (collective, _) in OPERATIONS.items() if collective}
MESSAGES |= {"gather": "gather", "scatter": "scatter", "recv": "receive", "irecv": "receive"}
SENT = tuple(dict.fromkeys(MESSAGES.values()))
MESSAGES |= {"barrier": "barrier", "monitored_barrier": "barrier"}
WAITING = ("waiting", "barrier")


class Noted:
    """What one rank did and when, as plain data.

    Attributes:
        boxes: list of (kind, label, start, end), seconds.  Kinds of messages are those in `SENT`; each kind
            is numbered from 1, and a message lasts from its call until it has arrived (on a GPU: until its
            result was waited for).  "waiting" is the time in which this rank does nothing but wait for a
            message that it began before; "barrier" that in which it waits for the other ranks.  Other kinds
            are what `Clock.work` was given, and those in `WORK` from `Clock.watch`.
        sizes: {(kind, label): bytes of a message, as a `Traffic` logs them}.
        blocked: [(start, end)] in which the rank waited: for messages, or inside those that return only when
            they have arrived.
        rank: of this process.
        cost: seconds that noting took, all boxes together: a measured time per box, times their number.
    """

    def __init__(self) -> None:
        self.boxes, self.sizes, self.blocked = [], {}, []
        self.rank, self.cost = int(os.environ.get("RANK", "0")), 0.0

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return max(end for *_, end in self.boxes) - min(start for *_, start, _ in self.boxes)

    def _spans(self, kinds):
        return [(start, end) for kind, _, start, end in self.boxes if kind in kinds]

    def begun_during(self, kind: str) -> tuple[int, int]:
        """How many all-reduces began while work of this kind was going on, and how many there were."""
        spans, begun = self._spans([kind]), [start for start, _ in self._spans(["all-reduce"])]
        return sum(any(first <= start < last for first, last in spans) for start in begun), len(begun)

    def overlap(self, *kinds: str) -> float | None:
        """The part of the messages' time in which this rank computes, from 0 to 1: what of it is hidden.
        None without messages.

        A moment in which several messages are under way counts once.  While the rank waits for a message,
        also in the middle of a backward pass, it does not compute.

        Args:
            kinds: of work that counts as computing; by default those in `WORK`.
        """
        messages, work = self._spans(SENT), self._spans(kinds or WORK)
        waiting = [*self.blocked, *self._spans(WAITING)]
        cuts = np.unique([*messages, *work, *waiting])  # nothing begins or ends between two neighbours
        moments, seconds = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
        under_way = _within(messages, moments)
        hidden = under_way & _within(work, moments) & ~_within(waiting, moments)
        return float(seconds[hidden].sum() / seconds[under_way].sum()) if under_way.any() else None


def _within(spans, moments):
    """For each moment whether it lies in any of the spans."""
    starts, ends = np.sort(np.reshape(spans, (-1, 2)), axis=0).T
    return np.searchsorted(starts, moments, "right") > np.searchsorted(ends, moments, "right")


def clock_rows(clocks: Sequence[Noted]) -> dict[str, list[Box]]:
    """Put what the ranks of one job on one machine do on one axis, for `plots.timeline`.

    Returns {"rank 0: work": [(kind, label, start, end), ...], "rank 0: messages": ...}, in milliseconds since
    the first beginning on any rank; waiting is drawn in the row of messages.
    """
    begin, rows = _beginning(clocks), {}
    for clock in clocks:
        work, messages = [], []
        for kind, label, start, end in sorted(clock.boxes, key=lambda box: box[2]):
            row = messages if kind in SENT + WAITING else work
            row.append((kind, label, 1e3 * (start - begin), 1e3 * (end - begin)))
        both = {f"rank {clock.rank}: work": work, f"rank {clock.rank}: messages": messages}
        rows |= {name: row for name, row in both.items() if row}
    return rows


def chrome_trace(path: str | os.PathLike, clocks: Sequence[Noted]) -> str | os.PathLike:
    """Write what the ranks of one job on one machine do as a Chrome trace, a JSON file that ui.perfetto.dev
    and chrome://tracing open; returns the path.

    Each rank is a process; its work, its messages (in as many lanes as are under way at once) and its waiting
    are threads.  Times are microseconds since the first beginning on any rank, and messages have their bytes
    as an argument.
    """
    begin = _beginning(clocks)
    events = [event for clock in clocks for event in _events(clock, begin)]
    with open(path, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    return path


def _events(clock: Noted, begin: float) -> Iterator[dict]:
    threads, busy = {}, []  # {name: number}; when each lane of messages is free
    for kind, label, start, end in sorted(clock.boxes, key=lambda box: (box[2], -box[3])):
        if kind in SENT:
            lane = next((number for number, free in enumerate(busy) if free <= start), len(busy))
            busy[lane : lane + 1] = [end]
            thread = "messages" if not lane else f"messages, {lane + 1} at once"
        else:
            thread = "waiting" if kind in WAITING else "work"
        event = {"name": f"{kind} {label}".strip(), "cat": kind, "ph": "X", "pid": clock.rank}
        event |= {"tid": threads.setdefault(thread, len(threads))}
        event |= {"ts": 1e6 * (start - begin), "dur": 1e6 * (end - start)}
        if (kind, label) in clock.sizes:
            event["args"] = {"bytes": clock.sizes[kind, label]}
        yield event
    named = {"ph": "M", "pid": clock.rank}
    yield {"name": "process_name", **named, "args": {"name": f"rank {clock.rank}"}}
    for name, number in threads.items():
        yield {"name": "thread_name", **named, "tid": number, "args": {"name": name}}


def _beginning(clocks: Iterable[Noted]) -> float:
    if not any(clock.boxes for clock in clocks):
        text = "these clocks noted nothing: name work inside their blocks, or let them watch an engine"
        raise ValueError(text)
    return min(start for clock in clocks for *_, start, _ in clock.boxes)
