"""Replay of a recording through the model of PyTorch's caching allocator: levels, peaks, segments, or the end of memory.

All levels are those after an event.  A recording frees a storage for all streams at once: no block waits for another
stream, and what PyTorch calls active bytes are the allocated bytes here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from foretell.cost.allocator import Action, AllocatorSettings, CachingAllocator, Chunk, DeviceFullError, Segment
from foretell.errors import InputError
from foretell.trace.capacity import required_capacity
from foretell.trace.events import Phase, Recording
from foretell.trace.oom import Oom
from foretell.trace.segments import BlockState, SegmentEvent, SegmentState, segments_of

__all__ = ["BlockState", "Fragmentation", "Oom", "Peak", "PhasePeaks", "Replay", "SegmentEvent", "SegmentState", "replay",
           "required_capacity"]  # fmt: skip

Levels = NDArray[np.int64]

DEFAULT: Final = AllocatorSettings()


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest of a level."""

    bytes: int
    event: int | None
    """Index of the first event after which it was so high; None: there was no event."""


@dataclass(frozen=True, slots=True)
class PhasePeaks:
    """The highest levels of one phase, what it began with included (as after ``reset_peak_memory_stats``).  Bytes."""

    phase: Phase
    allocated: int
    reserved: int
    requested: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Reserved memory that is not in use, at the allocated peak.  Bytes."""

    unused: int
    """Reserved minus allocated."""
    largest_free: int
    """The largest free block: any request above it needs new memory of the device."""


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """What the allocator does with a recording.  Bytes and indices into :attr:`Recording.order`.

    At the end of memory (:attr:`oom`) the levels stop before the event that failed.
    """

    recording: Recording
    settings: AllocatorSettings
    capacity: int | None
    allocated: Levels
    """In blocks in use, after each event: sizes rounded, and what was not worth splitting off."""
    reserved: Levels
    """In segments, after each event."""
    requested: Levels
    """What was asked for in the blocks in use, after each event."""
    addresses: Levels
    """Of the block that each event takes or gives back; -1: it is of a storage of no bytes, which has none."""
    address: Levels
    """Of each storage's block (the last that it had); -1: it had none."""
    block: Levels
    """Size of each storage's block (the last that it had)."""
    peak_allocated: Peak
    peak_reserved: Peak
    phases: tuple[PhasePeaks, ...]
    """Of every phase that began."""
    events: tuple[SegmentEvent, ...]
    """Memory taken from the device or given back, in order."""
    retries: int
    """Times that free segments were given back because the device was full."""
    oom: Oom | None
    """None: the run survives."""

    def segments(self, event: int | None = None) -> tuple[SegmentState, ...]:
        """Return the segments and their blocks after an event (None: at the end), by address."""
        done = len(self.allocated) if event is None else event + 1
        happened = self.events if event is None else [e for e in self.events if e.event <= event]
        return segments_of(happened, self._live(done))

    @property
    def at_end(self) -> tuple[SegmentState, ...]:
        """Segments and blocks after the last event."""
        return self.segments()

    @property
    def at_peak(self) -> tuple[SegmentState, ...]:
        """Segments and blocks at the allocated peak."""
        return self.segments(self.peak_allocated.event)

    @property
    def fragmentation(self) -> Fragmentation:
        """What is reserved and not in use at the allocated peak."""
        at = self.peak_allocated.event
        if at is None:
            return Fragmentation(0, 0)
        largest = max((segment.largest_free for segment in self.at_peak), default=0)
        return Fragmentation(int(self.reserved[at] - self.allocated[at]), largest)

    def _live(self, done: int) -> list[BlockState]:
        """The blocks in use after so many events, by address."""
        order = np.array(self.recording.order[:done], dtype=np.int64)
        last = np.full(len(self.recording.storages), -1, dtype=np.int64)
        last[np.where(order >= 0, order, ~order)] = np.arange(len(order))
        known = last[last >= 0]
        known = known[(order[known] >= 0) & (self.addresses[known] >= 0)]
        known = known[np.argsort(self.addresses[known])]
        changes = np.diff(self.allocated[:done], prepend=0)
        storages = self.recording.storages
        return [
            BlockState(a, size, storages[i].bytes, i)
            for a, size, i in zip(self.addresses[known].tolist(), changes[known].tolist(), order[known].tolist(), strict=True)
        ]


