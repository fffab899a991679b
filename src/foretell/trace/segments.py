"""The allocator's segments and their blocks at a moment of a replay, put together from what happened until then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from foretell.cost.allocator import Action

__all__ = ["BlockState", "SegmentEvent", "SegmentState", "segments_of"]


class SegmentEvent(NamedTuple):
    """Memory taken from the device or given back."""

    event: int
    """Index into the recording's order of the event that caused it."""
    action: Action
    """As PyTorch's memory history names it."""
    address: int
    size: int
    """Bytes."""
    stream: int
    small: bool

    @property
    def change(self) -> int:
        """By how many bytes reserved memory changed."""
        return self.size if self.action in ("segment_alloc", "segment_map") else -self.size

    @property
    def expandable(self) -> bool:
        """Whether it is of an expandable segment."""
        return self.action in ("segment_map", "segment_unmap")


class BlockState(NamedTuple):
    """A block of a segment."""

    address: int
    size: int
    requested: int
    """Bytes that were asked for; 0 where it is free."""
    storage: int | None
    """Index of the recording's storage that it holds; None: free."""
    waits: bool = False
    """Given up by its owner and not yet free: another stream still uses it."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """Memory of the device in one piece; of an expandable segment: one stretch of mapped addresses, as PyTorch tells them."""

    address: int
    size: int
    stream: int
    small: bool
    expandable: bool
    blocks: tuple[BlockState, ...] = ()
    """Without gaps, by address."""

    @property
    def allocated(self) -> int:
        """Bytes of blocks in use."""
        return sum(block.size for block in self.blocks if block.storage is not None and not block.waits)

    @property
    def active(self) -> int:
        """Bytes of blocks that are not free."""
        return sum(block.size for block in self.blocks if block.storage is not None)

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block."""
        return max((block.size for block in self.blocks if block.storage is None), default=0)


def segments_of(events: Iterable[SegmentEvent], live: Sequence[BlockState]) -> tuple[SegmentState, ...]:
    """Return the segments after these events, by address; ``live``: the blocks in use, by address.

    What lies between blocks in use is one free block: the allocator merges free neighbours at once.
    """
    regions: dict[int, SegmentState] = {}
    for event in events:
        _apply(regions, event)
    out: list[SegmentState] = []
    at = 0
    for address in sorted(regions):
        region = regions[address]
        first = at
        while at < len(live) and live[at].address < address + region.size:
            at += 1
        out.append(replace(region, blocks=tuple(_filled(region, live[first:at]))))
    return tuple(out)


def _apply(regions: dict[int, SegmentState], event: SegmentEvent) -> None:
    """Enter or remove one stretch of memory."""
    start, end = event.address, event.address + event.size
    if event.action == "segment_alloc":
        regions[start] = SegmentState(start, event.size, event.stream, event.small, expandable=False)
    elif event.action == "segment_free":
        del regions[start]
    elif event.action == "segment_map":
        below = next((r for r in regions.values() if r.expandable and r.address + r.size == start), None)
        if below is not None:
            start = below.address
        above = regions.pop(end, None)
        if above is not None:
            end = above.address + above.size
        regions[start] = SegmentState(start, end - start, event.stream, event.small, expandable=True)
    else:
        whole = next(r for r in regions.values() if r.address <= start and end <= r.address + r.size)
        del regions[whole.address]
        if whole.address < start:
            regions[whole.address] = replace(whole, size=start - whole.address)
        if end < whole.address + whole.size:
            regions[end] = replace(whole, address=end, size=whole.address + whole.size - end)


def _filled(region: SegmentState, live: Sequence[BlockState]) -> Iterator[BlockState]:
    """Yield the blocks in use and the free ones between them."""
    at = region.address
    for block in live:
        if block.address > at:
            yield BlockState(at, block.address - at, 0, None)
        yield block
        at = block.address + block.size
    if at < region.address + region.size:
        yield BlockState(at, region.address + region.size - at, 0, None)
