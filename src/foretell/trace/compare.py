"""A measured run beside a predicted one: their peaks, and the blocks that make the difference at them.

How much of a difference in reserved memory is the allocator's model's, whatever was predicted, says
:mod:`foretell.trace.model_check`.  Bytes; a difference is relative to what was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from foretell.trace.events import Recording
from foretell.trace.levels import live_at, phase_at
from foretell.trace.measured import Measured
from foretell.trace.model_check import Level
from foretell.trace.replay import Replay

__all__ = ["Comparison", "OneSided", "compare"]

Side = Literal["measured", "predicted"]


class OneSided(msgspec.Struct, frozen=True):
    """Blocks that live at one side's peak, and at the other's have no counterpart of their size."""

    side: Side
    size: int
    """Bytes that were asked for, for each."""
    count: int
    op: str
    line: str
    module: str = ""
    category: str = ""
    """Empty on the measured side: a snapshot does not tell."""

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return self.size * self.count


class Comparison(msgspec.Struct, frozen=True):
    """A measured run and a predicted one."""

    peak_allocated: Level
    peak_requested: Level
    peak_reserved: Level
    predicted_phase: str
    """Phase and step of the predicted peak."""
    same: int
    """Bytes at the peaks in blocks that both sides have."""
    one_sided: tuple[OneSided, ...]
    """The rest, largest first."""
    notes: tuple[str, ...] = ()


def compare(measured: Measured, recording: Recording, predicted: Replay, *, most: int = 50) -> Comparison:
    """Compare a measured run with a predicted one; ``most``: how many groups of one-sided blocks are named."""
    at = predicted.peak_allocated.event
    ours = _blocks(recording, at)
    theirs = _blocks(measured.recording, measured.peak_at)
    same = _cancel(theirs, ours, lambda block: (block.size, block.line.rpartition("/")[2]))
    same += _cancel(theirs, ours, lambda block: (block.size,))
    groups = [*_groups("measured", theirs), *_groups("predicted", ours)]
    groups.sort(key=lambda group: (-group.bytes, group.side, group.line, group.op))
    notes = list(measured.notes)
    if len(groups) > most:
        left = sum(group.bytes for group in groups[most:])
        notes.append(f"{len(groups) - most} smaller groups of one-sided blocks, {left} bytes in all, are not listed.")
    if not measured.whole and measured.recording.order:
        notes.append("The history does not begin with the run: blocks from before it have no operator and no line.")
    phase = None if at is None else phase_at(recording, at)
    return Comparison(
        peak_allocated=Level(measured.peak.allocated, predicted.peak_allocated.bytes),
        peak_requested=Level(measured.peak.requested, int(predicted.requested.max(initial=0))),
        peak_reserved=Level(measured.peak.reserved, predicted.peak_reserved.bytes),
        predicted_phase="" if phase is None else f"{phase.name}, step {phase.step}",
        same=same,
        one_sided=tuple(groups[:most]),
        notes=tuple(notes),
    )


class _Block(NamedTuple):
    """What makes blocks alike."""

    size: int
    line: str
    op: str
    module: str
    category: str


def _blocks(recording: Recording, at: int | None) -> Counter[_Block]:
    """Count the blocks that live after an event."""
    if at is None:
        return Counter()
    known = "categories" not in recording.about
    storages = (recording.storages[index] for index in live_at(recording, at).tolist())
    return Counter(_Block(s.bytes, s.line, s.op, s.module, s.category if known else "") for s in storages if s.bytes)


def _cancel(theirs: Counter[_Block], ours: Counter[_Block], key: Callable[[_Block], object]) -> int:
    """Take blocks with the same key off both sides; return their bytes."""
    partners: dict[object, list[_Block]] = {}
    for block in ours:
        partners.setdefault(key(block), []).append(block)
    total = 0
    for block in theirs:
        for partner in partners.get(key(block), ()):
            common = min(theirs[block], ours[partner])
            theirs[block] -= common
            ours[partner] -= common
            total += common * block.size
    return total


def _groups(side: Side, blocks: Counter[_Block]) -> Iterator[OneSided]:
    for block, count in blocks.items():
        if count:
            yield OneSided(side, block.size, count, block.op, block.line, block.module, block.category)
