"""What ZeRO-3 of DeepSpeed 0.19.8 gathers and reduces during a pass of a bf16 model, in bytes on one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .layers import BF16
from .zero_config import ZeroConfig


@dataclass
class Gatherer:
    """Parameters as modules are visited, and gradients (`zero/partitioned_param_coordinator.py`,
    `zero/stage3.py`).  Its methods yield changes in bytes.

    A visit gathers the module's parameter, and ahead of time the next ones that are visited, until
    `prefetch` elements are on their way or `live` elements are there.  Those that are gathered together come
    in one flat tensor and are copied from it when the first of them is needed; it goes when the last one is.
    A parameter is released when its module ends, unless it is visited again within the next `reuse` elements,
    or was passed over for being there.  Gradients are copied to the bucket, unless they are larger; when the
    next one does not fit, they are put together for one message.
    """

    elements: Sequence[int]  # of each parameter
    config: ZeroConfig
    ranks: int
    visited_places: Sequence[int | None]  # of all modules as they begin, None without a parameter
    live: int = 1_000_000_000  # `stage3_max_live_parameters`
    reuse: int = 1_000_000_000  # `stage3_max_reuse_distance`
    prefetch: int = 50_000_000  # `stage3_prefetch_bucket_size`
    step: int = 0  # visits so far
    there: set[int] = field(default_factory=set)  # parameters that are gathered, or are on their way
    until: dict[int, int] = field(default_factory=dict)  # visits that were looked at in advance
    # with all that come together, and those of them that were not needed yet
    on_their_way: dict[int, tuple[list[int], set[int]]] = field(default_factory=dict)
    received: int = 0  # bytes that were gathered so far
    waiting: list[int] = field(default_factory=list)  # parameters whose gradients are in the bucket

    def __post_init__(self):
        self.queue = deque(
            (place, step) for step, place in enumerate(self.visited_places) if place is not None
        )
        threshold = self.config.persistence_threshold
        self.small = {place for place, count in enumerate(self.elements) if count <= threshold}
        self.there |= self.small if self.ranks > 1 else set(range(len(self.elements)))

    def visited(self, place: int | None, begins: bool) -> Iterator[int]:
        """When a module begins or ends."""
        yield from self._begun(place) if begins else self._ended(place)

    def _begun(self, place):
        if place is not None:
            if place not in self.there:
                yield from self._gathered([place])
            yield from self._needed(place)
            if self.until.get(place, -1) < self.step:
                self.until[place] = self.queue.popleft()[1]
        ahead, room = [], min(self.live - self._live, self.prefetch)
        while self.queue and sum(self.elements[one] for one in ahead) < room:
            other, step = self.queue.popleft()
            self.until[other] = max(self.until.get(other, -1), step)
            if other not in self.there and other not in ahead:
                ahead.append(other)
        yield from self._gathered(ahead)
        self.step += 1

    @property
    def _live(self):
        return sum(self.elements[place] for place in self.there - self.small)

    def padded(self, places: Iterable[int]) -> int:
        """Bytes of parameters, each rounded up to a multiple of the ranks."""
        return sum(BF16 * -(-self.elements[place] // self.ranks) * self.ranks for place in places)

    def _gathered(self, group):
        self.there.update(group)
        self.on_their_way.update(dict.fromkeys(group, (group, set(group))))
        self.received += self.padded(group)
        if group:
            yield self.padded(group)

    def _needed(self, place):
        group, left = self.on_their_way.pop(place, ([], set()))
        if len(group) > 1 and len(left) == len(group):
            yield BF16 * sum(self.elements[one] for one in group)
        left.discard(place)
        if len(group) > 1 and not left:
            yield -self.padded(group)

    def _ended(self, place):
        if place is None or place in self.small or self.ranks == 1 or self.until[place] > self.step:
            return
        passed = 0
        for other in self.visited_places[self.step :]:
            if passed >= self.reuse:
                break
            if other == place:
                return
            passed += 0 if other is None else self.elements[other]
        self.there.remove(place)
        yield -BF16 * self.elements[place]

    def taken(self, place: int) -> Iterator[int]:
        """When the gradient of a parameter has come."""
        bucket = self.config.reduce_bucket_size
        if self.waiting and sum(self.elements[one] for one in (*self.waiting, place)) > bucket:
            yield from self.ended()
        self.waiting.append(place)
        if self.elements[place] <= bucket:
            yield -BF16 * self.elements[place]

    def ended(self) -> Iterator[int]:
        """When all gradients have come, or the bucket is full."""
        copy = self.padded(self.waiting)
        if len(self.waiting) > 1 or any(self.elements[place] % self.ranks for place in self.waiting):
            yield from (copy, -copy)
        for place in self.waiting:
            if self.elements[place] > self.config.reduce_bucket_size:
                yield -BF16 * self.elements[place]
        self.waiting.clear()
