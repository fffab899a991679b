"""A model of PyTorch's CUDA caching allocator: what a sequence of allocations makes it reserve.

The rules are those of pytorch ``c10/cuda/CUDACachingAllocator.cpp`` (native backend), written from scratch:

* sizes are rounded up to 512 bytes; up to 1 MiB they come from the small pool, whose segments are 2 MiB;
* larger ones come from segments of 20 MiB (below 10 MiB) or of their own size rounded up to 2 MiB;
* the smallest free block that is large enough is taken, ties by address; what remains is split off when it is at least
  512 bytes (small pool) or more than 1 MiB (large pool; any remainder with expandable segments);
* a freed block merges with free neighbours of its segment; segments are given back only when the device is full: then
  all that are free as a whole go, and the request is tried once more;
* every stream has pools of its own;
* expandable segments: one range per pool and stream that grows by 2 or 20 MiB and only as far as needed.

The driver places successive segments at falling addresses (seen on Tesla T4 archives; it decides ties).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort

MIB = 1 << 20
ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB


class DeviceFullError(Exception):
    """A request that does not fit: bytes asked for, allocated and reserved."""

    def __init__(self, size: int, allocated: int, reserved: int) -> None:
        """Keep the three numbers."""
        super().__init__(f"{size} bytes do not fit: {allocated} allocated, {reserved} reserved")
        self.size, self.allocated, self.reserved = size, allocated, reserved


class Chunk:
    """A piece of a segment, free or in use."""

    __slots__ = ("address", "after", "before", "free", "pool", "refs", "size")

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        """Cover ``size`` bytes from ``address``."""
        self.pool = pool
        self.address = address
        self.size = size
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.free = False
        self.refs = 1


class Pool:
    """Free chunks of one stream and size class, ordered by size and address."""

    __slots__ = ("chunks", "small", "tail")

    def __init__(self, small: bool) -> None:
        """Begin without chunks."""
        self.small = small
        self.chunks: list[tuple[int, int, Chunk]] = []
        self.tail: Chunk | None = None
        """Last chunk of the expandable range."""


class CachingAllocator:
    """Allocations and frees in, reserved bytes out."""

    def __init__(self, *, expandable: bool = False, descending: bool = True, capacity: float = math.inf) -> None:
        """Begin with nothing reserved on a device of ``capacity`` bytes."""
        self.capacity = capacity
        self.retries = 0
        """Times that free segments were given back to make room."""
        self.top = 0
        """Highest reserved bytes so far."""
        self.expandable = expandable
        self.step = -1 if descending else 1
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.next_address = 0
        self.allocated = 0
        self.reserved = 0
        self.peak = 0
        """Highest allocated bytes so far."""

    def malloc(self, nbytes: float, stream: int = 0) -> Chunk:
        """Allocate; the chunk is the handle to free it with."""
        size = (int(nbytes) + ROUND - 1) // ROUND * ROUND or ROUND
        small = size <= SMALL
        key = (stream, small)
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = Pool(small)
        chunks = pool.chunks
        i = bisect_left(chunks, (size,))
        grow = self._grow if self.expandable else self._segment
        chunk = chunks.pop(i)[2] if i < len(chunks) else grow(pool, size)
        left = chunk.size - size
        if left >= ROUND if small or self.expandable else left > SMALL:
            rest = Chunk(pool, chunk.address + size, left)
            rest.before, rest.after = chunk, chunk.after
            if chunk.after is not None:
                chunk.after.before = rest
            elif self.expandable:
                pool.tail = rest
            chunk.after = rest
            chunk.size = size
            rest.free = True
            insort(chunks, (left, rest.address, rest))
        chunk.free = False
        chunk.refs = 1
        self.allocated += chunk.size
        self.peak = max(self.peak, self.allocated)
        return chunk

    def free(self, chunk: Chunk) -> None:
        """Drop one reference; the last one gives the chunk back to its pool."""
        chunk.refs -= 1
        if chunk.refs:
            return
        pool = chunk.pool
        self.allocated -= chunk.size
        before, after = chunk.before, chunk.after
        if before is not None and before.free:
            self._take(before)
            before.size += chunk.size
            before.after = after
            if after is not None:
                after.before = before
            elif self.expandable:
                pool.tail = before
            chunk = before
        if after is not None and after.free:
            self._take(after)
            chunk.size += after.size
            chunk.after = after.after
            if after.after is not None:
                after.after.before = chunk
            elif self.expandable:
                pool.tail = chunk
        chunk.free = True
        insort(pool.chunks, (chunk.size, chunk.address, chunk))

    def _take(self, chunk: Chunk) -> None:
        chunks = chunk.pool.chunks
        chunks.pop(bisect_left(chunks, (chunk.size, chunk.address)))

    def _claim(self, size: int) -> None:
        """Take bytes from the device, after giving back what is free if they are not there."""
        if self.reserved + size > self.capacity:
            self.retries += 1
            for pool in self.pools.values():
                if not self.expandable:
                    split = [entry for entry in pool.chunks if entry[2].before is not None or entry[2].after is not None]
                    self.reserved -= sum(entry[0] for entry in pool.chunks) - sum(entry[0] for entry in split)
                    pool.chunks[:] = split
            if self.reserved + size > self.capacity:
                raise DeviceFullError(size, self.allocated, self.reserved)
        self.reserved += size
        self.top = max(self.top, self.reserved)

    def _segment(self, pool: Pool, size: int) -> Chunk:
        """A new segment from the driver."""
        if pool.small:
            whole = SMALL_SEGMENT
        elif size < MIN_LARGE:
            whole = LARGE_SEGMENT
        else:
            whole = (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE
        self._claim(whole)
        address = self.next_address if self.step > 0 else self.next_address - whole
        self.next_address += self.step * whole
        return Chunk(pool, address, whole)

    def _grow(self, pool: Pool, size: int) -> Chunk:
        """Map more of the pool's range, after its last chunk."""
        tail = pool.tail
        have = tail.size if tail is not None and tail.free else 0
        unit = SMALL_SEGMENT if pool.small else LARGE_SEGMENT
        more = (size - have + unit - 1) // unit * unit
        self._claim(more)
        if tail is not None and have:
            self._take(tail)
            tail.size += more
            return tail
        chunk = Chunk(pool, 0 if tail is None else tail.address + tail.size, more)
        chunk.before = tail
        if tail is not None:
            tail.after = chunk
        pool.tail = chunk
        return chunk
