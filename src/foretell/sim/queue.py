"""A queue before c equal servers, first come first served, simulated: any laws of services and of times between arrivals.

For what two moments do not tell: before 10 servers at a load of 0.9, Poisson arrivals and services with a squared coefficient of
variation of 4 wait 0.47 services in the median where these are lognormal, and 0.51 where they are hyperexponential; two moments
give 0.66.  A run says how far off its answers may be: by a standard error of 0.1 to 4 % before up to 32 servers at loads up to
0.95, 2 to 10 % for the 99th percentile of the wait at 0.98, and more where few wait (9 % before 100 servers at 0.95).  The unit
of time is the mean service.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapreplace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.errors import InputError
from foretell.validation import choice, number, positive_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LAWS", "MOST_LOAD", "MOST_SERVERS", "Estimate", "QueueRun", "Times", "simulate_queue"]

LAWS: Final = ("deterministic", "exponential", "gamma", "hyperexponential", "lognormal")
MOST_SCV: Final = 100.0
"""Wider laws are ruled by single customers, which a run may or may not draw."""
MOST_SERVERS: Final = 10_000
"""More are not filled by the customers that warm a run up."""
MOST_LOAD: Final = 0.995
"""Nearer to 1 the queue forgets so slowly that no run of seconds tells its mean."""
LEAST_LOAD: Final = 1e-6
BATCHES: Final = 40
PER_BATCH: Final = 100_000
"""Customers; two batches more go ahead to fill the queue, which remembers 20,000 at a load of 0.98 and spreads of 4."""
LONG_BATCHES: Final = 40
PER_LONG_BATCH: Final = 1_000_000
"""Customers of the fast server alone."""
_SEEN: Final = (0.5, 0.9, 0.99, 0.999)
"""Shares of customers at whose waits the fast server is compared."""
_HALVINGS: Final = 24
_LEAST_SEEN: Final = 0.5
"""Part of the due share of long times that a run must have seen to tell their standard error ..."""
_LEAST_VISITS: Final = 10.0
"""... and how often the fast server must have been among them, apart by as many customers as it remembers."""
_ALIKE: Final = 1e-6
"""Control variates that differ by less are one."""
_MOST_LEVEL: Final = 0.9999
_LEVELS: Final = np.concatenate([np.linspace(0.0, 0.98, 197), 1.0 - 10.0 ** (-np.arange(34, 81) / 20.0)])
"""Shares of customers whose times a run keeps; between them its logarithm from the top is linear in the time."""


@dataclass(frozen=True, slots=True)
class Times:
    """A law of times with mean 1 and a squared coefficient of variation (variance over squared mean).

    >>> Times("gamma", 0.25).scv, Times.of_arrivals(4.0).law
    (0.25, 'hyperexponential')
    """

    law: str
    """deterministic, exponential, gamma (Erlang where 1/scv is whole), lognormal, or hyperexponential: two exponential laws with
    balanced means, so that the short times and the long ones add up to the same."""
    scv: float

    def __post_init__(self) -> None:
        """Check that the law can have the spread."""
        choice(self.law, "law", LAWS)
        scv = number(self.scv, "scv", maximum=MOST_SCV)
        fits = {"deterministic": scv == 0, "exponential": scv == 1, "hyperexponential": scv >= 1}.get(self.law, scv > 0)
        if not fits:
            allowed = {"deterministic": "0", "exponential": "1", "hyperexponential": "1 or more"}.get(self.law, "more than 0")
            raise InputError(f"is no spread of the {self.law} law", field="scv", value=self.scv, allowed=allowed)

    @classmethod
    def of_arrivals(cls, scv: float) -> Times:
        """Return the usual law of times between arrivals of a spread.

        Equal at 0, gamma below 1, exponential at 1 (Poisson arrivals) and hyperexponential above (Whitt 1982, "Approximating a
        point process by a renewal process, I: two basic methods", Operations Research 30).
        """
        return cls(
            "deterministic" if scv == 0 else "gamma" if scv < 1 else "exponential" if scv == 1 else "hyperexponential", scv
        )

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[Any]:
        """Return so many independent times.

        >>> [round(float(x), 1) for x in Times("lognormal", 4.0).draw(np.random.default_rng(0), 10**6).mean(keepdims=True)]
        [1.0]
        """
        scv = self.scv
        if self.law == "deterministic":
            return np.ones(count)
        if self.law == "exponential":
            return rng.standard_exponential(count)
        if self.law == "gamma":
            return rng.gamma(1.0 / scv, scv, count)
        if self.law == "lognormal":
            square = math.log1p(scv)
            return rng.lognormal(-0.5 * square, math.sqrt(square), count)
        short = 0.5 * (1.0 + math.sqrt((scv - 1.0) / (scv + 1.0)))  # share of the short times
        return rng.standard_exponential(count) * np.where(rng.random(count) < short, 0.5 / short, 0.5 / (1.0 - short))


@dataclass(frozen=True, slots=True)
class Estimate:
    """An answer of a run, in mean services."""

    value: float
    standard_error: float
    """Infinite where the run has not seen enough of what is asked."""


@dataclass(frozen=True)
class _Sample:
    """Times of a run: those at :data:`_LEVELS`, and the share above each in every batch."""

    at_levels: NDArray[Any]
    above: NDArray[Any]

    @classmethod
    def of(cls, batches: NDArray[Any]) -> _Sample:
        """Return what is kept of a row of times from each batch."""
        together = np.sort(batches, axis=None)
        at = together[np.floor(_LEVELS * len(together)).astype(int)]
        found = [np.searchsorted(row, at, side="right") for row in np.sort(batches, axis=1)]
        return cls(at, 1.0 - np.array(found) / batches.shape[1])

    def quantile(self, p: float) -> float:
        """Return the time at a share, not corrected."""
        levels = -np.log1p(-_LEVELS)
        return float(np.interp(-math.log1p(-min(max(p, 0.0), _MOST_LEVEL)), levels, self.at_levels))

    def share_above(self, p: float) -> NDArray[Any]:
        """Return the share of each batch above the time at a share p of all."""
        at = min(int(np.searchsorted(_LEVELS, p)), len(_LEVELS) - 1)
        low = max(at - 1, 0)
        part = (p - _LEVELS[low]) / (_LEVELS[at] - _LEVELS[low]) if at > low else 0.0
        out: NDArray[Any] = (1.0 - part) * self.above[:, low] + part * self.above[:, at]
        return out


@dataclass(frozen=True)
class _Fast:
    """One server that is c times as fast, of the same customers: nearly as long a queue, simulated without a loop.

    What it does in the batches of the run is set against what it does in a longer run of its own.
    """

    surplus: NDArray[Any]
    """Mean of service / c - time between arrivals of each batch, less what the laws give: 0 in the long run."""
    seen: NDArray[Any]
    """Mean wait and shares of long waits of each batch."""
    known: NDArray[Any]
    """The same in the longer run."""
    covariance: NDArray[Any]
    """Of the errors of ``known``."""

    def corrected(self, values: NDArray[Any]) -> tuple[float, float, float]:
        """Return the mean of the batches' values, how much of it is luck, and the standard error of the rest.

        Control variates (Law 2015, "Simulation Modeling and Analysis", section 11.4): the surplus, whose mean is known, and what
        the fast server saw, whose mean is estimated from many more customers (Schmeiser, Taaffe and Wang 2001, "Biased
        control-variate estimation", IIE Transactions 33).
        """
        given = np.column_stack([self.surplus, self.seen])
        off = given.mean(axis=0)
        luck = given - off
        scale = luck.std(axis=0)
        use = scale > 0
        mean = float(values.mean())
        slopes = np.zeros(len(scale))
        slopes[use], _, rank, _ = np.linalg.lstsq(luck[:, use] / scale[use], values - mean, rcond=_ALIKE)
        slopes[use] /= scale[use]
        rest = values - mean - luck @ slopes
        off[1:] -= self.known
        left = max(len(values) - 1 - int(rank), 1)
        variance = float(rest @ rest) / (len(values) * left) + float(slopes[1:] @ self.covariance @ slopes[1:])
        return mean, float(slopes @ off), math.sqrt(variance)


@dataclass(frozen=True)
class QueueRun:
    """What a run saw, batch by batch."""

    customers: int
    memory: float
    """Customers after which the queue has forgotten how long it was, about."""
    mean_waits: NDArray[Any]
    waits: _Sample
    responses: _Sample
    fast: _Fast

    @property
    def mean_wait(self) -> Estimate:
        """Mean wait, of all customers."""
        mean, luck, error = self.fast.corrected(self.mean_waits)
        return Estimate(max(mean - luck, 0.0), error)

    def wait_quantile(self, p: float) -> Estimate:
        """Return the time that a share `p` of the customers waits at most, 0 <= p <= 0.9999."""
        return self._quantile(self.waits, p)

    def response_quantile(self, p: float) -> Estimate:
        """Return the time that a share `p` of the customers takes at most, wait and service together, 0 <= p <= 0.9999."""
        return self._quantile(self.responses, p)

    def _quantile(self, sample: _Sample, p: float) -> Estimate:
        number(p, "p", maximum=_MOST_LEVEL)
        low, high = 0.0, _MOST_LEVEL
        for _ in range(_HALVINGS):  # where is the share of this run, lucky or not, at whose time the share of all is p?
            middle = 0.5 * (low + high)
            above, luck, _ = self.fast.corrected(sample.share_above(middle))
            low, high = (middle, high) if above - luck > 1.0 - p else (low, middle)
        level = 0.5 * (low + high)
        error = self.fast.corrected(sample.share_above(level))[2]
        visits = LONG_BATCHES * PER_LONG_BATCH * (1.0 - p) / self.memory
        if 1.0 - level < _LEAST_SEEN * (1.0 - p) or visits < _LEAST_VISITS:
            return Estimate(sample.quantile(level), math.inf)
        return Estimate(sample.quantile(level), 0.5 * (sample.quantile(level + error) - sample.quantile(level - error)))


@functools.lru_cache(maxsize=128)
def simulate_queue(servers: int, load: float, services: Times, arrivals: Times, *, seed: int = 0) -> QueueRun:
    """Return a run at a `load` per server: four million customers, and forty of a fast server; seconds, and nothing asked again.

    >>> run = simulate_queue(2, 0.8, Times("exponential", 1.0), Times("exponential", 1.0))
    >>> abs(run.mean_wait.value / (16.0 / 9.0) - 1.0) < 0.01  # 0.8^2/(1 - 0.8^2) services
    True
    """
    positive_int(servers, "servers", maximum=MOST_SERVERS)
    number(load, "load", minimum=LEAST_LOAD, maximum=MOST_LOAD)
    rng = np.random.default_rng(seed)
    count = math.ceil(PER_BATCH / servers) * servers
    gap = 1.0 / (load * servers)
    in_turn = servers == 1 or services.law == "deterministic"
    serve: Callable[..., NDArray[Any]] = _serve_in_turn if in_turn else _serve
    free, fast = [0.0] * servers, [0.0]

    def draw(customers: int) -> tuple[NDArray[Any], NDArray[Any], float]:
        """Return arrivals from now on, services, and their surplus."""
        gaps, served = gap * arrivals.draw(rng, customers), services.draw(rng, customers)
        return np.cumsum(gaps), served, float(served.mean() / servers - gaps.mean() - (1.0 / servers - gap))

    surplus, waits, responses, quick = np.zeros(BATCHES), *(np.zeros((BATCHES, count)) for _ in range(3))
    for batch in range(-2, BATCHES):
        times, served, more = draw(count)
        found, alone = serve(times, served, free), _serve_in_turn(times, served / servers, fast)
        free, fast = [at - times[-1] for at in free], [fast[0] - times[-1]]
        if batch >= 0:
            surplus[batch], waits[batch], responses[batch], quick[batch] = more, found, found + served, alone
    levels = np.quantile(quick, _SEEN)
    seen = np.array([_shares(batch, levels) for batch in quick])
    long_surplus, long_seen = np.zeros(LONG_BATCHES), np.zeros((LONG_BATCHES, seen.shape[1]))
    for batch in range(LONG_BATCHES):
        times, served, long_surplus[batch] = draw(PER_LONG_BATCH)
        long_seen[batch] = _shares(_serve_in_turn(times, served / servers, fast), levels)
        fast = [fast[0] - times[-1]]
    known, covariance = _long_run(long_surplus, long_seen)
    beside = _Fast(surplus, seen, known, covariance)
    memory = (arrivals.scv + services.scv) / (1.0 - load) ** 2  # of a Brownian motion with that drift and variance
    return QueueRun(BATCHES * count, max(memory, 1.0), waits.mean(axis=1), _Sample.of(waits), _Sample.of(responses), beside)


def _shares(waits: NDArray[Any], levels: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of waits and the shares above some levels."""
    return np.array([waits.mean(), *(np.count_nonzero(waits > level) / len(waits) for level in levels)])


def _long_run(surplus: NDArray[Any], seen: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the means of what was seen, corrected by the surplus, and the covariance of their errors."""
    luck = surplus - surplus.mean()
    square = float(luck @ luck)
    slopes = luck @ (seen - seen.mean(axis=0)) / square if square > 0 else np.zeros(seen.shape[1])
    rest = seen - seen.mean(axis=0) - np.outer(luck, slopes)
    count = len(surplus)
    return seen.mean(axis=0) - slopes * surplus.mean(), rest.T @ rest / (count * (count - 2))


def _serve(times: NDArray[Any], served: NDArray[Any], free: list[float]) -> NDArray[Any]:
    """Return the waits of customers that come at ascending times; ``free``: a heap of when each server is, left as it ends.

    Each goes to the server that is free first (Kiefer and Wolfowitz 1955, "On the theory of queues with many servers").
    """
    waits: list[float] = []
    wait = waits.append
    for time, service in zip(times.tolist(), served.tolist(), strict=True):
        first = free[0]
        if first > time:
            wait(first - time)
            heapreplace(free, first + service)
        else:
            wait(0.0)
            heapreplace(free, time + service)
    return np.array(waits)


def _serve_in_turn(times: NDArray[Any], served: NDArray[Any], free: list[float]) -> NDArray[Any]:
    """Do the same where servers are free in turn, as one is, and as those are whose services are equal: without a loop.

    A server's n-th customer starts at max over k <= n of (when k came + the services from k to n-1) (Lindley 1952, "The theory of
    queues with a single server").
    """
    came, work = times.reshape(-1, len(free)), served.reshape(-1, len(free))
    before = np.cumsum(work, axis=0) - work
    idle = came - before
    idle[0] = np.maximum(idle[0], free)
    starts = np.maximum.accumulate(idle, axis=0) + before
    free[:] = (starts[-1] + work[-1]).tolist()
    out: NDArray[Any] = np.maximum(starts - came, 0.0).ravel()
    return out