def replay(
    recording: Recording,
    settings: AllocatorSettings = DEFAULT,
    *,
    capacity: int | None = None,
    total: int | None = None,
    descending: bool = True,
) -> Replay:
    """Play a recording until it ends, or until a request does not fit.

    Args:
        recording: storages and the order in which they are allocated and freed.
        settings: of the allocator (default: PyTorch's own).
        capacity: bytes that the allocator may reserve (what the device has left for it); None: without end.
        total: bytes of the whole device; needed by settings with a memory fraction.
        descending: whether the driver places segments at falling addresses, which decides between blocks of equal size.

    Raises:
        InputError: a negative capacity, or a memory fraction without a total.

    """
    if capacity is not None and capacity < 0:
        raise InputError("must not be negative", field="capacity", value=capacity)
    changes: list[SegmentEvent] = []
    addresses: list[int] = []
    blocks: list[int] = []

    def listen(action: Action, segment: Segment, address: int, size: int) -> None:
        changes.append(SegmentEvent(len(addresses), action, address, size, segment.stream, segment.small))

    memory = CachingAllocator(
        settings,
        descending=descending,
        capacity=math.inf if capacity is None else capacity,
        total=total,
        listener=listen,
    )
    oom = None
    try:
        _play(recording, memory, addresses, blocks)
    except DeviceFullError as full:
        event = len(addresses)
        index = recording.order[event]
        oom = Oom(
            event, index, recording.storages[index], full.size, full.allocated, full.reserved, capacity, total, memory.allowed
        )
    return _result(recording, settings, capacity, addresses, blocks, changes, memory.retries, oom)


def _play(recording: Recording, memory: CachingAllocator, addresses: list[int], blocks: list[int]) -> None:
    """Allocate and free in order; note each event's address and by how much allocated bytes change."""
    sizes = [storage.bytes for storage in recording.storages]
    streams = [storage.stream for storage in recording.storages]
    held: list[Chunk | None] = [None] * len(sizes)
    malloc, free = memory.malloc, memory.free
    place, grow = addresses.append, blocks.append
    for entry in recording.order:
        if entry >= 0:
            if not sizes[entry]:  # PyTorch answers with a null pointer
                place(-1)
                grow(0)
                continue
            chunk = malloc(sizes[entry], streams[entry])
            held[entry] = chunk
            place(chunk.address)
            grow(chunk.size)
        else:
            gone = held[~entry]
            if gone is None:
                place(-1)
                grow(0)
                continue
            place(gone.address)
            grow(-gone.size)
            free(gone)


def _result(
    recording: Recording,
    settings: AllocatorSettings,
    capacity: int | None,
    addresses: list[int],
    blocks: list[int],
    changes: list[SegmentEvent],
    retries: int,
    oom: Oom | None,
) -> Replay:
    """Sum up what was noted."""
    done = len(addresses)
    order = np.array(recording.order[:done], dtype=np.int64)
    storage = np.where(order >= 0, order, ~order)
    place = np.array(addresses, dtype=np.int64)
    grown = np.array(blocks, dtype=np.int64)
    asked = np.array([s.bytes for s in recording.storages], dtype=np.int64)
    reserved = np.zeros(done + 1, dtype=np.int64)
    np.add.at(reserved, [c.event for c in changes], [c.change for c in changes])
    allocated = np.cumsum(grown)
    requested = np.cumsum(np.where(order >= 0, asked[storage], -asked[storage]))
    reserved = np.cumsum(reserved[:done])
    address = np.full(len(asked), -1, dtype=np.int64)
    block = np.zeros(len(asked), dtype=np.int64)
    taken = order >= 0
    address[order[taken]] = place[taken]
    block[order[taken]] = grown[taken]
    return Replay(
        recording=recording,
        settings=settings,
        capacity=capacity,
        allocated=allocated,
        reserved=reserved,
        requested=requested,
        addresses=place,
        address=address,
        block=block,
        peak_allocated=_peak(allocated),
        peak_reserved=_peak(reserved),
        phases=tuple(_phase_peaks(recording, allocated, reserved, requested)),
        events=tuple(changes),
        retries=retries,
        oom=oom,
    )


def _peak(level: Levels) -> Peak:
    if not len(level):
        return Peak(0, None)
    at = int(level.argmax())
    return Peak(int(level[at]), at)


def _phase_peaks(recording: Recording, *levels: Levels) -> list[PhasePeaks]:
    """Peaks of every phase that began."""
    done = len(levels[0])
    starts = [phase.start for phase in recording.phases if phase.start <= done]
    out: list[PhasePeaks] = []
    for phase, end in zip(recording.phases, [*starts[1:], done], strict=False):
        begin = max(0, phase.start - 1)  # with the level that the phase found
        peaks = [int(level[begin:end].max(initial=0)) for level in levels]
        out.append(PhasePeaks(phase, *peaks))
    return out
