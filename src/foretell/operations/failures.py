"""Laws of failure: from rates of parts to the mean time between failures of a job, and to the chance of getting through.

Times in any one unit, rates in its inverse.  Numbers or arrays unless a function says otherwise.  A series system: the job stops
when any part does.  Exponential times unless a Weibull shape is given (1 is exponential, below 1 young parts fail more often:
Schroeder and Gibson, DSN 2006, found 0.7 to 0.8 on 23,000 failures).
"""

from __future__ import annotations

import math
from typing import Final

from foretell.cost.arrays import Value, exp, expm1, log1p, power

__all__ = [
    "DAY_H",
    "RATE_NODES",
    "all_up",
    "availability",
    "enough_up",
    "failure_probability",
    "first_of_fresh",
    "job_mtbf_h",
    "rate_of",
    "weibull_probability",
    "with_units",
]

DAY_H: Final = 24.0
RATE_NODES: Final = 1000.0
"""Published rates count failures of a thousand nodes in a day."""
_EXACT_SPARES: Final = 10_000


def rate_of(failures: Value, nodes: Value, days: Value) -> Value:
    """Return failures per 1,000 node-days.

    >>> round(rate_of(419, 2048, 54), 3)  # Llama 3 405B, arXiv 2407.21783, table 5
    3.789
    """
    return RATE_NODES * failures / (nodes * days)


def job_mtbf_h(rate: Value, nodes: Value) -> Value:
    """Return the hours between failures of a job on so many nodes, at failures per 1,000 node-days: 24,000 / (rate nodes).

    >>> round(job_mtbf_h(6.5, 2048), 4)  # arXiv 2410.21680 projects 1.8 h for 16,384 GPUs
    1.8029
    """
    return DAY_H * RATE_NODES / (rate * nodes)


def failure_probability(duration: Value, mtbf: Value) -> Value:
    """Return the chance of at least one failure: 1 - exp(-T/M).

    >>> round(failure_probability(1.0, 1.0), 6)
    0.632121
    """
    return -expm1(-duration / mtbf)


def with_units(each: Value, units: Value) -> Value:
    """Return the chance that at least one of so many equal parts fails, each with the chance `each`: 1 - (1 - p)^n.

    >>> round(with_units(0.01 * 30 / 365, 256), 2)
    0.19
    """
    return -expm1(units * log1p(-each))


def weibull_probability(duration: Value, mean: Value, shape: float, units: Value = 1.0) -> Value:
    """Return the chance that at least one of `units` *fresh* parts of a mean life `mean` fails within a time.

    F(T) = 1 - exp(-n (T gamma(1 + 1/k) / mean)^k).

    >>> round(weibull_probability(0.1, 1.0, 0.7), 5), round(weibull_probability(0.1, 1.0, 1.5), 5)
    (0.20968, 0.02676)
    """
    scaled = power(duration * math.gamma(1.0 + 1.0 / shape) / mean * 1.0, shape)
    return -expm1(-units * scaled)


def first_of_fresh(units: Value, shape: float) -> Value:
    """Return the mean time to the first failure of fresh parts over mean / units, which the long-run rate promises: n^(1 - 1/k).

    >>> round(first_of_fresh(1000.0, 0.7), 5), round(first_of_fresh(1000.0, 1.5), 6)
    (0.05179, 10.0)
    """
    return power(units * 1.0, 1.0 - 1.0 / shape)


def availability(mtbf: Value, mttr: Value) -> Value:
    """Return the share of time that one part is up: M / (M + repair).

    >>> availability(99.0, 1.0)
    0.99
    """
    return mtbf / (mtbf + mttr)


def all_up(share: Value, units: Value) -> Value:
    """Return the share of time that all of so many parts are up, each for a share.

    >>> round(all_up(0.999, 1000), 4)
    0.3677
    """
    return exp(units * log1p(-(1.0 - share)))


def enough_up(share: float, needed: int, spares: int) -> float:
    """Return the share of time that at least `needed` of `needed + spares` parts are up, each for `share`: a binomial tail.

    Exact to 10,000 spares; beyond those the answer is that of 10,000, which is lower.  Plain numbers only.

    >>> enough_up(0.5, 1, 1), round(enough_up(0.999, 1000, 3), 3)
    (0.75, 0.981)
    """
    if share >= 1.0:
        return 1.0
    if share <= 0.0:
        return 0.0
    spares = min(spares, _EXACT_SPARES)
    total = needed + spares
    log_term = total * math.log(share)  # none down
    out = math.exp(log_term)
    odds = math.log1p(-share) - math.log(share)
    for down in range(1, spares + 1):
        log_term += math.log((total - down + 1) / down) + odds
        out += math.exp(log_term)
    return min(out, 1.0)
