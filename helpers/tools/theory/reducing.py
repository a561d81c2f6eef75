"""What DeepSpeed 0.19.8 does with the gradients of a bf16 model while they come, in bytes on one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from .layers import BF16
from .model_states import partition
from .zero_config import ZeroConfig

ALL_REDUCED = 500_000_000  # elements that stage 0 puts into one message (`DeepSpeedEngine.allreduce_bucket`)


def messages(pieces: Sequence[int], limit: int) -> Iterator[int]:
    """Bytes of the flat copies that are sent of some pieces, in elements: pieces are put together until they
    exceed the limit, and one alone is flat already."""
    together = []
    for piece in pieces:
        together.append(piece)
        if sum(together) > limit:
            yield BF16 * sum(together) if len(together) > 1 else 0
            together = []
    yield BF16 * sum(together) if len(together) > 1 else 0


@dataclass
class Reducer:
    """Of a rank at stages 0 to 2, in one micro-batch (`zero/stage_1_and_2.py`).

    Its methods yield changes in bytes.  A gradient that is summed into an older one is gone at once.  Stages
    1 and 2 copy it to a bucket, unless it is larger; when the next one does not fit, the bucket is sent in
    pieces that end where a partition does, and what touches the rank's own partition is copied to a buffer of
    its own.  Stage 2 does this as gradients come, stage 1 when all are there, in the model's order.
    """

    elements: Sequence[int]  # of each parameter
    config: ZeroConfig
    ranks: int
    rank: int
    accumulates: bool  # whether a micro-batch before has left gradients
    steps: bool  # whether it is the last one before a step
    waiting: list[int] = field(default_factory=list)  # parameters in the bucket
    begun: set[str] = field(default_factory=set)  # buffers that are there

    def __post_init__(self):
        self.stage, self.bucket = self.config.stage, self.config.reduce_bucket_size
        self.part, pieces = partition(self.elements, self.ranks, self.rank)
        self.own, self.ends = set(pieces), list(accumulate(self.elements))

    def visited(self, place: int | None, begins: bool) -> Iterator[int]:
        """When a module begins or ends: parameters are there."""
        yield from ()

    def taken(self, place: int) -> Iterator[int]:
        """When the gradient of a parameter has come."""
        if self.stage == 0 or (self.stage == 1 and self.accumulates):
            yield -BF16 * self.elements[place] if self.accumulates else 0
        if self.stage and "bucket" not in self.begun:
            self.begun.add("bucket")
            yield 0 if self.stage == 1 and self.accumulates else BF16 * self.bucket
        if self.stage == 2:
            yield from self._into_bucket(place)

    def ended(self) -> Iterator[int]:
        """When all have come."""
        if self.stage == 0 and self.steps and self.ranks > 1:
            for copy in messages(self.elements, ALL_REDUCED):
                yield from (copy, -copy)
        if self.stage == 1 and self.steps:
            for place in range(len(self.elements)):
                yield from self._into_bucket(place)
        yield from self._sent()

    def _into_bucket(self, place: int) -> Iterator[int]:
        if sum(self.elements[one] for one in (*self.waiting, place)) > self.bucket:
            yield from self._sent()
        self.waiting.append(place)
        if self.elements[place] <= self.bucket:
            yield -BF16 * self.elements[place]

    def _sent(self) -> Iterator[int]:
        for copy in messages(self._pieces(), self.bucket):
            yield from (copy, -copy)
        for place in self.waiting:
            size = BF16 * self.elements[place]
            if place in self.own and "own" not in self.begun:
                self.begun.add("own")
                yield BF16 * sum(self.elements[one] for one in self.own)
            if size > BF16 * self.bucket and (place in self.own or self.stage == 2):
                yield -size
        self.waiting.clear()

    def _pieces(self) -> list[int]:
        """Elements of the bucket's pieces; neighbours of one partition are one piece."""
        pieces, last = [], None
        for place in self.waiting:
            at, end = self.ends[place] - self.elements[place], self.ends[place]
            while at < end:
                owner = at // self.part
                piece = min(end, (owner + 1) * self.part) - at
                if owner == last:
                    pieces[-1] += piece
                else:
                    pieces.append(piece)
                at, last = at + piece, owner
        return pieces
