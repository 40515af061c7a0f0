"""A model of PyTorch's CUDA caching allocator: what it asks of the driver for a sequence of allocations and frees.

One stream, no private pools, the default ``max_split_size``. Rules and where they stand in PyTorch's
c10/cuda/CUDACachingAllocator.cpp (function names; 2.6 to 2.13 agree on all of them):

- sizes are rounded to 512 B (``round_size``); up to 1 MiB is served by the small pool, the rest by the large one
  (``get_pool``); the free block of least size that is large enough is taken, the lowest address among equals
  (``get_free_block``);
- a miss asks the driver for a segment: 2 MiB for the small pool, 20 MiB for a block below 10 MiB, else the size
  rounded to 2 MiB (``get_allocation_size``);
- what remains of a block is split off from 512 B on in the small pool, above 1 MiB in the large one
  (``should_split``); a freed block is joined with its free neighbours (``free_block``, ``try_merge_blocks``);
- when the driver has no more, every segment that is wholly free is given back, then the allocation is tried once
  more (``malloc``, ``release_cached_blocks``);
- with ``expandable_segments`` a pool is one range of addresses, mapped in pages of 2 MiB or 20 MiB as it grows;
  any remainder of 512 B is split off; a block before unmapped addresses counts as being as large as it can grow,
  and what is released are the pages inside free blocks (``try_allocate_expandable_block``, ``map_block``,
  ``unmap_block``).
"""

from __future__ import annotations

from bisect import bisect_left, insort

ROUND = 512  # kMinBlockSize
SMALL = 1 << 20  # kSmallSize: the largest allocation of the small pool
SMALL_SEGMENT = 2 << 20  # kSmallBuffer
LARGE_SEGMENT = 20 << 20  # kLargeBuffer
MIN_LARGE = 10 << 20  # kMinLargeAlloc
ROUND_LARGE = 2 << 20  # kRoundLarge
_ADDRESSES = 1 << 50  # addresses of an expandable segment: more than any card has memory


class Block:
    """A range of addresses in a segment; ``before`` and ``after`` are its neighbours in the same segment."""

    __slots__ = ("address", "after", "before", "free", "mapped", "pool", "size")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.before: Block | None = None
        self.after: Block | None = None
        self.free = False
        self.mapped = True


