"""What the caching allocator's memory is made of: segments, their pieces, and the pools that hold the free ones."""

from __future__ import annotations

__all__ = ["Chunk", "Hole", "Pool", "Segment", "link"]


class Pool:
    """Free chunks of one stream and size class, ordered by size and address."""

    __slots__ = ("chunks", "holes", "small", "stream")

    def __init__(self, stream: int, small: bool) -> None:
        """Begin without chunks."""
        self.stream = stream
        self.small = small
        self.chunks: list[tuple[int, int, Chunk]] = []
        self.holes: list[tuple[int, Hole]] = []
        """Unmapped parts of expandable ranges, by address."""


class Segment:
    """Addresses that the device gave in one go; expandable: the whole range, of which a part is mapped."""

    __slots__ = ("address", "expandable", "first", "pool", "size")

    def __init__(self, pool: Pool, address: int, size: int, *, expandable: bool) -> None:
        """Cover ``size`` bytes from ``address`` with one piece."""
        self.pool = pool
        self.address = address
        self.size = size
        self.expandable = expandable
        self.first = Chunk(self, address, size)
        """The piece at its lowest address."""

    @property
    def stream(self) -> int:
        """The stream whose requests it serves."""
        return self.pool.stream

    @property
    def small(self) -> bool:
        """Whether it serves requests up to 1 MiB."""
        return self.pool.small


class Chunk:
    """A piece of a segment, free or in use."""

    __slots__ = ("address", "after", "before", "born", "free", "refs", "segment", "size")

    born: int
    """Searches of large pools when it became free; set only while garbage is collected."""

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        """Cover ``size`` bytes from ``address``."""
        self.segment = segment
        self.address = address
        self.size = size
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.free = False
        self.refs = 1


class Hole(Chunk):
    """Addresses of an expandable segment without memory behind them: neither free nor in use."""

    __slots__ = ()


def link(before: Chunk, after: Chunk | None) -> None:
    """Make two pieces neighbours; without a second the first is its segment's last."""
    before.after = after
    if after is not None:
        after.before = before
