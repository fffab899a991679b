"""The history in a memory snapshot, taken back from the end to its beginning and then played forward.

Facts of the format, from torch 2.13 (``c10/cuda/CUDACachingAllocator.cpp``, ``csrc/cuda/Module.cpp``):

* ``size`` of ``alloc``, ``free_requested`` and ``free_completed`` is what was asked for, before rounding; the size of
  a block is in no event, but follows from where the next block or the end of the segment lies;
* ``free_requested`` is when a tensor dies (allocated bytes fall), ``free_completed`` when the block may be used again
  (active bytes fall): they differ only while another stream still works on it;
* ``size`` of the segments' events is what the driver gave or took back: reserved bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Annotated, Any, Final, cast

import msgspec
import numpy as np

from foretell.cost.allocator import MIB, SMALL, Action, AllocatorSettings, round_size
from foretell.trace.events import Storage
from foretell.trace.levels import Indices
from foretell.trace.segments import BlockState, SegmentEvent, SegmentState, segments_of
from foretell.trace.stacks import Stacks

__all__ = ["Event", "History", "Segment"]

GROWS: Final = frozenset({"segment_alloc", "segment_map"})
SHRINKS: Final = frozenset({"segment_free", "segment_unmap"})
OTHERS: Final = frozenset({"alloc", "free_requested", "free_completed", "snapshot", "oom"})

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Word = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Block(msgspec.Struct):
    """A block of a segment at the end."""

    size: Size
    state: str
    requested_size: Size | None = None
    frames: Any = None

    @property
    def requested(self) -> int:
        return self.size if self.requested_size is None else self.requested_size


class Segment(msgspec.Struct):
    """A segment at the end."""

    address: Size
    total_size: Size
    blocks: list[Block]
    stream: Word = 0
    device: Word = 0
    segment_type: str = "large"
    segment_pool_id: tuple[Word, Word] = (0, 0)
    is_expandable: bool = False


class Event(msgspec.Struct):
    """One entry of the history."""

    action: str
    size: Size
    addr: Size = 0
    stream: Word = 0
    pool_id: tuple[Word, Word] = (0, 0)
    frames: Any = None


@dataclass(slots=True)
class _Live:
    """A block in use."""

    requested: int
    stream: int
    size: int | None = None
    """None: it follows from its surroundings."""
    frames: Any = None
    storage: int = -1
    sure: bool = True
    """Whether nothing can still turn out to belong to it."""
    dead: bool = False
    """Asked to be freed, and not yet free."""


class History:
    """The events of one device.  Bytes."""

    def __init__(self, segments: list[Segment], events: list[Event], settings: AllocatorSettings) -> None:
        """Take the events back and play them."""
        self.events, self.settings = events, settings
        self.counts = Counter(event.action for event in events)
        # kinds of events can be left out of the record (skip_actions); one of these two tells enough
        self.dies = "free_requested" if self.counts["free_requested"] else "free_completed"
        self.frees = "free_completed" if self.counts["free_completed"] else "free_requested"
        self.expandable = (
            settings.expandable_segments or bool(self.counts["segment_map"]) or any(s.is_expandable for s in segments)
        )
        self.max_split = settings.max_split_size or 1 << 62
        self.streams: dict[tuple[int, tuple[int, int]], int] = {(0, (0, 0)): 0}
        self.regions: dict[int, SegmentState] = {}
        self.live: dict[int, _Live] = {}
        self.addresses: list[int] = []
        self.starts: list[int] = []
        self.stacks = Stacks()
        self.storages: list[Storage] = []
        self.order: list[int] = []
        self.asked: dict[int, int] = {}
        """Storage -> length of ``order`` when it died, where its block was free later."""
        self.places: list[int] = []
        """Address of each entry of ``order``."""
        self.levels: list[tuple[int, int, int]] = []
        """Allocated, requested, reserved after each."""
        self.corrections: list[tuple[int, int, int]] = []
        self.changes: list[SegmentEvent] = []
        self.allocated = self.requested = 0
        self.reserved = sum(segment.total_size for segment in segments)
        self.strays = 0
        """Blocks that were freed without an event."""
        self.misfits = 0
        """Blocks that do not fit where they are said to be."""
        self._end(segments)
        for event in reversed(events):
            self._take_back(event)
        self.before = -1
        """Entries of ``order`` for what was there before the first event."""
        self.start_reserved = self.peak_reserved = self.reserved
        self._begin()
        self.before = len(self.order)
        for low, high in pairwise(self.starts):
            self.misfits += low + self.regions[low].size > high and not self.expandable
        found = [SegmentEvent(-1, "segment_alloc", r.address, r.size, r.stream, r.small) for r in self.regions.values()]
        blocks = list(self.live.items())  # their sizes can still grow
        for event in events:
            self._play(event)
            self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.curves = self._curves()
        self.start_segments: tuple[SegmentState, ...] = ()
        """As the history found them; empty where it does not tell: with expandable segments, or if it contradicts itself."""
        if not self.expandable and not self.misfits:  # only now are all sizes known
            known = [BlockState(address, b.size or 0, b.requested, b.storage) for address, b in sorted(blocks, key=itemgetter(0))]
            self.start_segments = segments_of(found, known)

    def stream(self, stream: int, pool: tuple[int, int]) -> int:
        """Return a stream's number in the recording; a private pool (CUDA graphs) counts as a stream of its own."""
        return self.streams.setdefault((stream, pool), len(self.streams))

    # -- back -----------------------------------------------------------------------------------------------

    def _end(self, segments: list[Segment]) -> None:
        for segment in segments:
            stream = self.stream(segment.stream, segment.segment_pool_id)
            small = segment.segment_type == "small"
            self.regions[segment.address] = SegmentState(
                segment.address, segment.total_size, stream, small, segment.is_expandable
            )
            address = segment.address
            for block in segment.blocks:
                if block.state.startswith("active"):
                    dead = block.state != "active_allocated"
                    self.live[address] = _Live(block.requested, stream, block.size, block.frames, dead=dead)
                address += block.size

    def _take_back(self, event: Event) -> None:
        action = event.action
        if action == "alloc":
            self.strays += self.live.pop(event.addr, None) is None
        elif action == self.frees:
            self.live[event.addr] = _Live(event.size, self.stream(event.stream, event.pool_id))
        elif action in GROWS:
            self.reserved -= event.size
            self.regions.pop(event.addr, None)
        elif action in SHRINKS:
            self.reserved += event.size
            self.regions[event.addr] = self._region(event)

    def _region(self, event: Event) -> SegmentState:
        expandable = event.action in ("segment_map", "segment_unmap")
        small = event.size == 2 * MIB  # large ones are of 10 MiB at least
        return SegmentState(event.addr, event.size, self.stream(event.stream, event.pool_id), small, expandable)

    # -- forward --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Allocate what was there before the first event, by address."""
        self.addresses, self.starts = sorted(self.live), sorted(self.regions)
        for address in self.addresses:
            live = self.live[address]
            live.sure = live.size is not None
            live.dead = False  # if it waited for another stream, it does so in the end only
            self._allocate(address, live)

    def _play(self, event: Event) -> None:
        action = event.action
        if action == "alloc":
            if event.addr not in self.live:
                insort(self.addresses, event.addr)
            self._adjoin(event.addr)
            live = self.live[event.addr] = _Live(event.size, self.stream(event.stream, event.pool_id), frames=event.frames)
            self._allocate(event.addr, live)
        elif action in GROWS or action in SHRINKS:
            self._resize(event)
        if action == self.dies and event.addr in self.live:
            self._die(self.live[event.addr])
            self.asked[self.live[event.addr].storage] = len(self.order)
        if action == self.frees and event.addr in self.live:
            gone = self.live.pop(event.addr)
            del self.addresses[bisect_left(self.addresses, event.addr)]
            self._die(gone)
            if self.asked.get(gone.storage) == len(self.order):
                del self.asked[gone.storage]
            self._note(~gone.storage, event.addr)

    def _resize(self, event: Event) -> None:
        """The driver gave memory, or was given it back."""
        region = self._region(event)
        known = event.addr in self.regions
        if event.action in GROWS:
            self.reserved += event.size
            self.regions[event.addr] = region
            if not known:
                insort(self.starts, event.addr)
        else:
            self.reserved -= event.size
            if known:
                del self.regions[event.addr]
                del self.starts[bisect_left(self.starts, event.addr)]
        action = cast("Action", event.action)
        self.changes.append(SegmentEvent(len(self.order), action, event.addr, event.size, region.stream, region.small))

    def _allocate(self, address: int, live: _Live) -> None:
        if live.size is None:
            live.size = self._block_size(address, live.requested)
        live.storage = len(self.storages)
        op, line = self.stacks.place(live.frames)
        self.storages.append(Storage(live.requested, op, int(live.storage >= self.before >= 0), "", line, live.stream))
        self.allocated += live.size
        self.requested += live.requested
        self._note(live.storage, address)

    def _note(self, entry: int, address: int) -> None:
        self.order.append(entry)
        self.places.append(address)
        self.levels.append((self.allocated, self.requested, self.reserved))

    def _die(self, live: _Live) -> None:
        if not live.dead:
            live.dead = True
            self.allocated -= live.size or 0
            self.requested -= live.requested

    # -- sizes ----------------------------------------------------------------------------------------------

    def _block_size(self, address: int, requested: int) -> int:
        """Return the size of a block: what was left of the free stretch is split off only if it is worth it.

        The rule is torch's ``should_split``; free neighbours are always merged, so the stretch reaches to the next block in
        use or to the end of the segment.
        """
        rounded = round_size(requested, self.settings.divisions)
        if self.expandable:
            return rounded
        at = bisect_right(self.starts, address) - 1
        limit = self.starts[at] + self.regions[self.starts[at]].size if at >= 0 else 0
        after = bisect_right(self.addresses, address)
        if after < len(self.addresses):
            limit = min(limit, self.addresses[after])
        rest = limit - address - rounded
        if rest < 0:
            self.misfits += 1
            return rounded
        return rounded if rounded <= SMALL or (rest > SMALL and rounded < self.max_split) else rounded + rest

    def _adjoin(self, address: int) -> None:
        """A block begins here, so a free stretch did: what lies before it is the end of the block before it.

        That block may be one from before the history, which was not known to reach so far.
        """
        at = bisect_left(self.addresses, address) - 1
        before = self.live.get(self.addresses[at]) if at >= 0 else None
        if before is None or before.sure or address in self.regions:
            return
        before.sure = True
        more = address - self.addresses[at] - (before.size or 0)
        if 0 < more <= SMALL:
            before.size = (before.size or 0) + more
            if not before.dead:
                self.allocated += more
            self.corrections.append((before.storage, len(self.levels), more))

    def _curves(self) -> Indices:
        """Return allocated, requested and reserved bytes (rows) after each entry of ``order``."""
        curves = np.array(self.levels, dtype=np.int64).reshape(-1, 3).T.copy()
        for start, end, more in self.corrections:  # storages from before the history have the numbers of their events
            curves[0, start:end] += more
        return curves
