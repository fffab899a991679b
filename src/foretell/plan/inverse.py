"""Inverse questions: the largest micro-batch or sequence that fits, the fewest accelerators that suffice.

A run is asked about, never interpolated: memory need not rise with a size (an allocator's rounding, a
schedule that changes), so an answer is always one whose own verdict is `fits`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretell.core.forecast import Forecast
from foretell.errors import ForetellError
from foretell.plan.launch import Launch

__all__ = ["Answer", "largest_micro_batch", "longest_sequence", "smallest_world"]

MAX_MICRO_BATCH = 2**20
MAX_SEQUENCE = 2**25
MAX_REPLICAS = 2**17
_SETTLED = 64
"""Replicas from which on an unchanged need is taken as final."""
_BEYOND = 8
"""Steps looked at above a limit that was found, for sizes that fit again."""


@dataclass(frozen=True)
class Answer:
    """The answer to an inverse question; `value` and `launch` are None where nothing fits."""

    question: str
    value: int | None
    launch: Launch | None
    forecast: Forecast | None
    next_value: int | None = None
    """The next value tried, which does not fit."""
    next_verdict: str | None = None
    asked: int = 0
    """Forecasts made."""


def largest_micro_batch(launch: Launch) -> Answer:
    """Return the largest micro-batch that fits; the number of micro-batches per step stays as it is."""

    def at(step: int) -> Launch:
        return launch.with_recipe(micro_batch=step)

    return _largest("max micro-batch", at, 1, MAX_MICRO_BATCH)


def longest_sequence(launch: Launch, *, limit: int | None = None) -> Answer:
    """Return the longest sequence (tokens) that fits, in steps that every rank can divide.

    `limit` is the longest that the model can take (its position table), where it has one.
    """
    par = launch.par
    unit = 128 * par.cp * (par.tp if par.sp else 1)

    def at(step: int) -> Launch:
        return launch.with_recipe(seq_len=step * unit)

    top = max(1, min(MAX_SEQUENCE, limit or MAX_SEQUENCE) // unit)
    return _largest("max seq-len", at, unit, top)


def smallest_world(launch: Launch) -> Answer:
    """Return the fewest accelerators, as multiples of data parallelism; all else stays."""
    group = launch.par.world // launch.par.dp
    search = _Search(lambda replicas: launch.with_par(dp=replicas), group)
    question = "min gpus"
    low, high = 0, 1  # low does not fit
    while not search.fits(high):
        low, high = high, high * 2
        if high > MAX_REPLICAS or search.flat(low, high):
            return search.answer(question, None, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.fits(middle) else (middle, high)
    return search.answer(question, high, low or None)


def _largest(question: str, at: Callable[[int], Launch], unit: int, top: int) -> Answer:
    """Double until it does not fit, halve the gap, then look a little beyond."""
    search = _Search(at, unit)
    low, high = 0, 1
    while high <= top and search.fits(high):
        low, high = high, high * 2
    high = min(high, top + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if search.fits(middle) else (low, middle)
    for step in range(min(top, low + _BEYOND), low + 1, -1):
        if search.fits(step):
            low = step
            break
    return search.answer(question, low or None, low + 1 if low < top else None)


class _Search:
    """Remembers what was asked. A combination that the framework refuses does not fit."""

    def __init__(self, at: Callable[[int], Launch], unit: int) -> None:
        self.at, self.unit = at, unit
        self.seen: dict[int, Forecast | None] = {}

    def look(self, step: int) -> Forecast | None:
        """Forecast one step."""
        if step not in self.seen:
            try:
                self.seen[step] = self.at(step).forecast()
            except ForetellError:
                if len(self.seen) < 1:
                    raise  # the run itself cannot be started: not an answer to the question
                self.seen[step] = None
        return self.seen[step]

    def fits(self, step: int) -> bool:
        """Whether one step fits."""
        seen = self.look(step)
        return seen is not None and seen.verdict == "fits"

    def flat(self, low: int, high: int) -> bool:
        """Whether `high` needs as much as `low`: no further step will change that."""
        if low < _SETTLED:
            return False
        one, two = self.look(low), self.look(high)
        return one is not None and two is not None and two.total_bytes > 0.999 * one.total_bytes

    def answer(self, question: str, step: int | None, beyond: int | None) -> Answer:
        """Make the answer."""
        after = self.look(beyond) if beyond else None
        verdict = None if not beyond else "refused" if after is None else after.verdict
        found = step is not None
        while step is not None and step > 0 and self.at(step).replayed().verdict != "fits":
            step -= 1  # the linear slack was a little too small
            if not self.fits(step):
                step = None
        return Answer(
            question=question,
            value=step * self.unit if step is not None else None,
            launch=self.at(step) if step is not None else None,
            forecast=self.at(step).replayed() if found and step is not None else None,
            next_value=beyond * self.unit if beyond else None,
            next_verdict=verdict,
            asked=len(self.seen),
        )