class Pool:
    """Free blocks of one pool, by size and then address; with expandable segments also the unmapped ranges."""

    __slots__ = ("free", "keep_from", "page", "small", "unmapped")

    def __init__(self, *, small: bool, expandable: bool) -> None:
        self.small = small
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        # The least remainder that is split off.
        self.keep_from = ROUND if small or expandable else SMALL + 1
        self.free: list[tuple[int, int, Block]] = []
        self.unmapped: list[tuple[int, Block]] = []  # by address

    def add(self, block: Block) -> None:
        block.free = True
        insort(self.free, (block.size, block.address, block))

    def drop(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


def rounded(size: int) -> int:
    """Bytes that an allocation of ``size`` bytes takes at least."""
    return max(ROUND, -(-size // ROUND) * ROUND)


class Allocator:
    """The allocator of one card.

    Args:
        limit: bytes that the driver can give in all; None: no end.
        expandable: ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.

    ``allocated`` and ``reserved`` are ``torch.cuda.memory_allocated()`` and ``memory_reserved()``, ``*_peak`` their
    greatest values so far; ``retries`` counts the times that segments were given back to go on.
    """

    def __init__(self, *, limit: int | None = None, expandable: bool = False) -> None:
        self.limit = _ADDRESSES if limit is None else limit
        self.expandable = expandable
        self.pools = (Pool(small=True, expandable=expandable), Pool(small=False, expandable=expandable))
        self.allocated = self.allocated_peak = 0
        self.reserved = self.reserved_peak = 0
        self.retries = 0
        self._next_address = 0

    def allocate(self, size: int) -> Block | None:
        """Takes ``size`` bytes, a multiple of 512 as :func:`rounded` makes it; None where the card is full."""
        pool = self.pools[size > SMALL]
        free = pool.free
        index = bisect_left(free, (size,))
        if index < len(free):
            block = free[index][2]
            after = block.after
            if after is not None and not after.mapped:
                index = _least_growth(free, index)
                block = free[index][2]
            del free[index]
        else:
            grown = self._grow(pool, size) or self._grow_again(pool, size)
            if grown is None:
                return None
            block = grown
        rest = block.size - size
        if rest >= pool.keep_from:  # as _split and add do, without their calls: this runs a hundred thousand times
            left = Block(pool, block.address + size, rest)
            left.before, left.after = block, block.after
            if left.after is not None:
                left.after.before = left
            block.after = left
            block.size = size
            left.free = True
            insort(free, (rest, left.address, left))
        block.free = False
        self.allocated += block.size
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        return block

    def release(self, block: Block) -> None:
        """Gives a block back to its pool."""
        self.allocated -= block.size
        free = block.pool.free
        near = block.before
        if near is not None and near.free and near.mapped:
            del free[bisect_left(free, (near.size, near.address))]
            _absorb_before(block, near)
        near = block.after
        if near is not None and near.free and near.mapped:
            del free[bisect_left(free, (near.size, near.address))]
            _absorb_after(block, near)
        block.free = True
        insort(free, (block.size, block.address, block))

    # ------------------------------------------------------------------------------------------- the driver

    def _grow(self, pool: Pool, size: int) -> Block | None:
        return self._map(pool, size) if self.expandable else self._segment(pool, size)

    def _grow_again(self, pool: Pool, size: int) -> Block | None:
        """The second try, after everything that is wholly free was given back."""
        self.retries += 1
        self._release()
        return self._grow(pool, size)

    def _reserve(self, size: int) -> bool:
        if self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)
        return True

    def _segment(self, pool: Pool, size: int) -> Block | None:
        """A new segment as one block."""
        if pool.small:
            whole = SMALL_SEGMENT
        elif size < MIN_LARGE:
            whole = LARGE_SEGMENT
        else:
            whole = -(-size // ROUND_LARGE) * ROUND_LARGE
        if not self._reserve(whole):
            return None
        return Block(pool, self._fresh(whole), whole)

    def _fresh(self, size: int) -> int:
        """Where a new segment starts: on a page of either pool, so that pages can be counted from address 0."""
        address = self._next_address
        self._next_address += -(-size // LARGE_SEGMENT) * LARGE_SEGMENT
        return address

    def _map(self, pool: Pool, size: int) -> Block | None:
        """Maps pages until a free block holds ``size`` bytes; the block is out of the free ones then."""
        block = self._room(pool, size)
        if not block.mapped and not self._map_block(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.after
            assert following is not None
            assert not following.mapped
            if not self._map_block(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.drop(block)
        return block

    def _room(self, pool: Pool, size: int) -> Block:
        """The lowest block, free or unmapped, from which free and unmapped addresses run for ``size`` bytes."""
        for _, unmapped in pool.unmapped:
            before = unmapped.before
            first = before if before is not None and before.free else unmapped
            room, block = 0, first
            while room < size and block.free:
                room += block.size
                if block.after is None:
                    break
                block = block.after
            if room >= size:
                return first
        block = Block(pool, self._fresh(_ADDRESSES), _ADDRESSES)
        block.mapped, block.free = False, True
        insort(pool.unmapped, (block.address, block))
        return block

    def _map_block(self, block: Block, size: int) -> bool:
        """Maps the first ``size`` bytes of an unmapped block in whole pages and joins them with their neighbours."""
        pool = block.pool
        size = min(block.size, -(-size // pool.page) * pool.page)
        if not self._reserve(size):
            return False
        del pool.unmapped[bisect_left(pool.unmapped, (block.address,))]
        if size < block.size:
            rest = _split(block, size)
            rest.mapped, rest.free = False, True
            insort(pool.unmapped, (rest.address, rest))
        block.mapped = True
        for near, absorb in ((block.before, _absorb_before), (block.after, _absorb_after)):
            if near is not None and near.free and near.mapped:
                pool.drop(near)
                absorb(block, near)
        pool.add(block)
        return True

    def _release(self) -> None:
        """Gives back every segment, or every page, that is wholly free."""
        for pool in reversed(self.pools):
            for size, _, block in list(pool.free):
                if self.expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.drop(block)
                    self.reserved -= size

    def _unmap(self, block: Block) -> None:
        """Gives back the whole pages inside a free block; what lies before and after them stays free."""
        pool = block.pool
        first = -(-block.address // pool.page) * pool.page
        last = (block.address + block.size) // pool.page * pool.page
        if last <= first:
            return
        pool.drop(block)
        if first > block.address:
            rest = _split(block, first - block.address)
            pool.add(block)
            block = rest
        if last - first < block.size:
            pool.add(_split(block, last - first))
        self.reserved -= block.size
        block.mapped, block.free = False, True
        for near, absorb in ((block.before, _absorb_before), (block.after, _absorb_after)):
            if near is not None and not near.mapped:
                del pool.unmapped[bisect_left(pool.unmapped, (near.address,))]
                absorb(block, near)
        insort(pool.unmapped, (block.address, block))


def _least_growth(free: list[tuple[int, int, Block]], index: int) -> int:
    """The fitting block to take with expandable segments: one that could grow is left for what needs it."""
    while index + 1 < len(free) and _reach(free[index + 1][2]) < _reach(free[index][2]):
        index += 1
    return index


def _reach(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _split(block: Block, size: int) -> Block:
    """Cuts a block to ``size`` bytes; returns the rest, in no list yet."""
    rest = Block(block.pool, block.address + size, block.size - size)
    rest.before, rest.after = block, block.after
    if rest.after is not None:
        rest.after.before = rest
    block.after = rest
    block.size = size
    return rest


def _absorb_before(block: Block, near: Block) -> None:
    block.address, block.before = near.address, near.before
    block.size += near.size
    if block.before is not None:
        block.before.after = block


def _absorb_after(block: Block, near: Block) -> None:
    block.after = near.after
    block.size += near.size
    if block.after is not None:
        block.after.before = block
