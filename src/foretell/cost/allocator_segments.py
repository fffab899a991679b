"""Segments of the caching allocator: what it takes from the device, and what it gives back when memory is short.

The rules are those of pytorch 2.13 ``c10/cuda/CUDACachingAllocator.cpp`` (native backend), written from scratch:

* a segment is taken whole and given back whole, when nothing in it is in use;
* expandable: one range of addresses for each pool and stream; memory is mapped in granules of 2 or 20 MiB into the lowest
  hole that has room together with the free chunks beside it, and whole free granules are unmapped again;
* when the device is full: with a limit on splitting, cached segments above it go first, only as many as are needed; then
  every segment that is free as a whole, and all free granules;
* garbage collection: past a share of the *allowed* memory, free segments of the large pool older than average are given back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Literal

from foretell.cost.allocator_pieces import Chunk, Hole, Pool, Segment, link
from foretell.cost.allocator_settings import FIELD, MIB, AllocatorSettings
from foretell.errors import InputError

SMALL_SEGMENT = 2 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
TOP = 1 << 59
"""Where the first segment ends.  Addresses are the model's own; only their order means something."""
RANGE = 1 << 44
"""Addresses of an expandable segment on a device of unknown size (elsewhere 9/8 of its memory)."""
GAP = 1 << 30
"""Addresses between expandable segments, so that none seems to go on in the next."""

