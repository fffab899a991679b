"""What a memory snapshot of PyTorch says: bytes at the end, the levels of its history, and that history as a recording.

A snapshot (``torch.cuda.memory._dump_snapshot``) holds the allocator's segments as they are, and the last events that
``_record_memory_history`` kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from foretell.cost.allocator import MIB, AllocatorSettings
from foretell.errors import ConfigError, InputError
from foretell.trace.events import Phase, Recording
from foretell.trace.history import GROWS, OTHERS, SHRINKS, Event, History, Segment, Word
from foretell.trace.levels import Indices
from foretell.trace.restricted import LIMIT_BYTES, read_pickle
from foretell.trace.segments import SegmentEvent, SegmentState

__all__ = ["Measured", "Totals", "read_measured"]

LIMIT_EVENTS: Final = 5_000_000
"""Events and blocks of one file, counted before they are looked at (a pickle can refer to one list a million times)."""

LIMIT_SUM: Final = 1 << 62
"""Bytes of all events together, so that every level is a number of 64 bits."""


class _Snapshot(msgspec.Struct):
    segments: list[Segment]
    device_traces: list[list[Event]] = []
    allocator_settings: dict[str, Any] = {}


class Totals(msgspec.Struct, frozen=True):
    """Bytes at one moment."""

    allocated: int
    """In blocks that tensors hold: ``torch.cuda.memory_allocated``."""
    requested: int
    """What was asked for in those blocks; pytorch.org/memory_viz draws this."""
    reserved: int
    """In segments: ``torch.cuda.memory_reserved``."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One device's part of a snapshot.  Bytes, and indices into ``recording.order``."""

    device: int
    end: Totals
    pending: int
    """Bytes freed whose blocks another stream still uses, at the end (active minus allocated)."""
    segments: int
    """At the end."""
    by_stream: dict[int, Totals]
    """Totals at the end; the keys are the recording's streams."""
    start: Totals
    """Before the first event of the history.  All zero: it begins with the run."""
    peak: Totals
    """The highest of each during the history, not of one moment; without a history, the end."""
    peak_at: int | None
    """Event of the highest allocated level; None: there is nothing."""
    recording: Recording
    """The history; what was there before it is allocated first, by address, in the phase ``load``."""
    before: int
    """Events that stand for what was there before the history."""
    allocated: Indices
    """After each event."""
    requested: Indices
    """After each event."""
    reserved: Indices
    """After each event."""
    addresses: Indices
    """Of the block that each event takes or gives back."""
    changes: tuple[SegmentEvent, ...]
    """What the driver gave and was given back."""
    told: bool
    """Whether the history says where everything was when it began, without contradiction."""
    start_segments: tuple[SegmentState, ...]
    """Segments and blocks before the first event of the history; empty where it does not tell (expandable segments)."""
    settings: AllocatorSettings
    notes: tuple[str, ...]
    """What the numbers do not hold."""

    @property
    def whole(self) -> bool:
        """Whether the history begins with an empty allocator."""
        return not self.start.reserved and self.before < len(self.recording.order)


def read_measured(data: bytes, where: str, *, device: int | None = None, limit_bytes: int = LIMIT_BYTES) -> Measured:
    """Return what a snapshot's file says about ``device`` (by default the only one that has memory or history).

    ``where`` names the file in errors.

    Raises:
        ConfigError: no pickle of plain data (see :func:`~foretell.trace.restricted.read_pickle`), or no snapshot.
        InputError: the device is not in it, or must be said.

    """
    raw = read_pickle(data, where, limit_bytes=limit_bytes)
    if isinstance(raw, list):  # what torch.cuda.memory_snapshot() returns
        raw = {"segments": raw}
    _check_size(raw, where)
    try:
        snapshot = msgspec.convert(raw, _Snapshot)
    except msgspec.ValidationError as error:
        raise ConfigError(f"is no memory snapshot of PyTorch: {error}", where=where) from error
    _check_segments(snapshot.segments, where)
    chosen = _choose(snapshot, device, where)
    events = snapshot.device_traces[chosen] if chosen < len(snapshot.device_traces) else []
    segments = [segment for segment in snapshot.segments if segment.device == chosen]
    if sum(event.size for event in events) + sum(segment.total_size for segment in segments) > LIMIT_SUM:
        raise ConfigError("has sizes that add up to more than any device could have served", where=where)
    settings, unread = _settings(snapshot.allocator_settings)
    return _measured(chosen, segments, History(segments, events, settings), unread)


def _check_size(raw: Any, where: str) -> None:
    """Refuse more events and blocks than anyone would look at, without looking at them."""
    if not isinstance(raw, dict):
        raise ConfigError("is no memory snapshot of PyTorch: no dictionary", where=where)
    total = 0
    for key, inner in (("segments", "blocks"), ("device_traces", None)):
        outer = raw.get(key, [])
        if not isinstance(outer, list):
            raise ConfigError("is no list", field=key, where=where)
        total += len(outer)
        for item in outer[:LIMIT_EVENTS]:
            listed = item.get(inner) if inner is not None and isinstance(item, dict) else item
            total += len(listed) if isinstance(listed, list) else 0
    if total > LIMIT_EVENTS:
        raise ConfigError(f"holds {total} events and blocks, more than {LIMIT_EVENTS}", where=where)


