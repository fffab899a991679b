"""Replay of a recording through the model of PyTorch's caching allocator: levels, peaks, segments, or the end of memory.

All levels are those after an event.  A storage that its owner gave up while another stream used it is no longer allocated;
its block stays active (PyTorch's word) until the recording says that the stream is done, or the device is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretell.cost.allocator import Action, AllocatorSettings, CachingAllocator, Chunk, DeviceFullError, Segment
from foretell.errors import InputError
from foretell.trace.capacity import required_capacity
from foretell.trace.events import Phase, Recording
from foretell.trace.levels import move, waits
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
    active: Levels
    """The same, with the blocks that wait for another stream."""
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
    changes: Levels
    """Size of the block that each event takes, or (below 0) of the one that it gives back."""
    early: dict[int, int]
    """Storage -> event: it waited for another stream, and the device was full before the recording says that it is free."""
    peak_allocated: Peak
    peak_active: Peak
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
        storages, asked, early = self.recording.storages, self.recording.asked, self.early
        return [
            BlockState(a, size, storages[i].bytes, i, asked.get(i, done) < done)
            for a, size, i in zip(
                self.addresses[known].tolist(), self.changes[known].tolist(), order[known].tolist(), strict=True
            )
            if early.get(i, done) >= done
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

    def listen(action: Action, segment: Segment, address: int, size: int) -> None:
        changes.append(SegmentEvent(len(addresses), action, address, size, segment.stream, segment.small))

    memory = CachingAllocator(
        settings,
        descending=descending,
        capacity=math.inf if capacity is None else capacity,
        total=total,
        listener=listen,
    )
    played = _Played([], [], {})
    addresses = played.addresses
    oom = None
    try:
        _play(recording, memory, played)
    except DeviceFullError as full:
        event = len(addresses)
        index = recording.order[event]
        oom = Oom(
            event, index, recording.storages[index], full.size, full.allocated, full.reserved, capacity, total, memory.allowed
        )
    return _result(recording, settings, capacity, played, changes, memory.retries, oom)


class _Played(NamedTuple):
    """What is noted of each event, and what became free before its time."""

    addresses: list[int]
    changes: list[int]
    early: dict[int, int]


def _play(recording: Recording, memory: CachingAllocator, played: _Played) -> None:
    """Allocate and free in order; note each event's address and by how much blocks in use change."""
    sizes = [storage.bytes for storage in recording.storages]
    streams = [storage.stream for storage in recording.storages]
    held: list[Chunk | None] = [None] * len(sizes)
    asks = recording.asks()
    given_up: dict[int, tuple[int, int]] = {}
    malloc, free = memory.malloc, memory.free
    place, grow = played.addresses.append, played.changes.append
    for at, entry in enumerate(recording.order):
        if at in asks:
            given_up.update(_defer(memory, held, asks[at]))
        if entry >= 0:
            if not sizes[entry]:  # PyTorch answers with a null pointer
                place(-1)
                grow(0)
                continue
            chunk = malloc(sizes[entry], streams[entry])
            held[entry] = chunk
            place(chunk.address)
            grow(chunk.size)
            if memory.settled:
                played.early.update(dict.fromkeys(memory.settled, at))
                memory.settled.clear()
        elif ~entry in given_up:  # its chunk may have been free before, and another's since
            address, size = given_up[~entry]
            place(address)
            grow(-size)
            memory.settle(~entry)
        else:
            gone = held[~entry]
            if gone is None:
                place(-1)
                grow(0)
                continue
            place(gone.address)
            grow(-gone.size)
            free(gone)


def _defer(memory: CachingAllocator, held: list[Chunk | None], indices: list[int]) -> dict[int, tuple[int, int]]:
    """Give up storages that another stream uses; return the places and sizes of their blocks."""
    out: dict[int, tuple[int, int]] = {}
    for index in indices:
        chunk = held[index]
        if chunk is not None:
            memory.defer(index, chunk)
            out[index] = chunk.address, chunk.size
    return out


def _result(
    recording: Recording,
    settings: AllocatorSettings,
    capacity: int | None,
    played: _Played,
    changes: list[SegmentEvent],
    retries: int,
    oom: Oom | None,
) -> Replay:
    """Sum up what was noted."""
    done = len(played.addresses)
    order = np.array(recording.order[:done], dtype=np.int64)
    storage = np.where(order >= 0, order, ~order)
    place = np.array(played.addresses, dtype=np.int64)
    own = np.array(played.changes, dtype=np.int64)
    asked = np.array([s.bytes for s in recording.storages], dtype=np.int64)
    reserved = np.zeros(done + 1, dtype=np.int64)
    np.add.at(reserved, [c.event for c in changes], [c.change for c in changes])
    address = np.full(len(asked), -1, dtype=np.int64)
    block = np.zeros(len(asked), dtype=np.int64)
    taken = order >= 0
    address[order[taken]] = place[taken]
    block[order[taken]] = own[taken]
    in_use, in_blocks, bytes_asked = own.copy(), own.copy(), np.where(taken, asked[storage], -asked[storage])
    for index, begin, end in waits(recording):
        move(in_use, begin, end, int(block[index]))
        move(bytes_asked, begin, end, int(asked[index]))
        move(in_blocks, played.early.get(index, end), end, int(block[index]))
    allocated, active, requested = np.cumsum(in_use), np.cumsum(in_blocks), np.cumsum(bytes_asked)
    reserved = np.cumsum(reserved[:done])
    return Replay(
        recording=recording,
        settings=settings,
        capacity=capacity,
        allocated=allocated,
        active=active,
        reserved=reserved,
        requested=requested,
        addresses=place,
        address=address,
        block=block,
        changes=own,
        early=played.early,
        peak_allocated=_peak(allocated),
        peak_active=_peak(active),
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
