"""What a simulation tells: latencies with their percentiles, throughput, goodput, occupancy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import floor, log
from typing import Any, Final, NamedTuple

from foretell.errors import InputError
from foretell.validation import number

__all__ = ["Distribution", "Outcome", "QueuePoint", "Served", "Slo", "Summary"]

_PER_E: Final = 1000
"""Bins per factor e: one is 0.1 % wide."""
_LEAST: Final = 1e-9
"""Smaller values (seconds) share one bin."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One latency over requests (or gaps between tokens), seconds; None where there was none."""

    count: float
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    maximum: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        """Return plain data, with the unit in the keys."""
        return {f.name if f.name == "count" else f"{f.name}_s": getattr(self, f.name) for f in fields(self)}


class Distribution:
    """A weighted histogram with bins of 0.1 %: any number of values in bounded memory.

    A percentile is the mean of its bin, interpolated between neighbours in rank as ``numpy.percentile`` does: exact where a bin
    holds one value, else within 0.1 %.  Mean, count and maximum are exact.

    >>> made = Distribution()
    >>> for seconds in (4.0, 1.0, 2.0):
    ...     made.add(seconds)
    >>> made.quantile(0.5), made.quantile(0.75), made.mean
    (2.0, 3.0, 2.3333333333333335)
    """

    __slots__ = ("_bins", "count", "maximum", "total")

    def __init__(self) -> None:
        self._bins: dict[int, list[float]] = {}  # weight, sum
        self.count = 0.0
        self.total = 0.0
        self.maximum = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """Count a value (not negative) so many times."""
        key = floor(log(value if value > _LEAST else _LEAST) * _PER_E)  # noqa: FURB136  # in half the time of max
        found = self._bins.get(key)
        if found is None:
            self._bins[key] = [weight, weight * value]
        else:
            found[0] += weight
            found[1] += weight * value
        self.count += weight
        self.total += weight * value
        if value > self.maximum:  # noqa: PLR1730  # in half the time of max
            self.maximum = value

    def add_ramp(self, first: float, last: float, values: int, weight: float = 1.0) -> None:
        """Count evenly spaced values from the first to the last, each so many times; put into at most 64 bins."""
        low, high = max(min(first, last), _LEAST), max(first, last, _LEAST)
        pieces = min(values, 1 + int(log(high / low) * _PER_E), 64)
        width = (last - first) / pieces
        for piece in range(pieces):
            self.add(first + (piece + 0.5) * width, weight * values / pieces)
        self.maximum = max(self.maximum, first, last)

    @property
    def mean(self) -> float | None:
        """Mean; None without values."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """Return the value that this share of the others does not exceed; None without values."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float]) -> list[float | None]:
        """Return several, in one pass over the bins."""
        if not self.count:
            return [None] * len(shares)
        steps = []  # (rank of the last value of a bin, mean of the bin)
        seen = 0.0
        for _, (weight, total) in sorted(self._bins.items()):
            seen += weight
            steps.append((seen - 1.0, total / weight))
        return [_at(steps, share * (self.count - 1.0)) for share in shares]

    def summary(self) -> Summary:
        """Return mean, percentiles and maximum."""
        p50, p90, p95, p99 = self.quantiles([0.5, 0.9, 0.95, 0.99])
        return Summary(self.count, self.mean, p50, p90, p95, p99, self.maximum if self.count else None)


def _at(steps: list[tuple[float, float]], rank: float) -> float:
    """Value of a rank, which may lie between two."""
    before, value = -1.0, steps[0][1]
    for last, mean in steps:
        if rank <= last + 1e-9:
            inside = min(1.0, max(0.0, rank - before))  # how far from the last value of the bin below to the first of this one
            return value + inside * (mean - value)
        before, value = last, mean
    return value


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, seconds; None: any time will do."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    """Mean seconds per output token after the first; a request with one token has none and meets it."""
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        """Check every value; at least one is needed."""
        given = [f.name for f in fields(self) if getattr(self, f.name) is not None]
        if not given:
            raise InputError("needs at least one target", field="slo", allowed="ttft_s, tpot_s, e2e_s")
        for name in given:
            number(getattr(self, name), name, minimum=1e-9)

    def met(self, ttft: float, tpot: float | None, e2e: float) -> bool:
        """Whether a request with these latencies met every target.

        >>> Slo(ttft_s=0.5, tpot_s=0.05).met(0.4, None, 0.4), Slo(ttft_s=0.5).met(0.6, 0.01, 2.0)
        (True, False)
        """
        return (
            (self.ttft_s is None or ttft <= self.ttft_s)
            and (self.tpot_s is None or tpot is None or tpot <= self.tpot_s)
            and (self.e2e_s is None or e2e <= self.e2e_s)
        )


class Served(NamedTuple):
    """One finished request; seconds of the simulation.  Client overhead is not in them."""

    request: int
    """In the order of arrival, from 0."""
    replica: int
    arrival_s: float
    start_s: float
    """First admitted."""
    first_token_s: float
    end_s: float
    input_tokens: int
    output_tokens: int
    preemptions: int


class QueuePoint(NamedTuple):
    """The state of all replicas together at one moment."""

    time_s: float
    waiting: int
    resident: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Statistics of a simulation.

    Latencies are of the requests that arrived in the window and were finished, gaps, throughput and occupancy of the time in
    the window; without one that is everything from the first arrival on.
    """

    requests: int
    """Finished, and arrived in the window."""
    unfinished: int
    """Still waiting or resident at the end."""
    rejected: int
    """That no replica could ever hold; an engine refuses these."""
    duration_s: float
    """Of the window, or from the first arrival to the end."""
    ttft: Summary
    """Arrival to first token, client overhead included."""
    itl: Summary
    """Gaps between outputs of a sequence; under speculation one gap brings several tokens."""
    tpot: Summary
    """Mean seconds per output token after the first, of each request."""
    e2e: Summary
    """Arrival to last token, client overhead included."""
    wait: Summary
    """Arrival to admission."""
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    """With the input, cached tokens included; what is computed again after a preemption is not counted."""
    resident_mean: float
    """Sequences admitted to a replica that decodes, averaged over time and replicas; over ``utilisation``: while it runs."""
    resident_max: int
    kv_mean: float
    """Share of the KV blocks that is held, averaged over time and replicas."""
    kv_max: float
    utilisation: float
    """Share of the time in which a replica runs steps."""
    prefill_utilisation: float | None
    """Of the prefill servers, where prompts have their own."""
    preemptions: int
    steps: int
    slo_share: float | None
    """Of the requests that are decided, those that met the targets; rejected ones and those that already miss the target of the
    first token count as not met.  None: no targets, or nothing decided."""
    goodput_per_s: float | None
    """Requests a second that met the targets."""
    queue: tuple[QueuePoint, ...]
    """Coarse, at most some thousand points."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: summaries as mappings, points as lists."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Summary):
                value = value.to_dict()
            elif isinstance(value, tuple):
                value = [list(one) if isinstance(one, QueuePoint) else one for one in value]
            out[f.name] = value
        return out
