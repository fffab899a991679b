"""Quantiles and exponents of the laws that late requests are made of.  NumPy arrays."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["exponent_of", "gamma_quantile", "mixed_quantile", "over_mean", "transform"]

Array = NDArray[Any]

_LEAST_SHAPE: Final = 0.05
"""Of a gamma law whose quantiles are taken."""
_HALVINGS: Final = 16
"""Of the interval in which a quantile lies."""
_EQUAL: Final = 1e-3
"""Spread below which all values are one."""
_FARTHEST: Final = 60.0
"""Largest exponent that is looked for, in services."""


def transform(exponent: Array, rate: Array, cv: float) -> Array:
    """Mean of exp(-exponent x) over gamma times x between arrivals.

    >>> transform(np.array([1.0]), np.array([1.0]), 1.0).tolist()  # Poisson: rate / (rate + exponent)
    [0.5]
    """
    found: Array = (1.0 + exponent * cv**2 / rate) ** (-1.0 / cv**2)
    return found


def exponent_of(busy: Array, spread: float, cv: float) -> Array:
    """Exponent of the tail of the wait, in services: where service and time between arrivals (gamma both) balance.

    ``busy``: load of the server; ``spread`` and ``cv``: standard deviation over mean of services and of times between arrivals.

    >>> exponent_of(np.array([0.5, 0.8]), 1.0, 1.0).round(6).tolist()  # 1 - load: exponential services, Poisson arrivals
    [0.5, 0.2]
    """
    equal = spread < _EQUAL
    low, high = np.full_like(busy, 1e-9), np.full_like(busy, _FARTHEST if equal else 1.0 / spread**2)
    for _ in range(40):
        x = (low + high) / 2.0
        served = x if equal else -np.log1p(-np.minimum(x * spread**2, 1.0 - 1e-12)) / spread**2
        beyond = served > np.log1p(x * cv**2 / busy) / cv**2
        low, high = np.where(beyond, low, x), np.where(beyond, x, high)
    found: Array = high
    return found


def over_mean(spread: float, share: float) -> float:
    """Quantile of a lognormal law of mean 1, over that; 0 where the quantile is below the mean.

    >>> round(over_mean(1.0, 0.99), 2), over_mean(1.0, 0.5)
    (3.9, 0.0)
    """
    wide = math.log1p(spread**2)
    return max(math.expm1(NormalDist().inv_cdf(share) * math.sqrt(wide) - wide / 2.0), 0.0)


def gamma_quantile(mean: Array, variance: Array, share: float) -> Array:
    """Quantile of a gamma law (Wilson and Hilferty 1931, PNAS 17).

    >>> gamma_quantile(np.array([1.0]), np.array([1.0]), 0.99).round(2).tolist()  # exponential: ln 100 = 4.61
    [4.61]
    """
    shape = np.maximum(mean**2 / np.maximum(variance, 1e-12 * mean**2 + 1e-300), _LEAST_SHAPE)
    z = NormalDist().inv_cdf(share)
    found: Array = mean * np.maximum(1.0 - 1.0 / (9.0 * shape) + z / (3.0 * np.sqrt(shape)), 0.0) ** 3
    return found


def mixed_quantile(mean: Array, variance: Array, count: Array, weight: Array, share: float) -> Array:
    """Quantile of sums of so many ``count`` delays on average, or none, of requests of several kinds (rows with their weights).

    None with probability exp(-count) (Poisson); where there are some, gamma with the moments that are left (Wilson and Hilferty
    1931, PNAS 17).

    >>> one = np.ones((1, 1))
    >>> mixed_quantile(one, one, 50.0 * one, one, 0.99).round(2).tolist()  # exponential: ln 100 = 4.61
    [4.6]
    >>> mixed_quantile(0.02 * one, 0.02 * one, 0.02 * one, one, 0.95).tolist()  # in one of fifty
    [0.0]
    """
    some = -np.expm1(-np.maximum(count, 1e-12))
    own = np.maximum(mean, 1e-12) / some
    shape = own**2 / np.maximum((variance + mean**2) / some - own**2, 1e-4 * own**2)
    low, high = np.zeros(mean.shape[1]), (mean + 12.0 * np.sqrt(variance)).max(axis=0) + 1e-12
    for _ in range(_HALVINGS):
        x = (low + high) / 2.0
        z = 3.0 * np.sqrt(shape) * ((x / own) ** (1.0 / 3.0) - 1.0 + 1.0 / (9.0 * shape))
        beyond = (weight * some * _upper(z)).sum(axis=0) > 1.0 - share
        low, high = np.where(beyond, x, low), np.where(beyond, high, x)
    never = (weight * some).sum(axis=0) <= 1.0 - share
    found: Array = np.where(never, 0.0, high)
    return found


def _upper(z: Array) -> Array:
    """Share of the normal law above, within 0.0002 (Page 1977, Applied Statistics 26)."""
    near = np.clip(z, -9.0, 9.0)
    found: Array = 1.0 / (1.0 + np.exp(1.5976 * near + 0.070566 * near**3))
    return found
