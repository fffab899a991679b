"""How much memory a recording needs to survive: a search over capacities, by replaying."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from foretell.cost.allocator import Action, AllocatorSettings, CachingAllocator, DeviceFullError, Segment, round_size
from foretell.trace.events import Recording

__all__ = ["required_capacity"]

PROBES: Final = 8
"""Replays between the capacities that are known to be enough, in search of one that is not."""


def required_capacity(recording: Recording, settings: AllocatorSettings | None = None, *, total: int | None = None) -> int | None:
    """Return the least capacity (bytes) with which a recording survives; None: a memory fraction ends it on any device.

    Below the reserved peak of a device without end a run can survive by giving back what is free.  Whether it does need not
    grow with the capacity: what was given back, and when, changes the places of all that follows.  So the answer is a
    capacity with which the run was seen to survive, while it was seen to fail with a byte less and, further up, no capacity
    that was tried failed.  One replay speaks for all capacities for which it goes the same way, so that the search by
    halves is exact to the byte.  :data:`PROBES` replays then try the widest stretches above that no replay spoke for; one
    that fails moves the answer above it.

    ``total``: bytes of the whole device, for settings with a memory fraction.

    Raises:
        InputError: a memory fraction without a total.

    """
    search = _Search(recording, settings or AllocatorSettings(), total)
    whole = search.trial(math.inf)
    if not whole.survives:
        return None
    good = [whole]
    found = _halve(search, search.least(), good)
    for _ in range(PROBES):
        gap = _widest_gap(good, found)
        if gap is None:
            break
        tried = search.trial((gap[0] + gap[1]) // 2)
        if tried.survives:
            good.append(tried)
        else:
            good = [t for t in good if t.start >= tried.end]
            found = _halve(search, tried.end, good)
    return int(found)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Whether a run survives, and the capacities (from, to below) with which it goes the same way."""

    survives: bool
    start: float
    end: float


class _Search:
    """Replays of one recording; what all capacities in question have in common is played once."""

    def __init__(self, recording: Recording, settings: AllocatorSettings, total: int | None) -> None:
        self.order = recording.order
        self.sizes = [storage.bytes for storage in recording.storages]
        self.streams = [storage.stream for storage in recording.storages]
        self.asks, self.asked = recording.asks(), recording.asked
        self.settings, self.total = settings, total
        self.rises: list[tuple[int, int]] = []
        """Events of a run on a device without end that need more memory, and how much is reserved then."""
        self.common = CachingAllocator(settings, total=total)
        self.done = 0
        """Events that ``common`` has played, with the chunks that its storages have."""
        self.held: list[Any] = [None] * len(self.sizes)

    def least(self) -> int:
        """Bytes without which no allocator could do it: the most that live storages need together, rounded."""
        rounded = [round_size(size, self.settings.divisions) if size else 0 for size in self.sizes]
        level = most = 0
        for at, entry in enumerate(self.order):
            level -= sum(rounded[index] for index in self.asks.get(at, ()))  # what waits is waited for when the device is full
            if entry >= 0:
                level += rounded[entry]
                most = max(most, level)
            elif ~entry not in self.asked:
                level -= rounded[~entry]
        return most

    def trial(self, capacity: float) -> _Trial:
        """Replay with a capacity."""
        if not self.rises:
            return self._endless()
        memory, copies = self.common.fork(capacity)
        held = [None if chunk is None else copies.get(chunk) for chunk in self.held]
        try:
            self._play(memory, held, range(self.done, len(self.order)))
        except DeviceFullError:
            return _Trial(False, capacity, memory.refused)
        return _Trial(True, memory.top, memory.refused)

    def advance(self, low: float) -> None:
        """Only capacities from ``low`` up are in question: play what is the same with all of them."""
        first = next((event for event, reserved in self.rises if reserved > low), len(self.order))
        if first > self.done:
            self._play(self.common, self.held, range(self.done, first))
            self.done = first

    def _endless(self) -> _Trial:
        """The first run, on a device without end."""
        event = -1

        def counted() -> Iterator[int]:
            nonlocal event
            while event + 1 < len(self.order):
                event += 1
                yield event

        def listen(_action: Action, _segment: Segment, _address: int, _size: int) -> None:
            self.rises.append((event, memory.reserved))

        memory = CachingAllocator(self.settings, total=self.total, listener=listen)
        try:
            self._play(memory, [None] * len(self.sizes), counted())
        except DeviceFullError:
            return _Trial(False, 0, math.inf)
        return _Trial(True, memory.top, math.inf)

    def _play(self, memory: CachingAllocator, held: list[Any], events: Iterable[int]) -> None:
        malloc, free, sizes, streams = memory.malloc, memory.free, self.sizes, self.streams
        order, asks, asked = self.order, self.asks, self.asked
        for event in events:
            if event in asks:
                for index in asks[event]:
                    if sizes[index]:
                        memory.defer(index, held[index])
            entry = order[event]
            if entry < 0:
                if ~entry in asked:
                    memory.settle(~entry)
                elif sizes[~entry]:
                    free(held[~entry])
            elif sizes[entry]:
                held[entry] = malloc(sizes[entry], streams[entry])


def _halve(search: _Search, low: float, good: list[_Trial]) -> float:
    """Return the least surviving capacity above ``low``, which fails or is a bound; enters what it sees survive."""
    high = min(t.start for t in good)
    search.advance(low)
    while low < high:
        tried = search.trial((low + high) // 2)
        if tried.survives:
            good.append(tried)
            high = tried.start
        else:
            low = tried.end
            search.advance(low)
    return high


def _widest_gap(good: list[_Trial], found: float) -> tuple[float, float] | None:
    """The widest stretch of capacities from ``found`` up that no surviving replay spoke for."""
    widest: tuple[float, float] | None = None
    reach = found
    for one in sorted(good, key=lambda t: t.start):
        if one.start > reach and (widest is None or one.start - reach > widest[1] - widest[0]):
            widest = (reach, one.start)
        reach = max(reach, one.end)
    return widest
