"""What torch's caching allocator for GPUs reserves for tensors that are born and die: its policy, simulated
block by block.

    gpu = Allocator(limit=80e9)
    block = gpu.allocate(5_000_000)
    gpu.free(block)
    gpu.reserved, gpu.peak["reserved"]

Source: c10/cuda/CUDACachingAllocator.cpp of torch 2.11 to 2.13.  A request is rounded up to 512 bytes.  Up to
1 MiB it comes from segments of 2 MiB; otherwise from segments of 20 MiB (below 10 MiB), or of its own size
rounded up to 2 MiB.  Of a stream's free blocks the smallest that is large enough is taken, of several the one
at the lowest address.  Its rest becomes a free block, unless it is 1 MiB or less (small blocks: less than 512
bytes).  A freed block merges with free neighbours.  Free segments go back to the GPU when it refuses another.

Addresses decide between equal blocks, and so can decide over gigabytes.  Linux hands out address space from
the top down; where it has holes, later segments lie higher.  `Allocator(upwards=True)` is the other extreme.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 2**20
ROUND, LARGEST_SMALL = 512, MIB
SMALL_SEGMENT, LARGE_SEGMENT, ROUND_LARGE = 2 * MIB, 20 * MIB, 2 * MIB
MIDDLE = 10 * MIB  # requests from here on get a segment of their own
TOP = 2**47  # of the address space


class Refused(MemoryError):
    """The GPU has no segment for a request, even after every free segment was given back.

    Attributes:
        asked: bytes of the segment.
        allocated, reserved, limit: bytes at that moment.
    """

    def __init__(self, asked: int, allocated: int, reserved: int, limit: float) -> None:
        super().__init__(asked, allocated, reserved, limit)
        self.asked, self.allocated, self.reserved, self.limit = asked, allocated, reserved, limit

    def __str__(self):
        return (
            f"{self.asked / MIB:,.2f} MiB refused; of {self.limit / MIB:,.2f} MiB, "
            f"{self.allocated / MIB:,.2f} are allocated and "
            f"{(self.reserved - self.allocated) / MIB:,.2f} reserved and free"
        )


@dataclass(eq=False, slots=True)
class Block:
    """A part of a segment.

    Attributes:
        start, size: its address and bytes.
        pool: the blocks among which it is looked for.
        before, after: its neighbours in the segment.
        free: whether it can be taken; `pending`: freed, and still used by another stream.
        mapped: whether it has memory (an expandable segment also has addresses without).
        asked: bytes of the request.
        streams: those that use it, beside its own.
    """

    start: int
    size: int
    pool: Pool
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None
    free: bool = True
    pending: bool = False
    asked: int = 0
    streams: set[int] = field(default_factory=set)

    def put_between(self, before: Block | None, after: Block | None) -> None:
        self.before, self.after = before, after
        if before:
            before.after = self
        if after:
            after.before = self


@dataclass(eq=False, slots=True)
class Pool:
    """The free blocks of a stream, small or large ones, in the order in which they are taken."""

    stream: int
    small: bool
    order: list[tuple[int, int]] = field(default_factory=list)  # (size, address)
    at: dict[int, Block] = field(default_factory=dict)  # by address
    unmapped: list[Block] = field(default_factory=list)  # of expandable segments

    def add(self, block: Block) -> None:
        insort(self.order, (block.size, block.start))
        self.at[block.start] = block

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.size, block.start))]
        del self.at[block.start]

    def fitting(self, size: int) -> list[Block]:
        """Free blocks of at least so many bytes; the first is the one that is taken."""
        return [self.at[start] for _, start in self.order[bisect_left(self.order, (size, -1)) :]]

    @property
    def segment(self) -> int:
        return SMALL_SEGMENT if self.small else LARGE_SEGMENT


class Allocator:
    """Imitates torch's caching allocator of one GPU, segment by segment.

    Args:
        limit: bytes of segments that the GPU can give; None for as many as are asked for.
        behind: a freed block that another stream used stays unusable for so many requests, since the GPU is
            behind the host; None until the host waits.
        upwards: whether a later segment has a higher address.

    Attributes:
        requested, allocated, reserved: bytes now; `peak` has the largest of each.
        retries: how often free segments were given back because the GPU refused another.
    """

    def __init__(self, limit: float | None = None, behind: int | None = 0, upwards: bool = False) -> None:
        self.limit, self.behind, self.upwards = limit, behind, upwards
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.waiting: list[tuple[int, Block]] = []  # (number of requests when freed, block)
        self.requests = self.retries = 0
        self.lowest = self.highest = TOP  # addresses in use
        self.requested = self.allocated = self.reserved = 0
        self.peak = {"requested": 0, "allocated": 0, "reserved": 0}

    def allocate(self, asked: int, stream: int = 0) -> Block:
        """A block for so many bytes.

        Raises:
            Refused: there is no room.
        """
        self.requests += 1
        self.release_waiting(lambda since: self.behind is not None and self.requests - since > self.behind)
        size = max(1, -(-asked // ROUND)) * ROUND
        small = size <= LARGEST_SMALL
        pool = self.pools.setdefault((stream, small), Pool(stream, small))
        block = self.best_fit(pool, size) or self.new_block(pool, size)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self.new_block(pool, size)
        if block is None:
            raise Refused(segment_for(pool, size), self.allocated, self.reserved, self.limit)
        self.split(block, size)
        block.free, block.asked = False, asked
        self.allocated += block.size
        self.requested += asked
        self.note_peaks()
        return block

    def free(self, block: Block) -> None:
        """The tensor has died; another stream may still use the block."""
        self.allocated -= block.size
        block.streams.discard(block.pool.stream)
        if block.streams:
            block.pending = True
            self.waiting.append((self.requests, block))
        else:
            self.release(block)

    def synchronize(self) -> None:
        """The host has waited for the GPU: no stream uses a freed block any more."""
        self.release_waiting(lambda since: True)

    def empty_cache(self) -> None:
        """Give free segments back to the GPU."""
        self.synchronize()
        for pool in self.pools.values():
            for block in list(pool.at.values()):
                self.give_back(block)

    def release_waiting(self, is_done: Callable[[int], bool]) -> None:
        while self.waiting and is_done(self.waiting[0][0]):
            self.release(self.waiting.pop(0)[1])

    def release(self, block: Block) -> None:
        self.requested -= block.asked
        block.free, block.pending, block.streams = True, False, set()
        merge(block, block.pool.remove)
        block.pool.add(block)

    def note_peaks(self) -> None:
        for name in self.peak:
            self.peak[name] = max(self.peak[name], getattr(self, name))

    # --- Blocks and segments; `Expandable` does some of this in another way.

    def best_fit(self, pool: Pool, size: int) -> Block | None:
        """A free block, taken out of the pool."""
        if block := next(iter(pool.fitting(size)), None):
            pool.remove(block)
        return block

    def new_block(self, pool: Pool, size: int) -> Block | None:
        """A new segment; None where the GPU has none."""
        segment = segment_for(pool, size)
        if not self.take(segment):
            return None
        return Block(self.address(segment), segment, pool)

    def take(self, size: int) -> bool:
        """Take so many bytes of the GPU's memory; returns whether it has them."""
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.note_peaks()
        return True

    def address(self, size: int) -> int:
        """Where so many bytes of new address space begin."""
        if self.upwards:
            self.highest += size
            return self.highest - size
        self.lowest -= size
        return self.lowest

    def splits(self, pool: Pool, rest: int) -> bool:
        """Whether a rest of so many bytes becomes a block."""
        return rest >= ROUND if pool.small else rest > LARGEST_SMALL

    def split(self, block: Block, size: int) -> None:
        if self.splits(block.pool, block.size - size):
            rest = Block(block.start + size, block.size - size, block.pool)
            rest.put_between(block, block.after)
            rest.pool.add(rest)
            block.size = size

    def give_back(self, block: Block) -> None:
        """Give a free block back to the GPU if it is a whole segment."""
        if block.before is None and block.after is None:
            block.pool.remove(block)
            self.reserved -= block.size


def segment_for(pool: Pool, size: int) -> int:
    """Bytes of a new segment for a request of `size`."""
    return pool.segment if size < MIDDLE else -(-size // ROUND_LARGE) * ROUND_LARGE


def merge(block: Block, forget: Callable[[Block], None]) -> None:
    """Join a block with its free neighbours; `forget` takes each of them out of its list."""
    for other in (block.before, block.after):
        if other and other.free and not other.pending and other.mapped == block.mapped:
            forget(other)
            block.size += other.size
            if other is block.before:
                block.start = other.start
                block.put_between(other.before, block.after)
            else:
                block.put_between(block.before, other.after)
