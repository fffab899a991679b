"""A model of PyTorch's CUDA caching allocator: what a sequence of allocations makes it reserve.

The rules are those of pytorch 2.13 ``c10/cuda/CUDACachingAllocator.cpp`` (native backend), written from scratch; those of
segments stand in :mod:`foretell.cost.allocator_segments`, the settings in :mod:`foretell.cost.allocator_settings`:

* sizes are rounded up to 512 bytes (or to steps between powers of two); up to 1 MiB they come from the small pool, whose
  segments are 2 MiB;
* larger ones come from segments of 20 MiB (below 10 MiB) or of their own size rounded up to 2 MiB;
* the smallest free block that is large enough is taken, ties by address; what remains is split off when it is at least
  512 bytes (small pool) or more than 1 MiB (large pool; any remainder with expandable segments);
* with expandable segments a block counts as what it can grow to, so that the last one is taken only for want of others;
* with a limit on splitting, blocks above it serve only requests above it that are less than 20 MiB smaller;
* a freed block merges with free neighbours of its segment; segments are given back only when the device is full, and the
  request is tried once more (or by garbage collection);
* every stream has pools of its own;
* a block that another stream still uses when its owner gives it up (``record_stream``) is no longer allocated, but stays
  active: nobody gets it until that stream is done, or until the device is full and is waited for.

Not modelled: private pools of CUDA graphs.

The driver places successive segments at falling addresses (seen on Tesla T4 archives; it decides ties).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import cast

from foretell.cost.allocator_pieces import Chunk, Hole, Pool, Segment
from foretell.cost.allocator_segments import Action, Listener, Reserve
from foretell.cost.allocator_settings import INTERVALS, MIB, AllocatorSettings

__all__ = [
    "MIB",
    "ROUND",
    "SMALL",
    "Action",
    "AllocatorSettings",
    "CachingAllocator",
    "Chunk",
    "DeviceFullError",
    "Hole",
    "Listener",
    "Pool",
    "Segment",
    "round_size",
]

ROUND = 512
SMALL = MIB


class DeviceFullError(Exception):
    """A request that does not fit: bytes asked of the device, allocated and reserved."""

    def __init__(self, size: int, allocated: int, reserved: int) -> None:
        """Keep the three numbers."""
        super().__init__(f"{size} bytes do not fit: {allocated} allocated, {reserved} reserved")
        self.size, self.allocated, self.reserved = size, allocated, reserved


def round_size(nbytes: int, divisions: tuple[int, ...] = ()) -> int:
    """Bytes of the block that a request is given at least.

    >>> round_size(1200), round_size(1200, (2,) * 16), round_size(5000, (4,) * 16)
    (1536, 1536, 5120)

    """
    if divisions and nbytes >= ROUND:
        steps = divisions[min(max(nbytes.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)]
        if steps > 1 and nbytes > ROUND * steps:
            step = (1 << (nbytes.bit_length() - 1)) // steps
            return -(-nbytes // step) * step
    return -(-nbytes // ROUND) * ROUND or ROUND


class CachingAllocator(Reserve):
    """Allocations and frees in, reserved bytes out."""

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        expandable: bool = False,
        descending: bool = True,
        capacity: float = math.inf,
        total: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Begin with nothing reserved.

        Args:
            settings: PyTorch's defaults without them.
            expandable: short for settings with expandable segments.
            descending: whether the driver places segments at falling addresses.
            capacity: bytes that the device has for this allocator.
            total: bytes of the whole device, for a memory fraction and for the span of expandable segments.
            listener: hears of memory taken from the device or given back.

        Raises:
            InputError: a memory fraction without a total.

        """
        given = settings or AllocatorSettings(expandable_segments=expandable)
        super().__init__(given, descending=descending, capacity=capacity, total=total, listener=listener)
        self.divisions = given.divisions
        self.rounding = given.max_non_split_rounding
        self.plain = not self.collecting and self.max_split == math.inf
        """No clock to keep, and every free block that is large enough will do."""
        self.retries = 0
        """Times that free segments were given back to make room."""
        self.allocated = 0
        self.peak = 0
        """Highest allocated bytes so far."""
        self.waiting: dict[int, Chunk] = {}
        """Key -> a chunk that its owner gave up and another stream still uses."""
        self.settled: list[int] = []
        """Keys of those that became free because the device was full, in order."""

    def malloc(self, nbytes: float, stream: int = 0) -> Chunk:
        """Allocate; the chunk is the handle to free it with.

        Nothing (0 bytes) is given a block of 512 bytes here; PyTorch answers such requests before they reach its allocator.

        Raises:
            DeviceFullError: it does not fit, even after what is free was given back.

        """
        size = (int(nbytes) + ROUND - 1) // ROUND * ROUND or ROUND
        if self.divisions:
            size = round_size(int(nbytes), self.divisions)
        small = size <= SMALL
        key = (stream, small)
        pool = self.pools.get(key)
        if pool is None:
            pool = self.pools[key] = Pool(stream, small)
        chunks = pool.chunks
        i = bisect_left(chunks, (size,))
        if not self.plain or (self.expandable and i < len(chunks) and isinstance(chunks[i][2].after, Hole)):
            i = self._best(pool, size, i)
        chunk = chunks.pop(i)[2] if i < len(chunks) else self._new(pool, size)
        left = chunk.size - size
        if left >= ROUND if small or self.expandable else left > SMALL and size < self.max_split:
            rest = Chunk(chunk.segment, chunk.address + size, left)
            rest.before, rest.after = chunk, chunk.after
            if chunk.after is not None:
                chunk.after.before = rest
            chunk.after = rest
            chunk.size = size
            rest.free = True
            if self.collecting:
                rest.born = self.searches
            insort(chunks, (left, rest.address, rest))
        chunk.free = False
        chunk.refs = 1
        self.allocated += chunk.size
        if self.allocated > self.peak:  # noqa: PLR1730  the hottest line: max() is a call
            self.peak = self.allocated
        return chunk

    def free(self, chunk: Chunk) -> None:
        """Drop one reference; the last one gives the chunk back to its pool."""
        chunk.refs -= 1
        if chunk.refs:
            return
        chunks = chunk.segment.pool.chunks
        self.allocated -= chunk.size
        before, after = chunk.before, chunk.after
        if before is not None and before.free:
            chunks.pop(bisect_left(chunks, (before.size, before.address)))
            before.size += chunk.size
            before.after = after
            if after is not None:
                after.before = before
            chunk = before
        if after is not None and after.free:
            chunks.pop(bisect_left(chunks, (after.size, after.address)))
            chunk.size += after.size
            chunk.after = after.after
            if after.after is not None:
                after.after.before = chunk
        chunk.free = True
        if self.collecting:
            chunk.born = self.searches
        insort(chunks, (chunk.size, chunk.address, chunk))

    def defer(self, key: int, chunk: Chunk) -> None:
        """Take note that the owner of a chunk gave it up while another stream still uses it; ``key`` stands for it."""
        self.waiting[key] = chunk
        self.allocated -= chunk.size

    def settle(self, key: int) -> None:
        """The other stream is done: a deferred chunk becomes free, unless it did so before."""
        chunk = self.waiting.pop(key, None)
        if chunk is not None:
            self.allocated += chunk.size
            self.free(chunk)

    def fork(self, capacity: float) -> tuple[CachingAllocator, dict[Chunk, Chunk]]:
        """Return a copy of all this on a device of another capacity, without the listener; and the copy of each piece."""
        other = CachingAllocator(self.settings, descending=self.step < 0, capacity=capacity, total=self.total)
        other.pools = {key: Pool(pool.stream, pool.small) for key, pool in self.pools.items()}
        copies: dict[Chunk, Chunk] = {}
        for segment in self.segments:
            pool = other.pools[segment.stream, segment.small]
            twin = Segment(pool, segment.address, segment.size, expandable=segment.expandable)
            other.segments[twin] = None
            piece: Chunk | None = segment.first
            before = None
            while piece is not None:
                copy = copies[piece] = type(piece)(twin, piece.address, piece.size)
                copy.free, copy.refs, copy.before = piece.free, piece.refs, before
                if piece.free and self.collecting:
                    copy.born = piece.born
                if before is None:
                    twin.first = copy
                else:
                    before.after = copy
                before, piece = copy, piece.after
        for key, pool in self.pools.items():
            other.pools[key].chunks = [(size, address, copies[chunk]) for size, address, chunk in pool.chunks]
            other.pools[key].holes = [(address, cast("Hole", copies[hole])) for address, hole in pool.holes]
        other.waiting = {key: copies[chunk] for key, chunk in self.waiting.items()}
        other.settled = list(self.settled)
        for name in ("next_address", "searches", "reserved", "top", "refused", "allocated", "peak", "retries"):
            setattr(other, name, getattr(self, name))
        return other, copies

    def _best(self, pool: Pool, size: int, i: int) -> int:
        """Return the index of the free chunk to take, from the first that is large enough on; past the last: none is."""
        if self.collecting and not pool.small:
            self.searches += 1
        chunks = pool.chunks
        if i == len(chunks):
            return i
        # of blocks beside a hole the one that can grow least is taken; all others can only be larger than this one
        while isinstance(chunks[i][2].after, Hole) and i + 1 < len(chunks) and _reach(chunks[i + 1][2]) < _reach(chunks[i][2]):
            i += 1
        found = chunks[i][0]
        unfit = found >= self.max_split if size < self.max_split else found >= size + self.rounding
        return len(chunks) if unfit else i

    def _new(self, pool: Pool, size: int) -> Chunk:
        """Memory from the device, after giving back what is free if it is not there."""
        if self.collecting:
            self.collect()
        chunk = self.obtain(pool, size)
        if chunk is None and self.release_oversize(pool, size):
            chunk = self.obtain(pool, size)
        if chunk is None:
            self.settled += self.waiting
            for key in list(self.waiting):  # the other streams are waited for
                self.settle(key)
            self.release()
            self.retries += 1
            chunk = self.obtain(pool, size)
        if chunk is None:
            raise DeviceFullError(self.segment_size(size, small=pool.small), self.allocated, self.reserved)
        return chunk


def _reach(chunk: Chunk) -> int:
    """Bytes that a free chunk can grow to."""
    after = chunk.after
    return chunk.size + after.size if isinstance(after, Hole) else chunk.size
