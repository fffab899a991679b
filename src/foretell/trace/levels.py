"""Levels over a recording's events: by category, thinned out to be shown, and whom the bytes of one moment belong to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretell.trace.events import CATEGORIES, Category, Phase, Recording

__all__ = ["Indices", "Owner", "category_levels", "live_at", "move", "owners", "phase_at", "stretches", "thin",
           "waits"]  # fmt: skip

Indices = NDArray[np.int64]


class Owner(msgspec.Struct, frozen=True):
    """Storages of one origin that live at one moment."""

    bytes: int
    """In blocks of the allocator."""
    count: int
    category: Category
    op: str
    module: str
    line: str

    @property
    def place(self) -> str:
        """The module's path, else the line, else the operator."""
        return self.module or self.line or self.op


def _entries(recording: Recording) -> tuple[Indices, Indices]:
    """Return each event's storage, and +1 where it is allocated, -1 where it is freed."""
    order = np.asarray(recording.order, dtype=np.int64)
    allocates = order >= 0
    return np.where(allocates, order, ~order), np.where(allocates, 1, -1)


def category_levels(recording: Recording, sizes: Indices, at: Indices) -> Indices:
    """Return the bytes of each of :data:`CATEGORIES` (rows) after each event of ``at`` (columns).

    ``sizes``: bytes of each storage's block.  A storage counts until its owner gives it up.
    """
    storages, signs = _entries(recording)
    number = {name: i for i, name in enumerate(CATEGORIES)}
    known = np.array([number[s.category] for s in recording.storages], dtype=np.int64)
    category = known[storages]
    change = signs * np.asarray(sizes, dtype=np.int64)[storages]
    out = np.zeros((len(CATEGORIES), len(at)), dtype=np.int64)
    for i in range(len(CATEGORIES)):
        part = np.where(category == i, change, 0)
        for index, begin, end in waits(recording):
            if known[index] == i:
                move(part, begin, end, int(sizes[index]))
        out[i] = np.cumsum(part)[at]
    return out


def waits(recording: Recording) -> list[tuple[int, int, int]]:
    """Return the storages that waited for another stream, with the events before which they were given up, and at which free.

    Either can be the number of events: after the last one.
    """
    if not recording.asked:
        return []
    ends = {~entry: at for at, entry in enumerate(recording.order) if entry < 0}
    return [(index, begin, ends.get(index, len(recording.order))) for index, begin in recording.asked.items()]


def move(change: Indices, begin: int, end: int, size: int) -> None:
    """Let bytes go at one event that went at a later one."""
    if begin < len(change):
        change[begin] -= size
    if end < len(change):
        change[end] += size


def thin(curves: Sequence[Indices], most: int) -> Indices:
    """Return at most ``most`` events that keep the shape: first, last, and each curve's highest and lowest of every stretch.

    The highest of a curve as a whole is always kept, as the first of its equals.

    >>> thin([np.array([0, 1, 9, 1, 1, 2, 1, 1, 0])], 6).tolist()
    [0, 2, 5, 8]
    """
    events = len(curves[0])
    if events <= most:
        return np.arange(events)
    stretches = max(1, (most - 2) // (2 * len(curves)))
    edges = np.linspace(0, events, stretches + 1).astype(np.int64)
    kept = {0, events - 1}
    for curve in curves:
        for start, end in pairwise(edges):
            stretch = curve[start:end]
            kept.add(int(start + stretch.argmax()))
            kept.add(int(start + stretch.argmin()))
    return np.array(sorted(kept), dtype=np.int64)


def live_at(recording: Recording, at: int) -> Indices:
    """Return the storages that live after event ``at``: what waits for another stream does so no more."""
    storages, signs = _entries(recording)
    held = np.bincount(storages[: at + 1], weights=signs[: at + 1], minlength=len(recording.storages))
    held[[index for index, begin in recording.asked.items() if begin <= at]] = 0
    return np.flatnonzero(held > 0)


def owners(recording: Recording, sizes: Indices, at: int) -> list[Owner]:
    """Return whom the bytes after event ``at`` belong to, largest first."""
    sums: dict[tuple[Category, str, str, str], list[int]] = {}
    for index in live_at(recording, at).tolist():
        storage = recording.storages[index]
        entry = sums.setdefault((storage.category, storage.op, storage.module, storage.line), [0, 0])
        entry[0] += int(sizes[index])
        entry[1] += 1
    made = [Owner(size, count, *key) for key, (size, count) in sums.items()]
    return sorted(made, key=lambda owner: (-owner.bytes, owner.place, owner.op))


def stretches(recording: Recording, done: int) -> list[tuple[Phase, int]]:
    """Return the phases that had an event among the first ``done``, and where each ends."""
    ends = [*(phase.start for phase in recording.phases[1:]), done]
    pairs = [(phase, min(end, done)) for phase, end in zip(recording.phases, ends, strict=True)]
    return [(phase, end) for phase, end in pairs if phase.start < end]


def phase_at(recording: Recording, at: int) -> Phase:
    """Return the phase that event ``at`` belongs to."""
    starts = [phase.start for phase in recording.phases]
    return recording.phases[int(np.searchsorted(starts, at, side="right")) - 1]