Action = Literal["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
Listener = Callable[[Action, Segment, int, int], None]
"""Hears of memory taken or given back: what happened, the segment, address and bytes."""


class Reserve:
    """Takes memory from a device and gives it back; knows the free chunks."""

    def __init__(
        self,
        settings: AllocatorSettings,
        *,
        descending: bool,
        capacity: float,
        total: int | None,
        listener: Listener | None,
    ) -> None:
        """Begin with nothing reserved."""
        self.settings = settings
        self.expandable = settings.expandable_segments
        self.large_segment = settings.large_segment_size
        self.max_split: float = math.inf if settings.max_split_size is None else settings.max_split_size
        self.capacity = capacity
        self.total = total
        self.allowed = _allowed(settings.per_process_memory_fraction, total)
        """Bytes that the process may reserve; PyTorch has such a limit only below a fraction of 1."""
        self.collecting = self.allowed is not None and settings.garbage_collection_threshold > 0
        self.searches = 0
        """Searches of large pools, the clock by which chunks age."""
        self.listener = listener
        self.step = -1 if descending else 1
        self.next_address = TOP
        self.pools: dict[tuple[int, bool], Pool] = {}
        self.segments: dict[Segment, None] = {}
        self.reserved = 0
        self.top = 0
        """Highest reserved bytes so far."""
        self.refused: float = math.inf
        """Smallest reserved bytes that the device's capacity did not allow: with any capacity from ``top`` to below this,
        everything would have gone the same way."""

    # -- chunks ---------------------------------------------------------------------------------------------

    def keep(self, chunk: Chunk) -> None:
        """Enter a free chunk."""
        chunk.free = True
        chunk.born = self.searches
        insort(chunk.segment.pool.chunks, (chunk.size, chunk.address, chunk))

    def take(self, chunk: Chunk) -> None:
        """Remove a free chunk."""
        chunks = chunk.segment.pool.chunks
        chunks.pop(bisect_left(chunks, (chunk.size, chunk.address)))
        chunk.free = False

    def sorted_pools(self, *, small: bool) -> list[Pool]:
        """Every stream's pool of a size class, in the order in which PyTorch walks them."""
        return [self.pools[key] for key in sorted(self.pools) if key[1] == small]

    # -- memory from the device -----------------------------------------------------------------------------

    def segment_size(self, size: int, *, small: bool) -> int:
        """Bytes that are asked of the device for a request of ``size``."""
        if small:
            return SMALL_SEGMENT
        if size < MIN_LARGE:
            return self.large_segment
        return (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE

    def obtain(self, pool: Pool, size: int) -> Chunk | None:
        """Return a chunk of new memory of at least ``size`` bytes, in no pool; None: the device is full."""
        asked = self.segment_size(size, small=pool.small)
        if self.allowed is not None and self.reserved + asked > self.allowed:
            return None
        if self.expandable:
            return self._expand(pool, size)
        if not self._claim(asked):
            return None
        segment = self._place(pool, asked)
        self._tell("segment_alloc", segment, segment.address, asked)
        return segment.first

    def _claim(self, size: int) -> bool:
        """Count bytes of the device as reserved if it has them."""
        demand = self.reserved + size
        if demand > self.capacity:
            self.refused = min(self.refused, demand)
            return False
        self.reserved = demand
        self.top = max(self.top, demand)
        return True

    def _place(self, pool: Pool, size: int) -> Segment:
        """Make a segment at the next addresses."""
        span = size + GAP if self.expandable else size
        address = self.next_address if self.step > 0 else self.next_address - span
        self.next_address += self.step * span
        segment = Segment(pool, address, size, expandable=self.expandable)
        self.segments[segment] = None
        return segment

    def _tell(self, action: Action, segment: Segment, address: int, size: int) -> None:
        if self.listener is not None:
            self.listener(action, segment, address, size)

    # -- expandable segments --------------------------------------------------------------------------------

    def _granule(self, pool: Pool) -> int:
        return SMALL_SEGMENT if pool.small else self.large_segment

    def _expand(self, pool: Pool, size: int) -> Chunk | None:
        """Map until the lowest place with room holds ``size`` bytes in one free chunk; what was mapped before a failure stays."""
        chunk: Chunk | None = self._room(pool, size)
        while chunk is not None and (isinstance(chunk, Hole) or chunk.size < size):
            have = 0 if isinstance(chunk, Hole) else chunk.size
            hole = chunk if isinstance(chunk, Hole) else chunk.after
            chunk = self._map(hole, min(size - have, hole.size)) if isinstance(hole, Hole) else None
        if chunk is not None:
            self.take(chunk)
        return chunk

    def _room(self, pool: Pool, size: int) -> Chunk:
        """The first of neighbouring free chunks and holes that have room together, at the lowest address with a hole."""
        for _, hole in pool.holes:
            first = hole.before if hole.before is not None and hole.before.free else hole
            room = 0
            piece: Chunk | None = first
            while room < size and piece is not None and (piece.free or isinstance(piece, Hole)):
                room += piece.size
                piece = piece.after
            if room >= size:
                return first
        granule = self._granule(pool)
        span = max(RANGE if self.total is None else self.total + self.total // 8, size)
        segment = self._place(pool, -(-span // granule) * granule)
        segment.first = made = Hole(segment, segment.address, segment.size)
        insort(pool.holes, (made.address, made))
        return made

    def _map(self, hole: Hole, nbytes: int) -> Chunk | None:
        """Put memory behind the first ``nbytes`` of a hole, in whole granules; returns the free chunk that has it."""
        segment, pool = hole.segment, hole.segment.pool
        granule = self._granule(pool)
        size = -(-nbytes // granule) * granule
        if not self._claim(size):
            return None
        address = hole.address
        pool.holes.pop(bisect_left(pool.holes, (address,)))
        chunk = Chunk(segment, address, size)
        before, after = hole.before, hole.after
        if hole.size > size:
            rest = Hole(segment, address + size, hole.size - size)
            insort(pool.holes, (rest.address, rest))
            link(rest, after)
            after = rest
        if after is not None and after.free:
            self.take(after)
            chunk.size += after.size
            after = after.after
        if before is not None and before.free:
            self.take(before)
            before.size += chunk.size
            chunk = before
        elif before is not None:
            link(before, chunk)
        else:
            segment.first = chunk
        link(chunk, after)
        self.keep(chunk)
        self._tell("segment_map", segment, address, size)
        return chunk

    def _unmap(self, chunk: Chunk) -> None:
        """Give back the whole granules of a free chunk; a range without any memory vanishes."""
        segment, pool = chunk.segment, chunk.segment.pool
        granule, base = self._granule(pool), segment.address
        start = base - (base - chunk.address) // granule * granule
        end = base + (chunk.address + chunk.size - base) // granule * granule
        if start >= end:
            return
        self.take(chunk)
        before, after = chunk.before, chunk.after
        if end < chunk.address + chunk.size:
            tail = Chunk(segment, end, chunk.address + chunk.size - end)
            link(tail, after)
            self.keep(tail)
            after = tail
        if chunk.address < start:
            chunk.size = start - chunk.address
            self.keep(chunk)
            before = chunk
        lower, upper = start, end
        if isinstance(before, Hole):
            lower = self._forget(before).address
            before = before.before
        if isinstance(after, Hole):
            upper = after.address + self._forget(after).size
            after = after.after
        self.reserved -= end - start
        self._tell("segment_unmap", segment, start, end - start)
        if before is None and after is None:
            del self.segments[segment]
            return
        hole = Hole(segment, lower, upper - lower)
        insort(pool.holes, (lower, hole))
        if before is None:
            segment.first = hole
        else:
            link(before, hole)
        link(hole, after)

    def _forget(self, hole: Hole) -> Hole:
        holes = hole.segment.pool.holes
        return holes.pop(bisect_left(holes, (hole.address,)))[1]

    # -- giving back ----------------------------------------------------------------------------------------

    def _drop(self, chunk: Chunk) -> None:
        """Give a free segment back."""
        self.take(chunk)
        self.reserved -= chunk.size
        del self.segments[chunk.segment]
        self._tell("segment_free", chunk.segment, chunk.address, chunk.size)

    def release(self) -> None:
        """Give back all that is free: whole segments, or whole granules of expandable ones."""
        for small in (False, True):
            for pool in self.sorted_pools(small=small):
                for _, _, chunk in list(pool.chunks):
                    if self.expandable:
                        self._unmap(chunk)
                    elif chunk.before is None and chunk.after is None:
                        self._drop(chunk)

    def release_oversize(self, pool: Pool, size: int) -> bool:
        """With a limit on splitting: give back one cached segment that is large enough, or the largest until they are.

        Returns whether that made room.
        """
        if self.max_split == math.inf or self.expandable:  # only whole segments can go this way
            return False
        wanted = max(size, int(self.max_split))
        chunks = pool.chunks
        at = bisect_left(chunks, (wanted,))
        if at < len(chunks):
            self._drop(chunks[at][2])
            return True
        given = 0
        while given < wanted and chunks and chunks[-1][0] >= self.max_split:
            given += chunks[-1][0]
            self._drop(chunks[-1][2])
        return given >= wanted

    def collect(self) -> None:
        """Give back free segments of the large pool, older ones first, until reserved bytes are below the threshold."""
        threshold = int(self.settings.garbage_collection_threshold * (self.allowed or 0))
        wanted = self.reserved - threshold
        old = [
            chunk
            for pool in self.sorted_pools(small=False)
            for _, _, chunk in pool.chunks
            if chunk.before is None and chunk.after is None
        ]
        given, gone = 0, True
        while given < wanted and gone and old:
            average = sum(self.searches - chunk.born for chunk in old) / len(old)
            going = [c for c in old if self.searches - c.born >= average and not self.expandable]
            gone = bool(going)
            old = [c for c in old if self.searches - c.born < average]
            for chunk in going:
                given += chunk.size
                self._drop(chunk)


def _allowed(fraction: float, total: int | None) -> int | None:
    if fraction == 1:
        return None
    if total is None:
        raise InputError(
            "is a share of the device's total memory, which is not known",
            field=FIELD,
            value=f"per_process_memory_fraction:{fraction}",
        )
    return int(fraction * total)
