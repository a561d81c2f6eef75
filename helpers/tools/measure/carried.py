"""What this rank's messages carry: gradients, parameters, optimizer states, or something else.

A message carries what it fills, where the ledger knows in the end what that is for, as an all-gather into
the parameters; else what its tensor holds.  What a tensor holds is followed from operator to operator: a
copy, a cast, a sum or a join of gradients holds gradients; a number made of many, such as a norm, does not.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from .held import MODEL_STATES
from .internals import MESSAGES, TorchDispatchMode, bytes_of, storages_among, tensors_among, written_and_read
from .ledger import Ledger
from .messages import listen
from .operations import Message
from .together import measuring

STATES = {*MODEL_STATES, "inputs"} - {"buffers"}  # in a buffer is what was copied there


class Carried(TorchDispatchMode):
    """Finds out what messages carry: parameters, gradients, or other states.

    It counts between entering and leaving, inside an open `Ledger` that watches the model and its optimizer:
    `with Carried(ledger) as carried: engine.step()`.  Enter it after the optimizer's first step: what that
    makes has no name before.

    Attributes:
        elements: {category: elements that this rank sends with bandwidth-optimal algorithms}, those that
            carry nothing known as "other".
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger, self._open = ledger, ExitStack()
        self.elements: Counter[str] = Counter()
        self._messages: list[tuple] = []  # records that one fills, what its tensor holds, elements sent

    def __enter__(self):
        self._open.enter_context(measuring("Carried"))
        self._open.callback(listen(self._count))
        self._ledger.categories()  # names what the optimizer has made before
        return super().__enter__()

    def __exit__(self, *problem):
        self._open.close()
        self._ledger.categories()
        for filled, held, sent in self._messages:
            kinds = {record.category for record in filled if record} & STATES
            self.elements[kinds.pop() if len(kinds) == 1 else held] += sent
        self._messages.clear()
        return super().__exit__(*problem)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if {"like", "new"} & {*function.__name__.partition(".")[0].split("_")}:
            return result  # it took no more than a shape
        written, read = map(tensors_among, written_and_read(function, args, kwargs or {}))
        several = len(written) > 1 and len(written) == len(read)  # one by one
        for at, tensor in enumerate([*written, *tensors_among(result)]):
            self._follow(tensor, read[at : at + 1] if several else [*written, *read])
        return result

    def _follow(self, written, sources):
        """Note what a tensor holds that was written from others; a view or a change in place leaves it."""
        record = self._record(written)
        others = [one for one in sources if one.numel() > 1 and self._record(one) is not record]
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
        named = record.category if record.category in STATES else record.contents
        return named or (record.final_category if record.in_forward else "other")

    def _count(self, message: Message, operator: str, arguments: dict[str, object]) -> None:
        if not message.bytes:
            return
        name = MESSAGES[operator][1]
        filled = [
            self._record(one) for key in arguments if key != name for one in tensors_among(arguments[key])
        ]
        for tensor in tensors_among(arguments[name]):
            sent = bytes_of(tensor) / message.bytes * message.ideal / tensor.element_size()
            self._messages.append((filled, self._held(tensor), sent))