def _check_segments(segments: Sequence[Segment], where: str) -> None:
    """Refuse segments that are not made of their blocks, or that overlap."""
    ends: dict[Word, int] = {}
    for number, segment in sorted(enumerate(segments), key=lambda item: item[1].address):
        field = f"segments[{number}]"
        if sum(block.size for block in segment.blocks) != segment.total_size:
            raise ConfigError("is not the sum of its blocks", field=f"{field}.total_size", value=segment.total_size, where=where)
        if segment.address < ends.get(segment.device, 0):
            raise ConfigError("overlaps another segment", field=f"{field}.address", value=segment.address, where=where)
        ends[segment.device] = segment.address + segment.total_size


def _choose(snapshot: _Snapshot, device: int | None, where: str) -> int:
    """Return the device that is asked for, or the only one there is."""
    known = {segment.device for segment in snapshot.segments}
    known |= {number for number, trace in enumerate(snapshot.device_traces) if trace}
    if device is None:
        if len(known) > 1:
            raise InputError("must be said: the snapshot holds several", field="device", allowed=sorted(known), where=where)
        return next(iter(known), 0)
    if device not in known:
        raise InputError("is not in the snapshot", field="device", value=device, allowed=sorted(known), where=where)
    return device


def _settings(raw: dict[str, Any]) -> tuple[AllocatorSettings, list[str]]:
    """Return the allocator's settings, as the environment gave them or else as they are listed, and what cannot be said."""
    split, divisions = raw.get("max_split_size"), raw.get("roundup_power2_divisions")
    every = tuple(divisions.values()) if isinstance(divisions, dict) else ()
    try:
        for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            text = raw.get(key)
            if isinstance(text, str) and text:
                return AllocatorSettings.parse(text, where=key), []
        made = AllocatorSettings(
            expandable_segments=raw.get("expandable_segments") is True,
            max_split_size_mb=split // MIB if isinstance(split, int) and 0 < split < 1 << 62 else None,
            roundup_power2_divisions=every if every and all(isinstance(n, int) for n in every) else 0,
        )
    except InputError as error:
        return AllocatorSettings(), [f"The allocator's settings are taken for PyTorch's own, for these were not read: {error}"]
    return made, []


def _measured(device: int, segments: list[Segment], history: History, unread: list[str]) -> Measured:
    """Sum up."""
    by_stream = _by_stream(segments, history)
    end = Totals(
        sum(t.allocated for t in by_stream.values()),
        sum(t.requested for t in by_stream.values()),
        sum(t.reserved for t in by_stream.values()),
    )
    active = sum(block.size for s in segments for block in s.blocks if block.state.startswith("active"))
    allocated, requested, reserved = history.curves
    before = history.before
    found = (int(allocated[before - 1]), int(requested[before - 1])) if before else (0, 0)
    peak = Totals(int(allocated.max(initial=0)), int(requested.max(initial=0)), history.peak_reserved)
    phases = [Phase("load", 0, 0, 0), *([Phase("other", 0, 0, before)] if history.events else [])]
    about = {
        "source": "a memory snapshot of PyTorch",
        "device": f"cuda:{device}",
        "categories": "not known: a snapshot does not tell what a block is for",
    }
    return Measured(
        device=device,
        end=end,
        pending=active - end.allocated,
        segments=len(segments),
        by_stream=by_stream,
        start=Totals(*found, history.start_reserved),
        peak=peak if history.counts["alloc"] else end,
        peak_at=int(allocated.argmax()) if len(allocated) else None,
        recording=Recording(history.storages, history.order, phases, about, asked=history.asked),
        before=before,
        allocated=allocated,
        requested=requested,
        reserved=reserved,
        addresses=np.array(history.places, dtype=np.int64),
        changes=tuple(history.changes),
        told=not history.expandable and not history.misfits and bool(history.counts["alloc"]),
        start_segments=history.start_segments,
        settings=history.settings,
        notes=(*unread, *_notes(history, end)),
    )


def _by_stream(segments: list[Segment], history: History) -> dict[int, Totals]:
    """Add up the segments of each stream."""
    out: dict[int, Totals] = {}
    for segment in segments:
        stream = history.stream(segment.stream, segment.segment_pool_id)
        old = out.get(stream, Totals(0, 0, 0))
        used = [block for block in segment.blocks if block.state == "active_allocated"]
        out[stream] = Totals(
            old.allocated + sum(block.size for block in used),
            old.requested + sum(block.requested for block in used),
            old.reserved + segment.total_size,
        )
    return dict(sorted(out.items()))


def _notes(history: History, end: Totals) -> list[str]:
    """Say what the numbers do not hold."""
    counts = history.counts
    out = []
    if not counts["alloc"]:
        out.append("No history was recorded (torch.cuda.memory._record_memory_history): only the end is known.")
    if history.strays:
        out.append(
            f"{history.strays} blocks were freed without an event: the record stopped before the snapshot was taken, and what "
            "came between is not known."
        )
    elif counts["alloc"] and not history.misfits and history.allocated != end.allocated:
        more = history.allocated - end.allocated
        out.append(f"Played forward, the history ends with {more:+d} allocated bytes of what the snapshot holds.")
    if history.misfits:
        out.append(f"{history.misfits} blocks or segments do not fit where the history says that they are.")
    if counts["oom"]:
        out.append(f"The allocator ran out of memory {counts['oom']} times.")
    unknown = sorted(set(counts) - GROWS - SHRINKS - OTHERS)
    return [*out, *(f"{counts[action]} events {action!r} are not known and were left out." for action in unknown)]
