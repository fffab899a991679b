"""A replayed recording as a trace for https://ui.perfetto.dev or chrome://tracing (the Trace Event Format).

Counters: allocated, reserved, and allocated by category.  Phases and steps are slices; the peak, and the end of memory, are
instants.  The viewers know nothing but time, so the number of an event stands where microseconds should: no time is
predicted.  Bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from foretell.trace.events import CATEGORIES, Recording
from foretell.trace.levels import Indices, category_levels, owners, phase_at, stretches, thin
from foretell.trace.replay import Replay
from foretell.units import GIB

__all__ = ["write_chrome"]

POINTS: Final = 20_000
"""Of each counter at most."""
_OWNERS: Final = 20
_PROCESS: Final = {"pid": 1}
_STEPS, _PHASES = 1, 2
"""Tracks of slices (threads, to the viewer)."""
_ABOUT: Final = "1 microsecond here is 1 event of the allocator (an allocation or a free); no time is predicted"

Event = dict[str, Any]


def write_chrome(recording: Recording, replay: Replay) -> bytes:
    """Return the trace as JSON."""
    events = [*_names(), *_slices(recording, replay), *_counters(recording, replay), *_instants(recording, replay)]
    other = {"unit of time": _ABOUT, "unit of counters": "bytes"} | {str(k): str(v) for k, v in recording.about.items()}
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def _names() -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "args": {"name": f"GPU memory, predicted ({_ABOUT})"}, **_PROCESS}
    for track, name in ((_STEPS, "steps"), (_PHASES, "phases")):
        yield {"ph": "M", "name": "thread_name", "tid": track, "args": {"name": name}, **_PROCESS}


def _slices(recording: Recording, replay: Replay) -> Iterator[Event]:
    """Yield a slice for every phase that had an event, and for every step."""
    steps: dict[int, tuple[int, int]] = {}
    for phase, end in stretches(recording, len(replay.allocated)):
        args = {"step": phase.step, "micro": phase.micro}
        yield _slice(_PHASES, phase.name, phase.start, end, args)
        if phase.name != "load":
            steps[phase.step] = (steps.get(phase.step, (phase.start, 0))[0], end)
    for step, (start, end) in steps.items():
        yield _slice(_STEPS, f"step {step}", start, end, {})


def _slice(track: int, name: str, start: int, end: int, args: Event) -> Event:
    return {"ph": "X", "name": name, "ts": start, "dur": end - start, "tid": track, "args": args, **_PROCESS}


def _counters(recording: Recording, replay: Replay) -> Iterator[Event]:
    """Yield each counter wherever it changes, thinned out; peaks are kept."""
    if not len(replay.allocated):
        return
    at = thin([replay.allocated, replay.reserved], POINTS)
    categories = category_levels(recording, replay.block, at)
    present: list[tuple[str, Indices]] = [(name, row) for name, row in zip(CATEGORIES, categories, strict=True) if row.any()]
    tracks: list[tuple[str, list[tuple[str, Indices]]]] = [
        ("allocated", [("bytes", replay.allocated[at])]),
        ("reserved", [("bytes", replay.reserved[at])]),
        ("allocated by category", present),
    ]
    for title, rows in tracks:
        table = np.array([row for _, row in rows], dtype=np.int64).reshape(len(rows), len(at))
        changed = np.ones(len(at), dtype=bool)
        changed[1:] = (np.diff(table, axis=1) != 0).any(axis=0)
        for column in np.flatnonzero(changed).tolist():
            args = {name: int(row[column]) for name, row in rows}
            yield {"ph": "C", "name": title, "ts": int(at[column]), "args": args, **_PROCESS}


def _instants(recording: Recording, replay: Replay) -> Iterator[Event]:
    """Yield the peak with its owners, and the end of memory."""
    peak = replay.peak_allocated
    if peak.event is not None:
        phase = phase_at(recording, peak.event)
        listed = [msgspec.to_builtins(owner) for owner in owners(recording, replay.block, peak.event)[:_OWNERS]]
        args = {"bytes": peak.bytes, "phase": phase.name, "step": phase.step, "micro": phase.micro, "owners": listed}
        yield _instant(f"peak: {peak.bytes / GIB:.2f} GiB allocated", peak.event, args)
    if replay.oom is not None:
        yield _instant("out of memory", replay.oom.event, {"message": replay.oom.message()})


def _instant(name: str, event: int, args: Event) -> Event:
    return {"ph": "i", "s": "p", "name": name, "ts": event, "tid": _PHASES, "args": args, **_PROCESS}
