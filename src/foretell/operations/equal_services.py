"""Poisson arrivals before c servers whose services all take the same time (M/D/c): the exact law of the wait.

The unit of time is the service.  Two moments give the mean of such waits well, and their shares badly: few wait for a whole
service, and a queue of equal services empties by the clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EqualServices"]

_MOST_LOAD: Final = 0.9999
"""Nearer to 1 the law of those waiting needs more than a million points."""
_TAIL: Final = 160.0
"""Points of the transform, in lengths of the geometric tail: what is cut off and folded back is exp(-40), below rounding."""
_LEAST_POINTS: Final = 256
_SPREADS: Final = 12.0
"""Standard deviations of a Poisson law beyond which nothing is left of it."""
_HALVINGS: Final = 80


@dataclass(frozen=True)
class EqualServices:
    """A queue in its steady state."""

    servers: int
    load: float
    """Per server."""
    at_most: NDArray[Any]
    """Probability that no more than n wait, n = 0, 1, ..."""

    @classmethod
    def of(cls, servers: int, load: float) -> EqualServices:
        """Return the queue of a `load` per server, 0 to 0.9999.

        Those that wait after a service time are those that waited before it and all that arrived since, less c, if that is more
        than none (Crommelin 1932): the greatest height of a random walk.  Its generating function is exp of the powers of z that
        are not negative in -log(1 - z^-c exp(c rho (z - 1))), as far as they exceed those at 1 (Spitzer 1956, "A combinatorial
        lemma and its application to probability theory").  The powers come from a Fourier transform between the circle of
        radius 1 and that of eta > 1, rho (eta - 1) = log(eta), with which the tail falls off.

        >>> queue = EqualServices.of(10, 0.9)
        >>> round(queue.mean_wait, 6), round(queue.wait_tail(0.0), 6)
        (0.344582, 0.646861)
        """
        if not 0.0 <= load <= _MOST_LOAD:
            raise InputError("has no exact law here", field="load", value=load, allowed=f"0 to {_MOST_LOAD}")
        if not load:
            return cls(servers, load, np.ones(1))
        fall = _fall(load)
        points = 1 << math.ceil(math.log2(max(_TAIL / fall, _LEAST_POINTS)))
        turn = 2j * np.pi * np.arange(points) / points
        powers = 0.5 * fall * np.arange(points // 2)  # logarithms of the powers of the radius, the root of eta
        log_z = 0.5 * fall + turn
        heights = np.fft.fft(-np.log(-np.expm1(servers * (load * np.expm1(log_z) - log_z)))) / points
        upward = np.zeros(points, complex)
        upward[: points // 2] = heights[: points // 2]
        at_one = float(np.sum(upward[1 : points // 2].real * np.exp(-powers[1:])))
        upward[0] = -at_one  # a walk that never rises stays: the law sums to 1
        law = np.fft.fft(np.exp(np.fft.ifft(upward) * points)).real[: points // 2] / points * np.exp(-powers)
        return cls(servers, load, np.minimum(np.cumsum(np.maximum(law, 0.0)), 1.0))

    @property
    def mean_wait(self) -> float:
        """Mean wait in services, by Little's law from the mean number that wait; 0 without load.

        >>> EqualServices.of(1, 0.5).mean_wait.__round__(12)
        0.5
        """
        return float(np.sum(1.0 - self.at_most)) / (self.servers * self.load) if self.load else 0.0

    def wait_tail(self, time: float) -> float:
        """Return the share of requests that wait longer than a time.

        Who comes when n wait is served after k services less x if, of those that are ahead, no more than k c - 1 are left after
        it has waited x; those come from the Poisson arrivals of the rest of the k-th service (Franx 2001, "A simple solution for
        the M/D/c waiting time distribution", Operations Research Letters 29).

        >>> round(EqualServices.of(1, 0.5).wait_tail(0.0), 12), round(EqualServices.of(1, 0.5).wait_tail(0.5), 6)
        (0.5, 0.357987)
        """
        if not self.load:
            return 0.0
        whole = math.floor(time) + 1
        mean = self.servers * self.load * (whole - time)
        most = min(whole * self.servers, math.ceil(mean + _SPREADS * math.sqrt(mean) + 40.0))
        counts = np.arange(most)
        logs = counts * math.log(mean) - mean - np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
        left = whole * self.servers - 1 - counts
        ahead = np.where(left < len(self.at_most), self.at_most[np.minimum(left, len(self.at_most) - 1)], 1.0)
        return max(1.0 - float(np.sum(np.exp(logs) * ahead)), 0.0)

    def wait_quantile(self, p: float) -> float:
        """Return the time that a share `p` of the requests waits at most, 0 <= p < 1 - 1e-9.

        >>> round(EqualServices.of(10, 0.9).wait_quantile(0.99), 3), EqualServices.of(100, 0.95).wait_quantile(0.5)
        (2.07, 0.0)
        """
        if self.wait_tail(0.0) <= 1.0 - p:
            return 0.0
        low, high = 0.0, 1.0
        while self.wait_tail(high) > 1.0 - p:
            low, high = high, 2.0 * high
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.wait_tail(middle) > 1.0 - p else (low, middle)
        return high


def _fall(load: float) -> float:
    """Return the logarithm of eta > 1, load (eta - 1) = log(eta), by Newton's method from above.

    >>> round(_fall(0.5), 6)
    1.256431
    """
    at = min(2.0 * (1.0 - load) / load, 3.0 * (1.0 - math.log(load)))
    for _ in range(100):
        step = (load * math.expm1(at) - at) / (load * math.exp(at) - 1.0)
        at -= step
        if abs(step) < 1e-14 * at:
            break
    return at
