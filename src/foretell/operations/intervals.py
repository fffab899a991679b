"""How often to save a checkpoint, and what share of the time is training then.

Names: `block` (d) seconds for which training stands still for one checkpoint, `mtbf` (M) mean seconds between failures of the
whole job, `restart` (R) seconds from a failure until training goes on, `interval` (t) seconds of *work* between two
checkpoints, the block left out.  Failures are exponential and may come at any time, in a checkpoint and in a restart too.
Numbers or arrays, broadcast against one another.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

from typing import Final

from foretell.cost.arrays import Value, exp, expm1, is_array, log1p, maximum, minimum, sqrt, where

__all__ = [
    "FIRST_ORDER_HOLDS",
    "LONG_BLOCK",
    "availability_optimal",
    "complete_efficiency",
    "exact",
    "first_order",
    "first_order_efficiency",
    "first_order_waste",
    "higher_order",
    "square_root",
    "wall_time_ratio",
]

FIRST_ORDER_HOLDS: Final = 0.01
"""Block over MTBF up to which the first-order share is within a point of the complete model's (without restarts)."""
LONG_BLOCK: Final = 0.5
"""... from which on Young's interval loses a twentieth of the useful time against the optimum, which is then 30 % at best."""
_ROUNDS: Final = 60
_SMALL: Final = 0.01
"""Below this the series is used, whose terms to this power give all digits."""
_TERMS: Final = 9
_LARGEST: Final = 600.0
"""Exponents above this are as good as infinite: exp(600) is 1e260, and the factor beside it at most 1e15."""


def square_root(block: Value, mtbf: Value) -> Value:
    """Return Young's interval, sqrt(2 d M) (Young 1974).

    >>> square_root(300.0, 21600.0)
    3600.0
    """
    return sqrt(2.0 * block * mtbf)


def first_order(block: Value, mtbf: Value) -> Value:
    """Return Daly's first-order interval, sqrt(2 d M) - d (Daly 2006, section 2); 0 or less, and wrong, where d >= 2M.

    >>> first_order(300.0, 21600.0)
    3300.0
    """
    return square_root(block, mtbf) - block


def higher_order(block: Value, mtbf: Value) -> Value:
    """Return Daly's higher-order interval: sqrt(2 d M) (1 + x/3 + x^2/9) - d, x = sqrt(d / 2M), or M where d >= 2M (equation 37).

    >>> round(higher_order(300.0, 21600.0), 4), higher_order(600.0, 300.0)
    (3402.7778, 300.0)
    """
    x = sqrt(block / (2.0 * mtbf))
    return where(block < 2.0 * mtbf, square_root(block, mtbf) * (1.0 + x / 3.0 + x * x / 9.0) - block, mtbf * 1.0)


def exact(block: Value, mtbf: Value) -> Value:
    """Return the interval that makes Daly's complete model best: M (1 + W0(-exp(-1 - d/M))), W0 Lambert's function.

    Solved as u + ln(1 - u) = -d/M for u = t/M in (0, 1): no digits are lost where u is small.  The restart time does not move it.

    >>> round(exact(300.0, 21600.0), 4), round(exact(600.0, 300.0), 5)
    (3402.8401, 284.25927)
    """
    ratio = block / mtbf
    return mtbf * where(ratio < 1.0, _near_zero(minimum(ratio, 1.0)), _near_one(maximum(ratio, 1.0)))


def availability_optimal(block: Value, mtbf: Value, restart: Value) -> Value:
    """Return the period of Saxena et al. (arXiv 2410.18124): d + sqrt(d^2 + 2 (M + R) d), the block counted in.

    >>> round(availability_optimal(60.0, 28440.0, 600.0), 5)
    1927.72589
    """
    return block + sqrt(block * block + 2.0 * (mtbf + restart) * block)


def wall_time_ratio(interval: Value, block: Value, mtbf: Value, restart: Value) -> Value:
    """Return wall time over useful time, M/t exp(R/M) (exp((t + d)/M) - 1) (Daly 2006, equation 20); infinite where none is.

    >>> round(1.0 / wall_time_ratio(3600.0, 300.0, 21600.0, 600.0), 8)
    0.81917607
    """
    spent = minimum((interval + block) / mtbf, _LARGEST)
    again = minimum(restart / mtbf, _LARGEST)
    ratio = mtbf / interval * -expm1(-spent) * exp(minimum(again + spent, _LARGEST))
    return where(again + spent < _LARGEST, ratio, float("inf"))


def complete_efficiency(interval: Value, block: Value, mtbf: Value, restart: Value) -> Value:
    """Return the useful share of the wall time under Daly's complete model, 0 to 1.

    >>> round(complete_efficiency(848.52814, 600.0, 600.0, 600.0), 6)
    0.051101
    """
    return 1.0 / wall_time_ratio(interval, block, mtbf, restart)


def first_order_efficiency(interval: Value, block: Value, mtbf: Value, restart: Value) -> Value:
    """Return the first-order share: 1 - d/(t + d) - ((t + d)/2 + R)/M.  Negative where M is short: it does not hold there.

    >>> round(first_order_efficiency(3600.0, 300.0, 21600.0, 600.0), 8)
    0.80502137
    """
    period = interval + block
    return 1.0 - block / period - (period / 2.0 + restart) / mtbf


def first_order_waste(block: Value, mtbf: Value) -> Value:
    """Return the share lost at Young's interval, to first order: d/t + t/2M = sqrt(2 d/M).

    >>> round(first_order_waste(300.0, 21600.0), 9)
    0.166666667
    """
    return sqrt(2.0 * block / mtbf)


def _near_zero(ratio: Value) -> Value:
    """Solve -ln(1 - u) - u = ratio for u by Newton's method, for ratios of at most 1."""
    u = minimum(sqrt(2.0 * ratio), 0.85)
    for _ in range(_ROUNDS):
        safe = maximum(u, 1e-300)
        step = (_excess(u) - ratio) * (1.0 - u) / safe
        u = minimum(maximum(u - step, 0.5 * u), 0.5 * (1.0 + u))
        if not is_array(u) and abs(step) <= 1e-16 * u:
            break
    return u


def _excess(u: Value) -> Value:
    """Return -ln(1 - u) - u; by its series u^2/2 + u^3/3 + ... where the difference would lose digits.

    >>> round(_excess(0.5), 9), round(_excess(1e-6) * 1e12, 7)
    (0.193147181, 0.5000003)
    """
    series = 0.0 * u
    for power in range(_TERMS, 1, -1):
        series = series * u + 1.0 / power
    return where(u < _SMALL, series * u * u, -log1p(-u) - u)


def _near_one(ratio: Value) -> Value:
    """Solve v exp(-v) = exp(-1 - ratio) for v = 1 - u, for ratios of at least 1."""
    target = exp(-1.0 - minimum(ratio, _LARGEST))
    v = target
    for _ in range(_ROUNDS):
        v = target * exp(v)
    return 1.0 - v
