"""How good the allocator's model is on a measured run: its own requests, played from where its history begins.

The model is given the segments and blocks that were there, and what the driver did (where it placed segments, and when the
program gave memory back); everything else it decides: which free block a request takes, what is split off, when new memory
is needed.  Each decision is compared with PyTorch's.
"""

from __future__ import annotations

import msgspec
import numpy as np

from foretell.cost.allocator import CachingAllocator, Chunk, Pool, Segment
from foretell.trace.measured import Measured
from foretell.trace.replay import replay
from foretell.trace.segments import SegmentEvent, SegmentState

__all__ = ["Level", "ModelCheck", "check_model"]


class Level(msgspec.Struct, frozen=True):
    """One quantity on both sides.  Bytes, or a number of segments."""

    measured: int
    model: int

    @property
    def difference(self) -> int:
        """How much more the model says."""
        return self.model - self.measured

    @property
    def relative(self) -> float | None:
        """That as a share of what was measured; None where nothing was."""
        return self.difference / self.measured if self.measured else None


class Followed(msgspec.Struct, frozen=True):
    """A run played from where its history begins."""

    allocations: int
    same_block: int
    """Allocations that got the block at the address that PyTorch gave them."""
    peak_allocated: Level
    peak_reserved: Level
    end_reserved: Level
    first_difference: int | None
    """Event after which reserved bytes differ for the first time; None: they never do."""


class ModelCheck(msgspec.Struct, frozen=True):
    """The allocator's model on a run's own requests."""

    peak_allocated: Level
    """Played from an empty allocator, as a prediction is."""
    peak_reserved: Level
    """Played from an empty allocator."""
    end_segments: Level
    """Played from an empty allocator."""
    unknown_cached: int
    """Bytes that were reserved when the history began, beyond what a replay from an empty allocator reserves for what was in
    use then.  Where it is 0, the levels above are the model's alone."""
    followed: Followed | None
    """Played from the segments that were there; None: there is no history, or it does not tell
    where they were (expandable segments)."""
    notes: tuple[str, ...] = ()


def check_model(measured: Measured, *, descending: bool = True) -> ModelCheck:
    """Play a measured run's own requests and compare what the model does with what PyTorch did.

    ``descending``: whether the driver places segments at falling addresses; it matters from an empty allocator only.
    """
    alone = replay(measured.recording, measured.settings, descending=descending)
    held = int(alone.reserved[measured.before - 1]) if measured.before else 0
    return ModelCheck(
        peak_allocated=Level(measured.peak.allocated, alone.peak_allocated.bytes),
        peak_reserved=Level(measured.peak.reserved, alone.peak_reserved.bytes),
        end_segments=Level(measured.segments, len(alone.at_end)),
        unknown_cached=measured.start.reserved - held,
        followed=_follow(measured) if measured.told else None,
        notes=measured.notes,
    )


class _Resumed(CachingAllocator):
    """An allocator that begins with a run's segments; the driver answers as it did in the run."""

    def __init__(self, measured: Measured) -> None:
        super().__init__(measured.settings)
        self.given: list[tuple[int, int]] = []
        """Address and size of what the driver gave and nobody has asked for yet."""
        self.held: dict[int, Chunk] = {}
        """By the address that PyTorch gave."""
        for state in measured.start_segments:
            self._enter(state)
        self.top = self.reserved
        self.peak = self.allocated

    def _enter(self, state: SegmentState) -> None:
        segment = self._segment(state.stream, state.address, state.size, small=state.small)
        self.reserved += state.size
        before: Chunk | None = None
        for block in state.blocks:
            chunk = Chunk(segment, block.address, block.size)
            if before is None:
                segment.first = chunk
            else:
                before.after, chunk.before = chunk, before
            before = chunk
            if block.storage is None:
                self.keep(chunk)
            else:
                self.held[block.address] = chunk
                self.allocated += block.size

    def _segment(self, stream: int, address: int, size: int, *, small: bool) -> Segment:
        pool = self.pools.setdefault((stream, small), Pool(stream, small))
        segment = Segment(pool, address, size, expandable=False)
        self.segments[segment] = None
        return segment

    def _place(self, pool: Pool, size: int) -> Segment:
        """Place a segment where the driver placed one of its size, or at addresses of the model's own."""
        for at, (address, given) in enumerate(self.given):
            if given == size:
                del self.given[at]
                return self._segment(pool.stream, address, size, small=pool.small)
        return super()._place(pool, size)

    def hear(self, change: SegmentEvent) -> None:
        """Take note of what the driver gave; give back what it was given back."""
        if change.action == "segment_alloc":
            self.given.append((change.address, change.size))
            return
        for segment in self.segments:
            first = segment.first
            if segment.address == change.address and first.free and first.after is None:
                self._drop(first)
                return


def _follow(measured: Measured) -> Followed:
    memory = _Resumed(measured)
    storages, order, places = measured.recording.storages, measured.recording.order, measured.addresses.tolist()
    changes = list(reversed(measured.changes))
    same = allocations = 0
    reserved: list[int] = []
    for event in range(measured.before, len(order)):
        while changes and changes[-1].event <= event:
            memory.hear(changes.pop())
        entry = order[event]
        if entry >= 0:
            chunk = memory.held[places[event]] = memory.malloc(storages[entry].bytes, storages[entry].stream)
            allocations += 1
            same += chunk.address == places[event]
        else:
            memory.free(memory.held.pop(places[event]))
        reserved.append(memory.reserved)
    for change in reversed(changes):
        memory.hear(change)
    differs = np.flatnonzero(np.array(reserved, dtype=np.int64) != measured.reserved[measured.before :])
    return Followed(
        allocations=allocations,
        same_block=same,
        peak_allocated=Level(measured.peak.allocated, memory.peak),
        peak_reserved=Level(measured.peak.reserved, memory.top),
        end_reserved=Level(measured.end.reserved, memory.reserved),
        first_difference=int(differs[0]) + measured.before if len(differs) else None,
    )
