"""A clock for the benchmarks, and a loop that says how fast this core is just now."""

from __future__ import annotations

import time
from collections.abc import Callable


def best(work: Callable[[], object], times: int) -> float:
    """Shortest of several runs, seconds."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def reference() -> float:
    """Seconds of a million additions: how fast this core is just now."""
    return best(lambda: sum(range(1_000_000)), 3)
