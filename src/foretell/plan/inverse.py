"""Inverse questions: the largest micro-batch or sequence that fits, the fewest accelerators that suffice.

A run is asked about, never interpolated: memory need not rise with a size (an allocator's rounding, a
schedule that changes), so an answer is always one whose own verdict is `fits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from foretell.core.forecast import Forecast
from foretell.errors import ForetellError
from foretell.plan.launch import Launch

Verdicts = Collection[str]

__all__ = ["Answer", "largest_micro_batch", "longest_sequence", "smallest_world"]

MAX_MICRO_BATCH = 2**20
MAX_SEQUENCE = 2**25
MAX_REPLICAS = 2**17
_SETTLED = 64
"""Replicas from which on an unchanged need is taken as final."""
_ASTRAY = 2**20
"""Steps that an answer of the linear slack may be off by."""
_FITS = ("fits",)
_BEYOND = 8
"""Steps looked at above a limit that was found, for sizes that fit again."""


@dataclass(frozen=True)
class Answer:
    """The answer to an inverse question; `value` is None where nothing fits."""

    question: str
    value: int | None
    launch: Launch | None
    """The run at the answer."""
    forecast: Forecast | None
    """Of the answer; None where nothing fits."""
    next_value: int | None = None
    """The next value tried, which does not fit."""
    next_verdict: str | None = None
    asked: int = 0
    """Forecasts made."""
    closest_value: int | None = None
    """Where nothing fits: the smallest size, or the most accelerators that were tried."""
    closest_verdict: str | None = None
    closest: Launch | None = None
    """The run at that value; None where it is refused."""
    limited_by: str | None = None
    """What ends the search: memory, model (its longest sequence), or search (our own limit); None where nothing fits."""


def largest_micro_batch(launch: Launch, *, accept: Verdicts = _FITS) -> Answer:
    """Return the largest micro-batch that fits; the number of micro-batches per step stays as it is.

    `accept`: the verdicts that count as fitting.
    """

    def at(step: int) -> Launch:
        return launch.with_recipe(micro_batch=step)

    return _largest("max micro-batch", at, 1, MAX_MICRO_BATCH, accept=accept)


def longest_sequence(launch: Launch, *, limit: int | None = None, accept: Verdicts = _FITS) -> Answer:
    """Return the longest sequence (tokens) that fits, in steps that every rank can divide.

    `limit` is the longest that the model can take (its position table), where it has one.
    """
    par = launch.par
    unit = 128 * par.cp * (par.tp if par.sp else 1)
    if limit is not None and limit < unit:
        unit = limit

    def at(step: int) -> Launch:
        return launch.with_recipe(seq_len=step * unit)

    top = max(1, min(MAX_SEQUENCE, limit or MAX_SEQUENCE) // unit)
    end = "model" if limit is not None and limit <= MAX_SEQUENCE else "search"
    return _largest("max seq-len", at, unit, top, accept=accept, end=end)


def smallest_world(launch: Launch, *, accept: Verdicts = _FITS) -> Answer:
    """Return the fewest accelerators that suffice; all but data parallelism stays.

    They are a part of one node, or whole nodes; data parallelism is a multiple of what the experts divide.
    """
    sizes = _worlds(launch)
    group = launch.par.world // launch.par.dp
    search = _Search(lambda step: launch.with_par(dp=sizes(step)), lambda step: sizes(step) * group, accept)
    question = "min gpus"
    low, high = 0, 1  # low does not fit
    while not search.fits(high):
        low, high = high, high * 2
        if sizes(high) > MAX_REPLICAS or (sizes(low) >= _SETTLED and search.flat(low, high)):
            return search.none(question, 1 if search.flat(1, low) else low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if search.fits(middle) else (middle, high)
    return search.answer(question, high, +1, low)


def _worlds(launch: Launch) -> Callable[[int], int]:
    """Return the function from a step of the search to a number of replicas."""
    par, node = launch.par, launch.gpus_per_node
    least = par.ep // math.gcd(par.ep, par.cp * par.tp)
    least = math.lcm(least, par.hsdp_replicas // math.gcd(par.hsdp_replicas, par.cp))
    group = par.world // par.dp * least
    inside = node // group  # steps that stay within one node
    nodes = math.lcm(node, group) // group

    def size(step: int) -> int:
        return least * (step if step <= inside else nodes * (inside // nodes + step - inside))

    return size


def _largest(
    question: str,
    at: Callable[[int], Launch],
    unit: int,
    top: int,
    *,
    accept: Verdicts = _FITS,
    end: str = "search",
) -> Answer:
    """Double until it does not fit, halve the gap, then look a little beyond."""
    search = _Search(at, lambda step: step * unit, accept)
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
    if not low:
        return search.none(question, 1)
    return search.answer(question, low, -1, low + 1 if low < top else None, end)


class _Search:
    """Remembers what was asked. A combination that the framework refuses does not fit."""

    def __init__(self, at: Callable[[int], Launch], value: Callable[[int], int], accept: Verdicts) -> None:
        self.at, self.value, self.accept = at, value, accept
        self.seen: dict[int, Forecast | None] = {}
        self.close: dict[int, Forecast] = {}

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
        return seen is not None and seen.verdict in self.accept

    def surely(self, step: int) -> bool:
        """Whether it fits with the allocator replayed too, which is what an answer is held to."""
        if not self.fits(step):
            return False
        if step not in self.close:
            self.close[step] = self.at(step).replayed()
        return self.close[step].verdict in self.accept

    def flat(self, low: int, high: int) -> bool:
        """Whether `high` needs as much as `low`: no further step will change that."""
        one, two = self.look(low), self.look(high)
        return one is not None and two is not None and two.total_bytes > 0.999 * one.total_bytes

    def answer(self, question: str, step: int, way: int, beyond: int | None, end: str = "memory") -> Answer:
        """Make the answer; where the linear slack was a little too small, go `way` until the replay agrees."""
        good, bad, stride = step, step, way
        while not self.surely(good):
            bad, good, stride = good, good + stride, stride * 2
            if way < 0 and bad > 1:
                good = max(1, good)
            if good < 1 or abs(good - step) > _ASTRAY:
                return self.none(question, max(1, bad))
        while abs(good - bad) > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if self.surely(middle) else (good, middle)
        if good != step:
            beyond = good - way
        after = self.close.get(beyond, self.look(beyond)) if beyond else None
        return Answer(
            question=question,
            value=self.value(good),
            launch=self.at(good),
            forecast=self.close[good],
            next_value=self.value(beyond) if beyond else None,
            next_verdict=None if not beyond else "refused" if after is None else after.verdict,
            asked=len(self.seen),
            limited_by="memory" if beyond or way > 0 else end,
        )

    def none(self, question: str, step: int) -> Answer:
        """Make the answer where nothing fits; `step` comes closest."""
        seen = self.close.get(step, self.look(step))
        return Answer(
            question=question,
            value=None,
            launch=None,
            forecast=None,
            asked=len(self.seen),
            closest=None if seen is None else self.at(step),
            closest_value=self.value(step),
            closest_verdict="refused" if seen is None else seen.verdict,
        )
