"""What this rank's messages carry: gradients, parameters, optimizer states, or something else.

A message carries what it fills, where the ledger knows what that is for, as an all-gather into the
parameters; else what its tensor holds.  What a tensor holds is followed from operator to operator: a copy, a
cast, a sum or a join of gradients holds gradients; a number made of many, such as a norm, does not.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from .held import MODEL_STATES
from .internals import MESSAGES, TorchDispatchMode, bytes_of, storages_among, tensors_among
from .ledger import Ledger
from .messages import listen
from .operations import Message
from .together import measuring

STATES = {*MODEL_STATES, "activations", "inputs"} - {"buffers"}  # in a buffer is what was copied there
PAIRED = ("_foreach_copy_",)  # writes the second of its lists into the first, and returns nothing


class Carried(TorchDispatchMode):
    """Counts between entering and leaving, inside an open `Ledger` that watches the model and its optimizer:
    `with Carried(ledger) as carried: engine.step()`.

    Attributes:
        elements: {category: elements that this rank sends with bandwidth-optimal algorithms}, those that
            carry nothing known as "other".
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger, self._open = ledger, ExitStack()
        self.elements: Counter[str] = Counter()

    def __enter__(self):
        self._open.enter_context(measuring("Carried"))
        self._open.callback(listen(self._count))
        return super().__enter__()

    def __exit__(self, *problem):
        self._open.close()
        return super().__exit__(*problem)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.__name__.partition(".")[0] in PAIRED:
            for written, source in zip(*args[:2]):
                self._follow(written, [source])
            return result
        sources = [tensor for tensor in tensors_among(args, kwargs) if tensor.numel() > 1]
        for tensor in tensors_among(result):
            self._follow(tensor, sources)
        return result

    def _follow(self, written, sources):
        """Note what a tensor holds that was written from others; a view or a change in place leaves it."""
        record = self._record(written)
        others = [source for source in sources if self._record(source) is not record]
        if record is not None and others:
            kinds = {self._held(source) for source in others}
            joined = all(source.numel() <= written.numel() for source in others)
            record.contents = kinds.pop() if joined and len(kinds) == 1 else None

    def _record(self, tensor):
        storages = storages_among(tensor)
        return self._ledger.record(storages[0]) if storages else None

    def _held(self, tensor):
        record = self._record(tensor)
        if record is None:
            return "other"
        known = record.final_category
        return known if known in STATES else record.contents or "other"

    def _count(self, message: Message, operator: str, arguments: dict[str, object]) -> None:
        if not message.bytes:
            return
        self._ledger.categories()  # names what the optimizer has made since
        name = MESSAGES[operator][1]
        others = [value for key, value in arguments.items() if key != name]
        filled = {self._held(tensor) for tensor in tensors_among(*others)} & STATES
        for tensor in tensors_among(arguments[name]):
            kind = filled.copy().pop() if len(filled) == 1 else self._held(tensor)
            part = bytes_of(tensor) / message.bytes
            self.elements[kind] += part * message.ideal / tensor.element_size()
