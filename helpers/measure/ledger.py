"""The memory of one rank, counted to the byte: every tensor storage born and dead, by category, now, at the peak and over time.

A `Ledger` sees each tensor that torch's dispatcher returns, registers its storage once, and notes the storage's death through a
weak reference.  What a storage is *for* is found out later and then holds for its whole life: parameters, gradients and optimizer
states are looked up where torch and DeepSpeed keep them; what a forward pass creates and nobody claims is an activation.

    with Ledger() as ledger:
        engine, *_ = deepspeed.initialize(...)
        ledger.watch(engine)
        engine.backward(engine(ids, targets))
        ledger.snapshot("between micro-batches")
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field

import torch
from helpers.measure.internals import TorchDispatchMode, owned_tensors, storage_key, tensors_among, unseen

CATEGORIES = ("parameters", "gradients", "master weights", "optimizer states", "buffers", "activations", "inputs", "other")
MODEL_STATES = CATEGORIES[:5]
SETTLED, LIMIT = 0.05, 2.0  # seconds without a change after which a snapshot is taken; seconds after which it is taken anyway


@dataclass(frozen=True)
class Snapshot:
    """The bytes of one rank at one moment.

    Attributes:
        moment: the name it was given.
        categories: dict of category to bytes; they sum to `total`.
        peak: the largest total since the snapshot before, bytes.
        settled: False where storages were still dying when it was taken (after two seconds of waiting).
        device: "cpu" or "cuda".
    """

    moment: str
    categories: dict[str, int]
    peak: int
    settled: bool
    device: str

    @property
    def total(self):
        return sum(self.categories.values())

    @property
    def model_states(self):
        """Parameters, gradients, master weights, optimizer states and buffers, in bytes: what ZeRO shards and a little more."""
        return sum(self.categories[name] for name in MODEL_STATES)

    def __getitem__(self, category):
        return self.categories[category]


@dataclass
class Storage:
    """One storage's life: its bytes, the ledger's clock at birth and death, and its category once known."""

    bytes: int
    born: int
    died: int | None = None
    category: str | None = None
    in_forward: bool = False

    @property
    def final_category(self):
        return self.category or ("activations" if self.in_forward else "other")


@dataclass
class History:
    """Bytes over time as plain lists: `totals[category][i]` after the i-th birth or death; `marks` are (i, name)."""

    totals: dict[str, list[int]] = field(default_factory=dict)
    marks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def total(self):
        return [sum(values) for values in zip(*self.totals.values())]


def _storage_died(ledger, key, record):
    """Note it in a ledger that is still there: a strong reference would keep the ledger, and so what it watches, for as long as the storage."""
    if known := ledger():
        known._close(key, record)


class Ledger(TorchDispatchMode):
    """Counts the tensor storages of one device in this process while it is entered.

    Args:
        device: "cpu" or "cuda"; by default the one that DeepSpeed uses in this rank.
    """

    def __init__(self, device=None):
        super().__init__()
        self.device = device or _default_device()
        self.storages: list[Storage] = []
        self.snapshots: list[Snapshot] = []
        self.current = self.peak = self.clock = 0
        self._live: dict[int, Storage] = {}
        self._marks: list[tuple[int, str]] = []
        self._forward_depth = 0
        self._watched: list[tuple] = []
        self._hooks: list = []
        self._lock = threading.RLock()  # a communication thread may drop the last reference to a tensor

    # ------------------------------------------------------------------------------------------------- births and deaths

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tensors_among(result):
            self._register(tensor)
        return result

    def _register(self, tensor):
        """The storage's record; a new one if it was not known, or was resized in place."""
        if tensor.device.type != self.device:
            return None
        storage = tensor.untyped_storage()
        key, size = storage_key(storage), storage.nbytes()
        with self._lock:
            known = self._live.get(key)
            if known is not None and known.bytes == size:
                return known
            if known is not None:
                self._close(key)
            if size == 0:
                return None
            self.clock += 1
            record = Storage(size, self.clock, in_forward=self._forward_depth > 0)
            self.storages.append(record)
            self._live[key] = record
            self.current += size
            self.peak = max(self.peak, self.current)
        weakref.finalize(storage, _storage_died, weakref.ref(self), key, record).atexit = False
        return record

    def _close(self, key, record=None):
        with self._lock:
            if record is not None and self._live.get(key) is not record:
                return  # resized in place since
            record = self._live.pop(key)
            self.clock += 1
            record.died = self.clock
            self.current -= record.bytes

    # ---------------------------------------------------------------------------------------------------------- categories

    def watch(self, model, optimizer=None):
        """Learn what the tensors of an engine are for: a DeepSpeed engine, or a torch module and its optimizer."""
        self._watched.append((model, optimizer))
        module = getattr(model, "module", model)
        for part in module.modules():
            self._hooks.append(part.register_forward_pre_hook(self._enter_forward, with_kwargs=True))
            self._hooks.append(part.register_forward_hook(self._leave_forward, always_call=True))
        for parameter in module.parameters():
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(lambda gradient, parameter=parameter: self._label_gradient(parameter, gradient)))
        self._label_owned()
        return self

    def _enter_forward(self, module, args, kwargs):
        if self._forward_depth == 0:
            for tensor in tensors_among(args, kwargs):
                self.label("inputs", tensor, force=False)
        self._forward_depth += 1
        for parameter in module.parameters(recurse=False):  # ZeRO-3 has just gathered them
            self.label("parameters", parameter)

    def _leave_forward(self, module, args, output):
        self._forward_depth -= 1

    def _label_gradient(self, parameter, gradient):
        self.label("gradients", gradient, force=False)
        self.label("parameters", parameter)  # whole at this moment, also under ZeRO-3

    def label(self, category, tensor, force=True):
        """Say what a tensor's storage is for; `force` replaces what was said before."""
        if category not in CATEGORIES:
            raise ValueError(f"category must be one of {', '.join(CATEGORIES)}; not {category!r}")
        record = self._register(tensor)
        if record is not None and (force or record.category is None):
            record.category = category

    def _label_owned(self):
        for model, optimizer in self._watched:
            for category, tensor in owned_tensors(model, optimizer):
                self.label(category, tensor, force=category != "gradients")

    # ------------------------------------------------------------------------------------------------------------- readings

    def categories(self):
        """Bytes now, by category; they sum to `current`."""
        self._label_owned()
        totals = dict.fromkeys(CATEGORIES, 0)
        with self._lock:
            for record in self._live.values():
                totals[record.final_category] += record.bytes
        return totals

    def snapshot(self, moment):
        """The bytes of this moment, taken when every rank has come to it and nothing is dying any more.

        With several ranks this is a barrier: every rank must call it.
        """
        settled = self._settle()
        snapshot = Snapshot(moment, self.categories(), self.peak, settled, self.device)
        self.snapshots.append(snapshot)
        self.mark(moment)
        self.peak = self.current
        return snapshot

    def _settle(self):
        on_gpu = self.device == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
        if torch.distributed.is_initialized():
            with unseen():  # NCCL keeps a byte for its barrier, which is no part of the job
                torch.distributed.barrier(device_ids=[torch.cuda.current_device()] if on_gpu else None)
        gc.collect()
        started = changed = time.monotonic()
        before = self.clock
        while time.monotonic() - changed < SETTLED:
            if time.monotonic() - started > LIMIT:
                return False
            time.sleep(0.005)
            if self.clock != before:
                before, changed = self.clock, time.monotonic()
        return True

    def mark(self, name):
        """Note a moment for the timeline without waiting for anything."""
        self._marks.append((self.clock, name))

    def history(self, start=None, end=None):
        """Bytes after every birth and death, by category, as plain lists.

        Args:
            start, end: names of marks or snapshots between which to look; by default from the first event to the last.
        """
        self._label_owned()
        first, last = self._clock_of(start, 0), self._clock_of(end, self.clock)
        changes = {category: [0] * (last - first + 1) for category in CATEGORIES}
        with self._lock:
            for record in self.storages:
                if record.born <= last and (record.died is None or record.died > first):
                    line = changes[record.final_category]
                    line[max(record.born - first, 0)] += record.bytes
                    if record.died is not None and record.died <= last:
                        line[record.died - first] -= record.bytes
        totals = {}
        for category, line in changes.items():
            running, values = 0, []
            for change in line:
                running += change
                values.append(running)
            totals[category] = values
        return History(totals, [(at - first, name) for at, name in self._marks if first <= at <= last])

    def _clock_of(self, name, default):
        if name is None:
            return default
        found = [at for at, known in self._marks if known == name]
        if not found:
            raise ValueError(f"no mark or snapshot is called {name!r}; there are {', '.join(sorted({known for _, known in self._marks})) or 'none'}")
        return found[-1]

    def __exit__(self, *problem):
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        return super().__exit__(*problem)


def _default_device():
    accelerator = sys.modules.get("deepspeed.accelerator")
    name = accelerator.get_accelerator().device_name() if accelerator else None
    return name or ("cuda" if torch.cuda.is_initialized() else "cpu")
