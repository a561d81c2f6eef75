"""When this rank works, when its messages are under way, and when it waits, by the clock.

    with Clock() as clock:
        clock.watch(engine)              # its forward and backward passes and steps, or
        with clock.work("backward"):     # whatever you name
            loss.backward()

On a CPU the times are those of the machine's monotonic clock, which its processes share, so that all ranks
have one axis (`rows`, `chrome_trace`).  On a GPU, where the host only queues work, they are those of CUDA
events in the stream that is current at each place.  A clock slows down what it measures a little, and says by
how much (`cost`); a `Ledger` or a `Traffic` would by far more, and is refused beside it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING

from helpers.tools.measure import together

if TYPE_CHECKING:
    import torch
    from helpers.tools.measure.messages import Call

Span = tuple[float, float]  # start, end
Box = tuple[str, str, float, float]  # kind, label, start, end
PATIENCE = 5.0  # seconds for the last messages to end
WORK = ("forward", "backward", "recompute", "optimizer")
MESSAGES = {  # DeepSpeed's name of an operation, and the kind of its box
    "all_reduce": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "all_gather_coalesced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "all_to_all": "all-to-all",
    "all_to_all_single": "all-to-all",
    "send": "send",
    "isend": "send",
    "recv": "receive",
    "irecv": "receive",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}
SENT = tuple(dict.fromkeys(kind for kind in MESSAGES.values() if kind != "barrier"))
WAITING = ("waiting", "barrier")
# Instructions of DeepSpeed's pipelines.
INSTRUCTIONS = {"ForwardPass": "forward", "BackwardPass": "backward", "OptimizerStep": "optimizer"}
SAMPLES = 200  # notes that the cost of one is measured with


class Clock:
    """Notes work, messages and waiting between entering and leaving.  To be entered once; what is left then
    is plain data.

    Args:
        device: "cpu" or "cuda"; by default the one that this rank's accelerator is.

    Attributes:
        boxes: list of (kind, label, start, end), seconds.  Kinds of messages are those in `SENT`; each kind
            is numbered from 1, and a message lasts from its call until it has arrived (on a GPU: until its
            result was waited for).  "waiting" is the time in which this rank does nothing but wait for a
            message that it began before; "barrier" that in which it waits for the other ranks.  Other kinds
            are what `work` was given, and "forward", "backward", "recompute" and "optimizer" from `watch`.
        sizes: {(kind, label): bytes of a message, as a `Traffic` logs them}.
        blocked: [(start, end)] in which the rank waited: for messages, or inside those that return only when
            they have arrived.
        rank: of this process.
        cost: seconds that noting took, all boxes together: a measured time per box, times their number.
    """

    def __init__(self, device: str | None = None) -> None:
        self.boxes, self.sizes, self.blocked = [], {}, []
        self.rank, self.cost = int(os.environ.get("RANK", "0")), 0.0
        self._device = device or ("cuda" if os.environ.get("DS_ACCELERATOR") == "cuda" else "cpu")
        self._counts, self._undo, self._ended = {}, [], threading.Condition()
        self._open, self._requests = {}, {}  # messages under way, {(kind, label): start}; {request: message}

    # --- work

    @contextmanager
    def work(self, kind: str, label: str = "") -> Iterator[None]:
        """Note the time of the block as work of a kind."""
        start = self._now()
        try:
            yield
        finally:
            self._note(kind, label, start)

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        layers: Mapping[str, torch.nn.Module] | None = None,
    ) -> Clock:
        """Note the passes of a DeepSpeed engine (a pipeline's too), or of a torch module; micro-batches are
        numbered from 1.

        Args:
            model: the engine, whose `forward`, `backward` and `step` are noted; or a module, whose forward
                pass is.
            optimizer: a torch optimizer whose steps are noted, beside a module.
            layers: {label: module}, each a part that takes one tensor and returns one: its forward pass, its
                backward pass (from the gradient of its result to that of its input) and what checkpointing
                computes again are noted too.

        Raises:
            RuntimeError: outside of the clock's block.
        """
        if not getattr(self, "_undo", None):
            text = "watch() belongs inside the clock's block: with Clock() as clock: clock.watch(engine)"
            raise RuntimeError(text)
        if hasattr(model, "train_batch") and hasattr(model, "grid"):
            from helpers.tools.measure.internals import wrap_instructions

            self._undo.append(wrap_instructions(model, self._timed_instruction))
        else:
            backward = [("backward", "backward"), ("step", "optimizer")] if hasattr(model, "backward") else []
            for name, kind in [("forward", "forward"), *backward]:
                self._replace(model, name, self._timed(kind, getattr(model, name)))
        if optimizer is not None:
            started = []

            def after(*step):
                self._note("optimizer", self._number("optimizer"), started.pop())

            before = optimizer.register_step_pre_hook(lambda *step: started.append(self._now()))
            self._undo += [before.remove, optimizer.register_step_post_hook(after).remove]
        for label, layer in (layers or {}).items():
            self._watch_layer(label, layer)
        return self

    def _watch_layer(self, label, layer):
        from helpers.tools.measure.internals import in_backward

        started = []

        def before(module, inputs):
            started.append((self._now(), in_backward()))

        def after(module, inputs, output):
            start, again = started.pop()
            self._note("recompute" if again else "forward", label, start)
            if again or not getattr(output, "requires_grad", False):
                return
            begun = []

            def after_backward(gradient):
                if begun:
                    self._note("backward", label, begun.pop())

            output.register_hook(lambda gradient: begun.append(self._now()))
            if inputs and getattr(inputs[0], "requires_grad", False):
                inputs[0].register_hook(after_backward)

        self._undo.append(layer.register_forward_pre_hook(before).remove)
        self._undo.append(layer.register_forward_hook(after, always_call=True).remove)

    def _timed(self, kind, function):
        @wraps(function)
        def timed(*arguments, **options):
            with self.work(kind, self._number(kind)):
                return function(*arguments, **options)

        return timed

    def _timed_instruction(self, name, instruction):
        return self._timed(INSTRUCTIONS[name], instruction) if name in INSTRUCTIONS else instruction

    # --- messages

    def _begin(self, call: Call) -> Callable:
        kind, start = MESSAGES[call.operation], self._now()
        label = self._number(kind)
        self.sizes[kind, label] = call.bytes

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
        if not hasattr(self, "_open"):  # the clock's block is over
            return
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
        self._counts[kind] = self._counts.get(kind, 0) + 1
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

    def _resolve(self):
        """Put seconds in the place of events."""
        if self._device == "cpu":
            return
        import torch

        torch.cuda.synchronize()
        begin, origin = self._origin

        def seconds(event):
            return begin + origin.elapsed_time(event) / 1e3

        self.boxes = [(kind, label, seconds(start), seconds(end)) for kind, label, start, end in self.boxes]
        self.blocked = [(seconds(start), seconds(end)) for start, end in self.blocked]

    def _cost_of_a_note(self):
        scratch, started = Clock(self._device), time.perf_counter()
        for _ in range(SAMPLES):
            with scratch.work("forward"):
                pass
        return (time.perf_counter() - started) / SAMPLES

    def _replace(self, owner, name, new):
        own = name in vars(owner)
        old = vars(owner).get(name)
        setattr(owner, name, new)
        self._undo.append(partial(setattr, owner, name, old) if own else partial(delattr, owner, name))

    def __enter__(self):
        from helpers.tools.measure.internals import open_modes
        from helpers.tools.measure.messages import listen, listen_to_requests

        if modes := [type(mode).__name__ for mode in open_modes()]:
            raise RuntimeError(
                f"a Clock cannot be opened inside a {' and '.join(modes)}, which sees every "
                "operator and slows it down: use two runs"
            )
        together.begin(self, of_time=True)
        self._undo.append(partial(together.end, self))
        self._undo += [listen(self._begin), listen_to_requests(self._wait)]
        if self._device == "cuda":
            import torch

            torch.cuda.synchronize()
            origin = self._now()
            torch.cuda.synchronize()
            self._origin = (time.perf_counter(), origin)
        return self

    def __exit__(self, kind, *problem):
        for undo in reversed(self._undo):
            undo()
        if self._device == "cuda":  # what nobody waited for by its request is waited for with everything else
            for message in list(self._open):
                self._finish(*message)
        with self._ended:
            finished = self._ended.wait_for(lambda: not self._open, timeout=PATIENCE)
            unfinished, self._open = len(self._open), {}
        if finished and kind is None:
            self.cost = self._cost_of_a_note() * len(self.boxes)
            self._resolve()
        for name in [name for name in vars(self) if name.startswith("_")]:  # what is left is plain data
            delattr(self, name)
        if not finished and kind is None:
            raise RuntimeError(
                f"{unfinished} messages have not ended: wait for every request inside the clock's block"
            )

    # --- readings

    @property
    def seconds(self) -> float:
        """From the first beginning to the last end."""
        return max(end for *_, end in self.boxes) - min(start for *_, start, _ in self.boxes)

    def milliseconds(self) -> list[Box]:
        """The boxes with times in milliseconds since the first beginning, for `plots.timeline`."""
        return _milliseconds(self.boxes, _beginning([self]))

    def _spans(self, kinds):
        return [(start, end) for kind, _, start, end in self.boxes if kind in kinds]

    def begun_during(self, kind: str, message: str = "all-reduce") -> tuple[int, int]:
        """How many all-reduces (or messages of another kind) began while work of this kind was going on, and
        how many there were."""
        spans, begun = self._spans([kind]), [start for start, _ in self._spans([message])]
        return sum(any(first <= start < last for first, last in spans) for start in begun), len(begun)

    def overlap(self, *kinds: str) -> float | None:
        """The part of the messages' time in which this rank computes, from 0 to 1: what of it is hidden.
        None without messages.

        Both are counted as times on the axis: of messages that are under way at the same time, a moment
        counts once; while the rank waits for a message, also in the middle of a backward pass, it does not
        compute.

        Args:
            kinds: of work that counts as computing; by default "forward", "backward", "recompute" and
                "optimizer".
        """
        under_way = union(self._spans(SENT))
        total = length(under_way)
        if not total:
            return None
        computing, waiting = union(self._spans(kinds or WORK)), union(self.blocked + self._spans(WAITING))
        return 1 - length(without(under_way, without(computing, waiting))) / total


# --- spans of time


def union(spans: Iterable[Span]) -> list[Span]:
    """The times that are in any of the spans, [(start, end), ...], as spans that do not touch, in order."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The times of some spans that are in none of the others; both as `union` gives them."""
    found = []
    for start, end in spans:
        for first, last in others:
            if first < end and last > start:
                if first > start:
                    found.append((start, first))
                start = max(start, last)
        if start < end:
            found.append((start, end))
    return found


def length(spans: Iterable[Span]) -> float:
    """Seconds of spans that do not overlap."""
    return sum(end - start for start, end in spans)


# --- all ranks


def clock_rows(clocks: Sequence[Clock]) -> dict[str, list[Box]]:
    """What all ranks do on one axis, for `plots.timeline`: {"rank 0: work": [(kind, label, start, end), ...],
    "rank 0: messages": ...}.

    Milliseconds since the first beginning on any rank; waiting is drawn in the row of messages.

    Args:
        clocks: of the ranks of one job on one machine, or of one process.
    """
    begin, found = _beginning(clocks), {}
    for clock in clocks:
        rows = {f"rank {clock.rank}: work": [], f"rank {clock.rank}: messages": []}
        work, messages = rows.values()
        for box in _milliseconds(sorted(clock.boxes, key=lambda box: box[2]), begin):
            (messages if box[0] in SENT + WAITING else work).append(box)
        found |= {name: row for name, row in rows.items() if row}
    return found


def _milliseconds(boxes, begin):
    return [(kind, label, 1e3 * (start - begin), 1e3 * (end - begin)) for kind, label, start, end in boxes]


def chrome_trace(path: str | os.PathLike, clocks: Sequence[Clock]) -> str | os.PathLike:
    """Write what all ranks do as a Chrome trace, a JSON file that ui.perfetto.dev and chrome://tracing open;
    returns the path.

    Each rank is a process; its work, its messages (in as many lanes as are under way at once) and its waiting
    are threads.  Times are microseconds since the first beginning on any rank, and messages have their bytes
    as an argument.

    Args:
        path: of the file.
        clocks: of the ranks of one job on one machine.
    """
    begin, events = _beginning(clocks), []
    for clock in clocks:
        threads, busy = {}, []
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
            events.append(event)
        named = {"ph": "M", "pid": clock.rank}
        events.append(named | {"name": "process_name", "args": {"name": f"rank {clock.rank}"}})
        for name, number in threads.items():
            events.append(named | {"name": "thread_name", "tid": number, "args": {"name": name}})
    with open(path, "w") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)
    return path


def _beginning(clocks):
    if not any(clock.boxes for clock in clocks):
        text = "these clocks noted nothing: name work inside their blocks, or let them watch an engine"
        raise ValueError(text)
    return min(start for clock in clocks for *_, start, _ in clock.boxes)
