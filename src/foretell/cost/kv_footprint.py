"""What a sequence takes of the KV pool: blocks of the layers that keep every token, of those with a window, and states."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from foretell.cost.arrays import Value, ceil, minimum
from foretell.cost.kv_layout import Stage

__all__ = ["Footprint", "footprint"]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a sequence takes of the KV pool of one accelerator."""

    block: int
    """Tokens of a block."""
    full: float
    """Bytes per block of tokens of the layers that keep all of them."""
    windows: tuple[tuple[int, float], ...] = ()
    """(window, bytes per block) of layers that give back what their window has left."""
    state: float = 0.0
    """Bytes per sequence."""

    def sequence(self, length: Value) -> Value:
        """Return the bytes of a sequence of so many tokens, in whole blocks.

        >>> Footprint(16, 100.0, ((32, 10.0),), 7.0).sequence(160)  # 10 blocks, 3 of the window's, the state
        1037.0
        """
        blocks = ceil(length / self.block)
        total = self.full * blocks + self.state
        for window, size in self.windows:
            total = total + size * minimum(blocks, math.ceil(window / self.block) + 1)
        return total

    def largest(self, length: int, step: int) -> float:
        """Return the bytes that an engine reserves at most for a sequence, while a step reads ``step`` of its tokens."""
        blocks = math.ceil(length / self.block)
        total = self.full * blocks + self.state
        return total + sum(size * (math.ceil(min(w - 1 + step, length) / self.block) + 1) for w, size in self.windows)

    @property
    def growing(self) -> float:
        """Bytes per block where every layer grows, a state standing for a block of its own."""
        return self.full + sum(size for _, size in self.windows) + self.state


@functools.lru_cache(maxsize=512)
def footprint(stage: Stage, block: int, *, windows: bool, paged: bool, spread: float) -> Footprint:
    """Return what sequences take on a stage.

    ``windows``: layers with a window give blocks back.  ``paged``: all kinds of layers share blocks of one size, in groups of
    as many layers as the smallest kind has (as the largest, where that has fewer than ``spread`` times as many), which pads
    the groups; and a block holds as many tokens as make it as large as a state (vllm/v1/core/kv_cache_utils.py).
    """
    full = [(k.token, n) for k, n in stage.kept if k.token and not (windows and k.window)]
    seen = sorted({k.window for k, _ in stage.kept if windows and k.window})
    by_window = {w: [(k.token, n) for k, n in stage.kept if k.window == w] for w in seen}
    states = [(k.state, n) for k, n in stage.kept if k.state]
    kinds = [full, *by_window.values(), states]
    if not paged or sum(1 for kind in kinds if kind) < 2:
        return Footprint(
            block,
            block * sum(token * n for token, n in full),
            tuple((w, block * sum(token * n for token, n in kind)) for w, kind in by_window.items()),
            sum(state * n for state, n in states),
        )
    token = max((t for kind in (full, *by_window.values()) for t, _ in kind), default=0.0)
    state = max((s for s, _ in states), default=0.0)
    if token and state:
        block = max(block, 16 * math.ceil(state / (16 * token)))
    page = block * token or state
    counts = [sum(n for _, n in kind) for kind in kinds]
    least, most = min(c for c in counts if c), max(counts)
    group = most if most < least * spread else least
    sizes = [page * group * math.ceil(c / group) for c in counts]
    return Footprint(block, sizes[0], tuple(zip(seen, sizes[1:-1], strict=True)), sizes[-1])
