"""Samples of what is only known as a range: for the band of an answer that many of them make together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from foretell.operations.ranges import Range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["QUANTILES", "from_interval", "from_range", "quantiles"]

QUANTILES: Final = (0.1, 0.5, 0.9)
"""Ends and middle of the band: four of five runs lie in it, if the ranges hold."""
_Z90: Final = 1.6448536269514722
"""Of a normal law, 90 % lies within this many standard deviations."""


def from_range(rng: np.random.Generator, value: Range, n: int) -> NDArray[Any]:
    """Return samples between a range's ends with its point as the likeliest: a triangle, of logarithms where no end is 0.

    The ends of a catalog range are the lowest and highest that were seen, so no sample lies outside.
    """
    import numpy as np  # noqa: PLC0415  # 100 ms: only for those who ask for a band

    if value.low == value.high:
        return np.full(n, value.point)
    if value.low <= 0:
        return rng.triangular(value.low, value.point, value.high, n)
    return np.exp(rng.triangular(math.log(value.low), math.log(value.point), math.log(value.high), n))


def from_interval(rng: np.random.Generator, point: float, interval: tuple[float, float], n: int) -> NDArray[Any]:
    """Return samples of a forecast with a 90 % interval: logarithms normal on either side of the point, each of its width."""
    import numpy as np  # noqa: PLC0415

    low, high = (abs(math.log(end / point)) / _Z90 if end > 0 else 0.0 for end in interval)
    z = rng.standard_normal(n)
    return np.asarray(point * np.exp(z * np.where(z < 0, low, high)))


def quantiles(values: Any) -> tuple[float, float, float]:
    """Return P10, P50 and P90 of samples."""
    import numpy as np  # noqa: PLC0415

    low, middle, high = np.quantile(values, QUANTILES)
    return float(low), float(middle), float(high)
