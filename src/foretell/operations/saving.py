"""Saving and loading checkpoints: how long training stands still, when the checkpoint is safe, how long reading it takes.

Three different times.  Bytes, seconds, bytes a second.  Constants that are assumed stand in
``catalog/data/operations/checkpoint.json`` with the published runs that they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.cost.arrays import Value, maximum, minimum
from foretell.errors import InputError
from foretell.operations._data import data

__all__ = ["MODES", "Assumed", "SaveTimes", "Storage", "blocked_share", "defaults", "save_times", "transfer_s"]

MODES: Final = ("sync", "async", "memory")
"""Training waits for the whole save; for the copy to the host alone; or the copy stays in the memory of hosts."""


def defaults() -> Mapping[str, Any]:
    """Return the assumed constants, each {value, low, high, unit, what, why, sources}."""
    return data("checkpoint")


def transfer_s(size: Value, bytes_per_s: Value) -> Value:
    """Return seconds that bytes take at a rate.

    >>> round(transfer_s(530e9 * 12, 20e9 / 8) / 60, 1)  # Megatron-Turing NLG 530B at 20 Gbit/s
    42.4
    """
    return size / bytes_per_s


def blocked_share(block: Value, interval: Value) -> Value:
    """Return the share of the time for which training stands still: d / (t + d), 0 to below 1.

    >>> round(blocked_share(40.0, 10500.0), 4)  # BLOOM's 40 s about every three hours
    0.0038
    """
    return block / (interval + block)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where checkpoints go."""

    writers: Value
    writer_bytes_per_s: Value
    """What one writing process reaches."""
    limit_bytes_per_s: Value
    """What the filesystem or object store takes in at most, all writers together."""
    read_bytes_per_s: Value | None = None
    """What all readers get together; None: slower than writing by what published runs saw."""

    @property
    def write_bytes_per_s(self) -> Value:
        """What all writers reach together."""
        return minimum(self.writers * self.writer_bytes_per_s, self.limit_bytes_per_s)


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Seconds of one checkpoint."""

    block: Value
    """Training stands still."""
    save: Value
    """From the block's start until the checkpoint is safe."""
    load: Value
    """Until a restarted job has read it."""

    @property
    def lag(self) -> Value:
        """From the block's end until the checkpoint is safe."""
        return maximum(self.save - self.block, 0.0)


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is assumed of saving where nothing is known."""

    coordination_s: Value
    copy_share: Value
    """Of the host link's rate."""
    load_over_save: Value

    @classmethod
    def at(cls, level: str) -> Assumed:
        """Return the points ("value"), or what gives the "low" or the "high" end of a time."""
        constants = defaults()
        share = constants["copy_share"][{"low": "high", "high": "low"}.get(level, level)]
        return cls(constants["coordination_s"][level], share, constants["load_over_save"][level])


def save_times(
    size: Value, per_device: Value, copy_bytes_per_s: Value, storage: Storage, mode: str, assumed: Assumed | None = None
) -> SaveTimes:
    """Return the three times of a checkpoint of `size` bytes, of which one device holds at most `per_device`.

    sync: block = save = size / rate.  async and memory: block = a fixed coordination + per_device / copy rate; the save of async
    goes on beside training for size / rate.  load: size over the read rate, in mode memory the copy back.

    >>> times = save_times(1e12, 1e10, 3.2e10, Storage(64, 1e9, 5e11), "async")
    >>> round(times.block, 3), round(times.save, 3), round(times.load, 2)
    (1.125, 16.75, 39.69)
    """
    if mode not in MODES:
        raise InputError("is no way to save", field="mode", value=mode, allowed=MODES)
    known = Assumed.at("value") if assumed is None else assumed
    write = transfer_s(size, storage.write_bytes_per_s)
    copy = known.coordination_s + per_device / (copy_bytes_per_s * known.copy_share)
    load = write * known.load_over_save if storage.read_bytes_per_s is None else transfer_s(size, storage.read_bytes_per_s)
    if mode == "sync":
        return SaveTimes(write, write, load)
    if mode == "memory":
        return SaveTimes(copy, copy, copy)
    return SaveTimes(copy, copy + write, load)
