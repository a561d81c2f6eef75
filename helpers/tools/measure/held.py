"""What a `Ledger` tells, as plain data: the memory of one rank by category."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import torch

MODEL_STATES = ("parameters", "gradients", "master weights", "optimizer states", "buffers")
CATEGORIES = (*MODEL_STATES, "activations", "inputs", "other")
KINDS = {  # of memory, in the words of an `OutOfMemory`
    "activations": "activations, which the forward pass keeps for the backward pass",
    "other": "temporaries, or tensors that nobody has named to the ledger",
}


class OutOfMemory(MemoryError, torch.OutOfMemoryError):
    """A tensor was made for which the ledger's limit has no room.

    It is a `torch.OutOfMemoryError`, too: a program that goes on with less after one on a GPU does so under a
    limit.

    Attributes:
        asked: bytes of the tensor's storage.
        held: {category: bytes} without it.
        limit: bytes.
        place: the operation, and the module in whose forward pass it ran.
    """

    def __init__(self, asked: int, held: dict[str, int], limit: int, place: str) -> None:
        super().__init__(asked, held, limit, place)
        self.asked, self.held, self.limit, self.place = asked, held, limit, place

    def __str__(self):
        total = sum(self.held.values())
        by_size = sorted(((size, category) for category, size in self.held.items() if size), reverse=True)
        parts = "; ".join(f"{size:,} of {KINDS.get(category, category)}" for size, category in by_size)
        return (
            f"no room for {self.asked:,} bytes more, the result of {self.place}: this rank may hold "
            f"{self.limit:,} and holds {total:,} ({parts})"
        )


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
    def total(self) -> int:
        return sum(self.categories.values())

    @property
    def model_states(self) -> int:
        """Parameters, gradients, master weights, optimizer states and buffers, in bytes: what ZeRO shards and
        a little more."""
        return sum(self.categories[name] for name in MODEL_STATES)

    def __getitem__(self, category):
        return self.categories[category]


@dataclass
class Storage:
    """One storage's life: its bytes, the ledger's clock at birth and death, its category once known, and what
    was copied into it, where a `Carried` followed that."""

    bytes: int
    born: int
    died: int | None = None
    category: str | None = None
    in_forward: bool = False
    contents: str | None = None

    @property
    def final_category(self) -> str:
        return self.category or ("activations" if self.in_forward else "other")


@dataclass
class History:
    """Bytes over time as plain lists: `totals[category][i]` after the i-th birth or death; `marks` are (i,
    name)."""

    totals: dict[str, list[int]] = field(default_factory=dict)
    marks: list[tuple[int, str]] = field(default_factory=list)

    @property
    def total(self) -> list[int]:
        return [sum(values) for values in zip(*self.totals.values())]

    @classmethod
    def between(
        cls, first: int, last: int, storages: Iterable[Storage], marks: Iterable[tuple[int, str]]
    ) -> History:
        """Of storages from one moment of their ledger's clock to another."""
        changes = {category: [0] * (last - first + 1) for category in CATEGORIES}
        for storage in storages:
            if storage.born <= last and (storage.died is None or storage.died > first):
                line = changes[storage.final_category]
                line[max(storage.born - first, 0)] += storage.bytes
                if storage.died is not None and storage.died <= last:
                    line[storage.died - first] -= storage.bytes
        totals = {category: list(accumulate(line)) for category, line in changes.items()}
        return cls(totals, [(at - first, name) for at, name in marks if first <= at <= last])
