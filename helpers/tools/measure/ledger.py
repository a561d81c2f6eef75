"""The memory of one rank, counted to the byte: every tensor storage born and dead, by category, now, at the
peak and over time.

A `Ledger` sees each tensor that torch's dispatcher returns, registers its storage once (of a sparse tensor
those of its indices and values), and notes the storage's death through a weak reference.  What a storage is
*for* holds for its whole life: `owners` knows where torch and DeepSpeed keep parameters, gradients and
optimizer states; what a forward pass creates and nobody claims is an activation.

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
from contextlib import ExitStack
from functools import partial

import torch

from .held import CATEGORIES, History, OutOfMemory, Snapshot, Storage
from .internals import (
    TorchDispatchMode,
    storage_key,
    storages_among,
    tell_of_resizing,
    tensors_among,
    unseen,
)
from .messages import unheard
from .owners import owned_tensors
from .together import measuring

# Seconds without a change after which a snapshot is taken, and after which it is taken anyway.
SETTLED, LONGEST = 0.05, 2.0


def _storage_died(ledger, key):
    """For a ledger that is still there: a strong reference would keep alive what it watches."""
    if known := ledger():
        with known._lock:
            known._end(known._known.pop(key))


class Ledger(TorchDispatchMode):
    """Counts the tensor storages of one device in this process while it is entered.

    Args:
        device: "cpu" or "cuda"; by default the one that DeepSpeed uses in this rank.
        limit: bytes that tensors may take together; by default there is no limit.  An operation whose result
            goes beyond raises `OutOfMemory`.  Subtract first what a GPU holds besides tensors: its context,
            buffers of the network, gaps.
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
        place = str(getattr(function, "overloadpacket", function))
        if self._forward_of:
            place += f" in {self._forward_of[-1] or 'the model'}"
        return OutOfMemory(sum(record.bytes for record in records), held, int(self.limit), place)

    def _register(self, tensor):
        """The records of a tensor's storages; a new one where a storage is new, or was resized in place."""
        storages = storages_among(tensor, device=self.device)
        records = [self._register_storage(storage) for storage in storages]
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
        """Note that a storage died or was resized; with the lock."""
        if record.died is None:
            self.clock += 1
            record.died = self.clock
            self.current -= record.bytes

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Ledger:
        """Learn what the tensors of a DeepSpeed engine, or of a torch module and its optimizer, are for."""
        self._watched.append((model, optimizer))
        module = getattr(model, "module", model)
        for name, part in module.named_modules():
            enter = partial(self._enter_forward, name)
            self._undo.enter_context(part.register_forward_pre_hook(enter, with_kwargs=True))
            self._undo.enter_context(part.register_forward_hook(self._leave_forward, always_call=True))
        for parameter in module.parameters():
            if parameter.requires_grad:
                label = partial(self._label_gradient, parameter)
                self._undo.enter_context(parameter.register_hook(label))
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

    def categories(self) -> dict[str, int]:
        """Bytes now, by category; they sum to `current`."""
        self._label_owned()
        totals = dict.fromkeys(CATEGORIES, 0)
        with self._lock:
            for record in self._known.values():
                totals[record.final_category] += record.bytes if record.died is None else 0
        return totals

    def snapshot(self, moment: str) -> Snapshot:
        """The bytes of this moment, when every rank has come to it (all must call it) and nothing dies."""
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
        before = self.clock
        while time.monotonic() - changed < SETTLED:
            if time.monotonic() - started > LONGEST:
                return False
            time.sleep(0.003)
            if self.clock != before:
                before, changed = self.clock, time.monotonic()
        return True

    def record(self, storage: torch.UntypedStorage) -> Storage | None:
        """What is known of a storage."""
        return self._known.get(storage_key(storage))

    def mark(self, name: str) -> None:
        """Note a moment for the timeline without waiting for anything."""
        self._marks.append((self.clock, name))

    def history(self, start: str | None = None, end: str | None = None) -> History:
        """Bytes after every birth and death between two marks or snapshots, given by name; by default from
        the first event to the last."""
        self._label_owned()
        moments = {name: at for at, name in self._marks}  # the last of several with one name
        if unknown := {start, end} - {None, *moments}:
            said = f"is called {unknown.pop()!r}; there are {', '.join(sorted(moments)) or 'none'}"
            raise ValueError(f"no mark or snapshot {said}")
        with self._lock:
            first, last = moments.get(start, 0), moments.get(end, self.clock)
            return History.between(first, last, self.storages, self._marks)

    def __enter__(self):
        self._undo.enter_context(measuring("Ledger"))
        self._undo.callback(tell_of_resizing(self._resized))
        return super().__enter__()

    def __exit__(self, *problem):
        self._undo.close()
        return super().__exit__(*problem)


def _default_device():
    accelerator = sys.modules.get("deepspeed.accelerator")
    name = accelerator.get_accelerator().device_name() if accelerator else None
    return name or ("cuda" if torch.cuda.is_initialized() else "cpu")
