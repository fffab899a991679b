"""What a count says of the rate behind it: the exact interval of a Poisson mean."""

from __future__ import annotations

import math

from foretell.validation import number, positive_int

__all__ = ["cumulative", "interval"]


def cumulative(count: int, mean: float) -> float:
    """Return the probability of at most `count` events where `mean` are expected.

    Two events or fewer at a mean of 1: (1 + 1 + 1/2)/e.

    >>> round(cumulative(2, 1.0), 6)
    0.919699
    """
    count = positive_int(count, "count", minimum=0)
    mean = number(mean, "mean")
    if mean == 0.0:
        return 1.0
    # the sum from its largest term downwards, which is the last one where the count is below the mean
    top = min(count, int(mean))
    peak = math.exp(top * math.log(mean) - mean - math.lgamma(top + 1))
    if peak == 0.0:
        return 0.0 if count < mean else 1.0
    below, term = 0.0, 1.0
    for k in range(top, 0, -1):
        below += term
        term *= k / mean
        if term < 1e-18:  # less than a double shows
            break
    else:
        below += term
    above, term = 0.0, 1.0
    for k in range(top + 1, count + 1):
        term *= mean / k
        above += term
        if term < 1e-18:
            break
    return min(peak * (below + above), 1.0)


def interval(count: int, level: float = 0.9) -> tuple[float, float]:
    """Return the ends between which the mean behind a count lies, with confidence `level`, exact (Garwood 1936).

    The low end is the mean at which so many events or more have a chance of (1-level)/2, the high end the one at which so many
    or fewer do: the chi-square quantiles of 2k and 2k + 2 degrees, halved. Two events: 0.355 to 6.296.

    >>> [round(end, 3) for end in interval(2)]
    [0.355, 6.296]
    """
    count = positive_int(count, "count", minimum=0)
    tail = (1.0 - number(level, "level", minimum=0.01, maximum=0.9999)) / 2.0
    low = 0.0 if count == 0 else _mean_where(count - 1, 1.0 - tail)
    return low, _mean_where(count, tail)


def _mean_where(count: int, probability: float) -> float:
    """Return the mean at which `count` events or fewer have a probability, by halving: it falls as the mean grows."""
    low, high = 0.0, count + 10.0 * math.sqrt(count + 1.0) + 20.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        if cumulative(count, middle) > probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
