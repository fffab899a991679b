"""Published times from a failure to training again: finding it, starting anew, loading, catching up.

Each is of its own run; they differ 200-fold (starting the communicators of 2,048 GPUs took 1,047 s and, after two changes, less
than 5). Take a time as an input; these say what is usual. They stand in `catalog/data/operations/restart.json`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foretell.operations._data import data, sources
from foretell.operations.ranges import Range, Source
from foretell.validation import choice

__all__ = ["RestartTime", "hang_range", "restart_range", "restart_time", "restart_times"]


@dataclass(frozen=True)
class RestartTime:
    """One published time, seconds: a value, or a range, or a bound."""

    id: str
    what: str
    context: str
    year: int
    value_s: float | None = None
    bound: str | None = None
    """upper where less than the value was reported, lower where more; None where it is the value."""
    low_s: float | None = None
    high_s: float | None = None
    point_s: float | None = None
    sources: tuple[Source, ...] = ()


def restart_times() -> tuple[RestartTime, ...]:
    """Return all of them."""
    return tuple(restart_time(name) for name in data("restart")["times"])


def restart_time(name: str) -> RestartTime:
    """Return one by its id.

    >>> restart_time("detect_and_diagnose").value_s, restart_time("detect_and_diagnose").bound
    (600, 'upper')
    """
    rows = data("restart")["times"]
    row = dict(rows[choice(name, "name", tuple(rows))])
    return RestartTime(name, **row | {"sources": sources("restart", row["sources"])})


def restart_range() -> Range:
    """Return the time from a failure to training again, seconds: 5 to 20 minutes, as Meta's research clusters report.

    The point is the geometric mean, 10 minutes.

    >>> round(restart_range().point, 6)
    600.0
    """
    return _range("restart_overhead")


def hang_range() -> Range:
    """Return how long a job hangs before a collective that will never end is given up, seconds: defaults of the libraries.

    >>> hang_range().point, hang_range().high
    (600.0, 1800.0)
    """
    return _range("hang_timeout")


def _range(name: str) -> Range:
    """Return a published range, its point the geometric mean where none is given."""
    one = restart_time(name)
    low, high = one.low_s or 0.0, one.high_s or 0.0
    point = one.point_s or math.sqrt(low * high)
    return Range(low, point, high, "s", (f"{one.what}: {one.context} ({one.year})",), one.sources)
