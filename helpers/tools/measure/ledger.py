"""The memory of one rank, counted to the byte: every tensor storage born and dead, by category, now, at the
peak and over time.

A `Ledger` sees each tensor that torch's dispatcher returns, registers its storage once (of a sparse tensor
those of its indices and values), and notes the storage's death through a weak reference.  What a storage is
*for* is found out later and then holds for its whole life: parameters, gradients and optimizer states are
looked up where torch and DeepSpeed keep them; what a forward pass creates and nobody claims is an activation.

    with Ledger() as ledger:
        engine, *_ = deepspeed.initialize(...)
        ledger.watch(engine)
        engine.backward(engine(ids, targets))
        ledger.snapshot("between micro-batches")

With a limit it also plays a GPU of that size: what would not fit raises `OutOfMemory`, which says what held
the memory.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from functools import partial
from itertools import accumulate

import torch
from helpers.tools.measure import together
from helpers.tools.measure.held import CATEGORIES, History, OutOfMemory, Snapshot, Storage
from helpers.tools.measure.internals import (
    TorchDispatchMode,
    dense_parts,
    storage_key,
    storage_of,
    tell_of_resizing,
    tensors_among,
    unseen,
)
from helpers.tools.measure.messages import unheard
from helpers.tools.measure.owners import owned_tensors

# A snapshot is taken after SETTLED seconds without a change, or after ASLEEP looks in a row, 3 ms apart, at
# which nothing has changed and no other thread computes; after LONGEST seconds it is taken anyway.
SETTLED, LONGEST, ASLEEP = 0.05, 2.0, 3


def _storage_died(ledger, key):
    """Note it in a ledger that is still there: a strong reference would keep the ledger, and so what it
    watches, for as long as the storage."""
    if known := ledger():
        known._forget(key)


class Ledger(TorchDispatchMode):
    """Counts the tensor storages of one device in this process while it is entered.

    Args:
        device: "cpu" or "cuda"; by default the one that DeepSpeed uses in this rank.
        limit: bytes that tensors may take together, as on a GPU with so much memory; by default as many as
            there are.  An operation whose result goes beyond raises `OutOfMemory`.  Subtract first what a
            real GPU holds besides tensors: its context, buffers of the network, the gaps between tensors.
    """

    def __init__(self, device: str | None = None, limit: float | None = None) -> None:
        super().__init__()
        if limit is not None and not limit > 0:
            raise ValueError(f"limit must be a positive number of bytes, not {limit!r}")
        self.device, self.limit = device or _default_device(), limit
        self.storages: list[Storage] = []
        self.snapshots: list[Snapshot] = []
        self.current = self.peak = self.clock = 0
        self._known: dict[int, Storage] = {}  # of storages that live, one resized to nothing among them
        self._marks: list[tuple[int, str]] = []
        self._forward_of: list[str] = []  # modules whose forward pass is running, the outermost first
        self._watched: list[tuple] = []
        self._undo = ExitStack()
        self._lock = threading.RLock()  # a communication thread may drop the last reference to a tensor

    # --- births and deaths

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        before, refused = self.current, None
        for tensor in tensors_among(result):
            records = self._register(tensor)
            if self.limit is not None and self.current > max(self.limit, before):
                refused = refused or self._refusal(records, function)
        if refused:
            del result, tensor, records  # which this frame, being part of the traceback, would keep alive
            raise refused
        return result

    def _refusal(self, records, function):
        """What a GPU would have raised before it made these storages."""
        held = self.categories()
        for record in records:
            held[record.final_category] -= record.bytes
        operation = str(getattr(function, "overloadpacket", function))
        inside = f" in {self._forward_of[-1] or 'the model'}" if self._forward_of else ""
        return OutOfMemory(sum(record.bytes for record in records), held, int(self.limit), operation + inside)

    def _register(self, tensor):
        """The records of a tensor's storages, of which a dense one has one; a new one for a storage that was
        not known, or was resized in place."""
        storages = [storage_of(part) for part in dense_parts(tensor) if part.device.type == self.device]
        records = [self._register_storage(storage) for storage in storages if storage is not None]
        return [record for record in records if record is not None]

    def _register_storage(self, storage):
        key, size = storage_key(storage), storage.nbytes()
        known = self._known.get(key)
        if known is not None and known.died is None and known.bytes == size:
            return known
        with self._lock:
            if known is not None:
                self._end(known)
            if size == 0:
                return None
            self.clock += 1
            record = self._known[key] = Storage(size, self.clock, in_forward=bool(self._forward_of))
            self.storages.append(record)
            self.current += size
            self.peak = max(self.peak, self.current)
        if known is None:
            weakref.finalize(storage, _storage_died, weakref.ref(self), key).atexit = False
        return record

    def _resized(self, storage):
        """A storage that was known has another size now, and is for the same as before."""
        known = self._known.get(storage_key(storage))
        if known is not None and (record := self._register_storage(storage)) is not None:
            record.category, record.in_forward = known.category, known.in_forward

    def _end(self, record):
        with self._lock:
            if record.died is None:
                self.clock += 1
                record.died = self.clock
                self.current -= record.bytes

    def _forget(self, key):
        with self._lock:
            self._end(self._known.pop(key))

    # --- categories

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Ledger:
        """Learn what the tensors of an engine are for: a DeepSpeed engine, or a torch module and its
        optimizer."""
        self._watched.append((model, optimizer))
        module = getattr(model, "module", model)
        hooks = []
        for name, part in module.named_modules():
            enter = partial(self._enter_forward, name)
            hooks.append(part.register_forward_pre_hook(enter, with_kwargs=True))
            hooks.append(part.register_forward_hook(self._leave_forward, always_call=True))
        for parameter in module.parameters():
            if parameter.requires_grad:
                hooks.append(parameter.register_hook(partial(self._label_gradient, parameter)))
        for hook in hooks:
            self._undo.callback(hook.remove)
        self._label_owned()
        return self

    def _enter_forward(self, name, module, args, kwargs):
        if not self._forward_of:
            for tensor in tensors_among(args, kwargs):
                self.label("inputs", tensor, force=False)
        self._forward_of.append(name)
        for parameter in module.parameters(recurse=False):  # ZeRO-3 has just gathered them
            self.label("parameters", parameter)

    def _leave_forward(self, module, args, output):
        self._forward_of.pop()

    def _label_gradient(self, parameter, gradient):
        self.label("gradients", gradient, force=False)
        self.label("parameters", parameter)  # whole at this moment, also under ZeRO-3

    def label(self, category: str, tensor: torch.Tensor, force: bool = True) -> None:
        """Say what a tensor's storage is for; `force` replaces what was said before."""
        if category not in CATEGORIES:
            raise ValueError(f"category must be one of {', '.join(CATEGORIES)}; not {category!r}")
        for record in self._register(tensor):
            if force or record.category is None:
                record.category = category

    def _label_owned(self):
        for model, optimizer in self._watched:
            for category, tensor in owned_tensors(model, optimizer):
                self.label(category, tensor, force=category != "gradients")

    # --- readings

    def categories(self) -> dict[str, int]:
        """Bytes now, by category; they sum to `current`."""
        self._label_owned()
        totals = dict.fromkeys(CATEGORIES, 0)
        with self._lock:
            for record in self._known.values():
                if record.died is None:
                    totals[record.final_category] += record.bytes
        return totals

    def snapshot(self, moment: str) -> Snapshot:
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
            with unseen(), unheard():  # NCCL keeps a byte for its barrier, which is no part of the job
                torch.distributed.barrier(device_ids=[torch.cuda.current_device()] if on_gpu else None)
        gc.collect()
        started = changed = time.monotonic()
        before, asleep = self.clock, 0
        while time.monotonic() - changed < SETTLED and asleep < ASLEEP:
            if time.monotonic() - started > LONGEST:
                return False
            time.sleep(0.003)
            asleep = asleep + 1 if not on_gpu and _other_threads_sleep() else 0
            if self.clock != before:
                before, changed, asleep = self.clock, time.monotonic(), 0
        return True

    def mark(self, name: str) -> None:
        """Note a moment for the timeline without waiting for anything."""
        self._marks.append((self.clock, name))

    def history(self, start: str | None = None, end: str | None = None) -> History:
        """Bytes after every birth and death, by category, as plain lists.

        Args:
            start, end: names of marks or snapshots between which to look; by default from the first event to
                the last.
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
        totals = {category: list(accumulate(line)) for category, line in changes.items()}
        return History(totals, [(at - first, name) for at, name in self._marks if first <= at <= last])

    def _clock_of(self, name, default):
        if name is None:
            return default
        moments = {known: at for at, known in self._marks}  # the last of several with one name
        if name not in moments:
            names = ", ".join(sorted(moments)) or "none"
            raise ValueError(f"no mark or snapshot is called {name!r}; there are {names}")
        return moments[name]

    def __enter__(self):
        together.begin("Ledger")
        self._undo.callback(together.end, "Ledger")
        self._undo.callback(tell_of_resizing(self._resized))
        return super().__enter__()

    def __exit__(self, *problem):
        self._undo.close()
        return super().__exit__(*problem)


def _default_device():
    accelerator = sys.modules.get("deepspeed.accelerator")
    name = accelerator.get_accelerator().device_name() if accelerator else None
    return name or ("cuda" if torch.cuda.is_initialized() else "cpu")


def _other_threads_sleep():
    """Whether all other threads of this process wait for something, as Linux says: one of gloo that has done
    its work may still hold tensors."""
    own, states = str(threading.get_native_id()), set()
    try:
        for number in os.listdir("/proc/self/task"):
            if number != own:
                with open(f"/proc/self/task/{number}/stat") as file:
                    states.add(file.read().rpartition(") ")[2][0])
    except OSError:  # another system, or a thread that has just ended
        return False
    return states <= {"S"}
