"""The KV cache of one server in blocks, counted for all sequences at once.

Every sequence that decodes grows by the same tokens in a step (one, or what speculation makes of it).  So an *odometer* counts
tokens for all of them, and a sequence needs a new block whenever the odometer, plus what it held when it joined, passes a
multiple of the block size.  It is enough to know how many sequences there are of each remainder.
"""

from __future__ import annotations

__all__ = ["KvBlocks"]


class KvBlocks:
    """Blocks that are held, and the growth of the sequences that decode."""

    __slots__ = ("_growing", "_phases", "block_size", "capacity", "grows", "held", "odometer")

    def __init__(self, capacity: int, block_size: int, *, grows: bool) -> None:
        """Take the number of blocks, the tokens of one, and whether sequences grow or hold all they may need from the start."""
        self.capacity = capacity
        self.block_size = block_size
        self.grows = grows
        self.held = 0
        self.odometer = 0
        self._growing = 0
        self._phases: dict[int, int] = {}  # sequences of each remainder; there are few where blocks are large

    def blocks(self, tokens: int) -> int:
        """Blocks of so many tokens.

        >>> KvBlocks(10, 16, grows=True).blocks(17)
        2
        """
        return -(-tokens // self.block_size)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self.capacity - self.held

    def take(self, blocks: int) -> None:
        """Hold blocks."""
        self.held += blocks

    def release(self, blocks: int) -> None:
        """Give blocks back."""
        self.held -= blocks

    def join(self, tokens: int) -> int:
        """A sequence that holds the blocks of ``tokens`` begins to grow; returns its origin, the tokens less the odometer."""
        origin = tokens - self.odometer
        self._growing += 1
        phase = origin % self.block_size
        self._phases[phase] = self._phases.get(phase, 0) + 1
        return origin

    def leave(self, origin: int) -> int:
        """A sequence stops growing; returns the tokens that it has."""
        self._growing -= 1
        phase = origin % self.block_size
        left = self._phases.pop(phase) - 1
        if left:
            self._phases[phase] = left
        return origin + self.odometer

    def need(self, tokens: int) -> int:
        """Blocks that all who grow need for so many tokens more each.

        >>> kv = KvBlocks(10, 4, grows=True)
        >>> _ = kv.join(4), kv.join(6)  # the first one's block is full
        >>> kv.need(1), kv.need(2), kv.need(3), kv.need(5)
        (1, 1, 2, 3)
        """
        if not self.grows:
            return 0
        size, phases, odometer = self.block_size, self._phases, self.odometer
        whole, rest = divmod(tokens, size)
        need = whole * self._growing
        if rest < len(phases):
            for passed in range(odometer, odometer + rest):
                need += phases.get(-passed % size, 0)
            return need
        for phase, count in phases.items():
            if -(phase + odometer) % size < rest:
                need += count
        return need

    def room(self, most: int) -> int:
        """Tokens that all who grow can add before blocks run out, at most ``most``.

        >>> kv = KvBlocks(3, 4, grows=True)
        >>> _ = kv.take(2), kv.join(4), kv.join(2)
        >>> kv.room(100)
        2
        """
        size, growing, free, odometer = self.block_size, self._growing, self.free, self.odometer
        if not self.grows or not growing or growing * (most // size + 1) <= free:
            return most
        whole, free = divmod(free, growing)
        for tokens, count in sorted((-(phase + odometer) % size, count) for phase, count in self._phases.items()):
            free -= count  # those whose last block holds so many tokens more
            if free < 0:
                return min(whole * size + tokens, most)
        raise AssertionError  # after a block's length all have needed one more than there are

    def advance(self, tokens: int) -> None:
        """All who grow add so many tokens."""
        self.held += self.need(tokens)
        self.odometer += tokens
