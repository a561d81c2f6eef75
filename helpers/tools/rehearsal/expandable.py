"""torch's allocator with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: one segment for each stream and
kind of block, with addresses for more than the GPU has, to which memory is mapped as it is needed.

Source: `ExpandableSegment` and `try_allocate_expandable_block` in c10/cuda/CUDACachingAllocator.cpp.  Pages
are of 2 MiB for small blocks and of 20 MiB for large ones.
"""

from __future__ import annotations

from .allocator import LARGE_SEGMENT, ROUND, Allocator, Block, Pool, merge

ADDRESSES = 2**24 * LARGE_SEGMENT  # of a segment: more than any GPU has


class Expandable(Allocator):
    """Imitates torch's allocator with expandable segments; all else is as in `Allocator`.

    With `fraction` the limit is that of `torch.cuda.set_per_process_memory_fraction`, which looks at a whole
    request even where a part of it is there.
    """

    def __init__(self, limit: float | None = None, behind: int | None = 0, fraction: bool = False) -> None:
        super().__init__(limit, behind, upwards=True)
        self.fraction = fraction
        self.highest = 0  # a multiple of every page

    def best_fit(self, pool: Pool, size: int) -> Block | None:
        """A free block; one that can grow counts as large as it can grow."""
        fitting = pool.fitting(size)
        if not fitting:
            return None
        block = fitting[0]
        for other in fitting[1:]:
            if grown(other) >= grown(block):
                break
            block = other
        pool.remove(block)
        return block

    def new_block(self, pool: Pool, size: int) -> Block | None:
        """A free block to which memory was mapped until it was large enough; None where the GPU has none."""
        asked = -(-size // pool.segment) * pool.segment
        if self.fraction and self.reserved + asked > self.limit:
            return None
        block = self.place_to_grow(pool, size)
        while not block.mapped or block.size < size:
            unmapped = block.after if block.mapped else block
            missing = size - block.size if block.mapped else size
            if not self.map(unmapped, missing):
                return None
            block = unmapped
        pool.remove(block)
        return block

    def place_to_grow(self, pool: Pool, size: int) -> Block:
        """The first unmapped block, or free block before one, that has addresses enough."""
        for unmapped in pool.unmapped:
            before = unmapped.before
            first = before if before and before.free and not before.pending else unmapped
            if room_from(first) >= size:
                return first
        block = Block(self.address(2 * ADDRESSES), ADDRESSES, pool, mapped=False)
        add_unmapped(block)
        return block

    def map(self, block: Block, size: int) -> bool:
        """Give an unmapped block memory for so many bytes, in whole pages; returns whether there was some."""
        page = block.pool.segment
        pages = min(-(-min(size, block.size) // page) * page, block.size)
        if not self.take(pages):
            return False
        block.pool.unmapped.remove(block)
        block.mapped = True
        if pages < block.size:
            rest = Block(block.start + pages, block.size - pages, block.pool, mapped=False)
            rest.put_between(block, block.after)
            block.size = pages
            add_unmapped(rest)
        merge(block, block.pool.remove)
        block.pool.add(block)
        return True

    def splits(self, pool: Pool, rest: int) -> bool:
        return rest >= ROUND

    def give_back(self, block: Block) -> None:
        """Unmap the whole pages of a free block."""
        page, end = block.pool.segment, block.start + block.size
        first, last = -(-block.start // page) * page, end // page * page
        if first >= last:
            return
        block.pool.remove(block)
        if block.start < first:
            rest = Block(block.start, first - block.start, block.pool)
            rest.put_between(block.before, block)
            rest.pool.add(rest)
        if last < end:
            rest = Block(last, end - last, block.pool)
            rest.put_between(block, block.after)
            rest.pool.add(rest)
        block.start, block.size, block.mapped = first, last - first, False
        self.reserved -= block.size
        merge(block, block.pool.unmapped.remove)
        add_unmapped(block)


def grown(block: Block) -> int:
    """Bytes of a block and the addresses after it."""
    after = block.after
    return block.size + (after.size if after and not after.mapped else 0)


def room_from(block: Block | None) -> int:
    """Bytes of a block and the free or unmapped ones that follow it."""
    room = 0
    while block and block.free and not block.pending:
        room, block = room + block.size, block.after
    return room


def add_unmapped(block: Block) -> None:
    block.pool.unmapped.append(block)
    block.pool.unmapped.sort(key=lambda other: other.start)
