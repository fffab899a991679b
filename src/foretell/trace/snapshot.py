"""A replayed recording as a memory snapshot of PyTorch: for https://pytorch.org/memory_viz and ``torch.cuda._memory_viz``.

The form is that of ``torch.cuda.memory._snapshot()`` (2.13 ``csrc/cuda/Module.cpp``), as plain dictionaries, lists, strings
and numbers.  ``time_us`` is the number of the event: no time is predicted.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final

from foretell.cost.allocator import AllocatorSettings, round_size
from foretell.trace.events import Recording, Storage
from foretell.trace.levels import stretches
from foretell.trace.replay import Replay, SegmentEvent, SegmentState

__all__ = ["snapshot", "write_snapshot"]

PROTOCOL: Final = 4
"""The page reads protocols 2 to 4."""
BASE: Final = 1 << 40
"""Where the lowest segment is placed; the page counts in doubles, which the replay's own addresses nearly exhaust."""
_DEVICE: Final = 0
_NO_CATEGORY: Final = "unknown"
"""What the page colours everything that has no category with.  Some of its versions fail on a snapshot whose events have
categories and none of them this one; so the segments' events, which have none, say it."""

Entry = dict[str, Any]


def write_snapshot(recording: Recording, replay: Replay) -> bytes:
    """Return the snapshot as PyTorch would pickle it."""
    return pickle.dumps(snapshot(recording, replay), protocol=PROTOCOL)


def snapshot(recording: Recording, replay: Replay) -> dict[str, Any]:
    """Return the snapshot as plain data: segments at the end, every event, the phases as annotations."""
    return _Writer(recording, replay).snapshot()


class _Writer:
    """Frames are shared between events, as in PyTorch's own snapshots: pickled once each."""

    def __init__(self, recording: Recording, replay: Replay) -> None:
        self.recording, self.replay = recording, replay
        lowest = min((change.address for change in replay.events), default=BASE)
        self.shift = BASE - lowest
        self.known: dict[tuple[str, str, str, int], list[Entry]] = {}
        self.trace: list[Entry] = []

    def snapshot(self) -> dict[str, Any]:
        self.write_events()
        return {
            "segments": [self.segment(state) for state in self.replay.at_end],
            "device_traces": [self.trace],
            "allocator_settings": _settings(self.replay.settings),
            "external_annotations": self.annotations(),
        }

    def frames(self, storage: Storage) -> list[Entry]:
        """Return the stack, innermost first: the operator at its source line, then the module in its phase."""
        key = storage.op, storage.line, storage.module, storage.phase
        known = self.known.get(key)
        if known is None:
            phase = self.recording.phases[storage.phase]
            file, _, number = storage.line.rpartition(":")
            if not number.isdecimal():
                file, number = storage.line, "0"
            during = phase.name if phase.name == "load" else f"{phase.name}, step {phase.step}"
            known = self.known[key] = [
                {"filename": file, "line": int(number), "name": storage.op},
                {"filename": storage.module, "line": 0, "name": during},
            ]
        return known

    def write_events(self) -> None:
        """Write every event; memory that the device gives for it comes before it, as in PyTorch."""
        changes = list(reversed(self.replay.events))
        storages = self.recording.storages
        asks, asked = self.recording.asks(), self.recording.asked
        for event, address in enumerate(self.replay.addresses.tolist()):
            while changes and changes[-1].event <= event:
                self.change(changes.pop())
            self.requested(asks.get(event, ()), event)
            if (
                address < 0 or ~self.recording.order[event] in self.replay.early
            ):  # a storage of no bytes never reaches the allocator
                continue
            entry = self.recording.order[event]
            common = self.common(max(entry, ~entry), address, event)
            if entry >= 0:
                self.trace.append({"action": "alloc", **common, "category": storages[entry].category})
            else:
                if ~entry not in asked:
                    self.trace.append({"action": "free_requested", **common})
                self.trace.append({"action": "free_completed", **common})
        for change in reversed(changes):
            self.change(change)
        self.end_of_memory()

    def requested(self, indices: Iterable[int], event: int) -> None:
        """Write that storages are given up while another stream uses them, and which are free since the device is full."""
        for index in indices:
            address = int(self.replay.address[index])
            if address >= 0:
                self.trace.append({"action": "free_requested", **self.common(index, address, event)})
        for index, at in self.replay.early.items():
            if at == event:
                self.trace.append({"action": "free_completed", **self.common(index, int(self.replay.address[index]), event)})

    def common(self, index: int, address: int, event: int) -> Entry:
        """Return what all events of a storage's block have."""
        storage = self.recording.storages[index]
        at = {"addr": address + self.shift, "size": storage.bytes, "stream": storage.stream, "time_us": event}
        return {**at, "frames": self.frames(storage)}

    def change(self, change: SegmentEvent) -> None:
        self.trace.append(
            {
                "action": change.action,
                "addr": change.address + self.shift,
                "size": change.size,
                "stream": change.stream,
                "time_us": change.event,
                "frames": [],
                "category": _NO_CATEGORY,
            }
        )

    def end_of_memory(self) -> None:
        """Write the request that failed."""
        oom = self.replay.oom
        if oom is not None:
            self.trace.append(
                {
                    "action": "oom",
                    "device_free": oom.free(),
                    "size": round_size(oom.storage.bytes, self.replay.settings.divisions),
                    "stream": oom.storage.stream,
                    "time_us": oom.event,
                    "frames": self.frames(oom.storage),
                }
            )

    def segment(self, state: SegmentState) -> Entry:
        storages = self.recording.storages
        blocks = [
            {
                "address": block.address + self.shift,
                "size": block.size,
                "requested_size": block.requested,
                "state": "inactive" if block.storage is None else "active_awaiting_free" if block.waits else "active_allocated",
                "frames": [] if block.storage is None else self.frames(storages[block.storage]),
            }
            for block in state.blocks
        ]
        return {
            "device": _DEVICE,
            "address": state.address + self.shift,
            "total_size": state.size,
            "allocated_size": state.allocated,
            "active_size": state.active,
            "requested_size": sum(block.requested for block in state.blocks),
            "stream": state.stream,
            "segment_type": "small" if state.small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": state.expandable,
            "frames": [],
            "blocks": blocks,
        }

    def annotations(self) -> list[Entry]:
        """Return the phases, as PyTorch keeps the ranges of its profiler."""
        out: list[Entry] = []
        for phase, end in stretches(self.recording, len(self.replay.allocated)):
            name = phase.name if phase.name == "load" else f"{phase.name} {phase.step}.{phase.micro}"
            out += [
                {"stage": stage, "name": name, "device": _DEVICE, "time_us": moment}
                for stage, moment in (("START", phase.start), ("END", end))
            ]
        return out


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    """Return the settings under PyTorch's names."""
    divisions = settings.divisions or (0,) * 16
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1 if settings.max_split_size is None else settings.max_split_size,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "roundup_power2_divisions": {str(1 << i): number for i, number in enumerate(divisions)},
    }
