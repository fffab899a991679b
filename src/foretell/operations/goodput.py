"""Goodput: the share of a job's wall time that trains, with failures, checkpoints, and saves that end after training has gone on.

Seconds.  `lag`: from the start of a checkpoint's block until it is safe where a failure cannot reach it, less the block: 0 where
training waits for the save, the rest of the save where it does not.  A failure costs the lag once more, as work that was saved
too late.  A checkpoint cannot start before the one before is safe: the interval is at least the lag.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretell.cost.arrays import Value, expm1, maximum, minimum
from foretell.operations.intervals import complete_efficiency, exact, square_root

__all__ = ["Losses", "best_interval", "ettr", "goodput", "losses"]


def best_interval(block: Value, mtbf: Value, lag: Value = 0.0) -> Value:
    """Return the seconds of work between checkpoints that lose least: the exact optimum, not below the lag.

    >>> round(best_interval(300.0, 21600.0), 2), best_interval(1.0, 21600.0, 600.0)
    (3402.84, 600.0)
    """
    return maximum(exact(block, mtbf), lag)


def goodput(interval: Value, block: Value, mtbf: Value, restart: Value, lag: Value = 0.0) -> Value:
    """Return the useful share, 0 to 1: Daly's complete model, a lag counted as part of every restart.

    That is exact for exponential failures and lags up to the interval, not to first order: with a period P = t + d, a run of
    length U between a restart and the next failure keeps floor((U - lag) / P) intervals, exp(-lag/M) / (exp(P/M) - 1) in the
    mean, and run and restarts together take M exp(R/M).  Of a job that ends, it leaves out the one wait for the last checkpoint.

    >>> round(goodput(3402.84, 300.0, 21600.0, 600.0), 6)
    0.819381
    """
    return complete_efficiency(interval, block, mtbf, restart + lag)


def ettr(rate_per_s: Value, restart: Value, block: Value, interval: Value | None = None) -> Value:
    """Return the effective training time ratio of Meta's clusters: (1 - r (u + t/2)) / (1 + w/t), not below 0.

    `rate_per_s`: failures of the job a second; `interval` by the square-root rule unless it is given.  First order in
    r (u + t/2).  arXiv 2410.21680 (in the form that others transcribed, which gives the paper's figures).

    >>> nodes, rate = 1500, 6.5e-3 / 86400
    >>> round(ettr(nodes * rate, 300.0, 10.0), 7)
    0.9205263
    """
    between = square_root(block, 1.0 / rate_per_s) if interval is None else interval
    return maximum((1.0 - rate_per_s * (restart + between / 2.0)) / (1.0 + block / between), 0.0)


@dataclass(frozen=True, slots=True)
class Losses:
    """Shares of the wall time that sum to one."""

    useful: Value
    checkpoints: Value
    """Training stands still for them."""
    rework: Value
    """Work and blocks done once more after a failure: since the last checkpoint, and for the lag."""
    restarts: Value
    """From a failure until training goes on."""


def losses(interval: Value, block: Value, mtbf: Value, restart: Value, lag: Value = 0.0) -> Losses:
    """Return where the wall time goes.

    Restarts, those that fail and begin again among them, take M (exp(R/M) - 1) of the M exp(R/M) from one run to the next: a
    share of 1 - exp(-R/M).  Checkpoints are those that became safe; what is left is rework.

    >>> found = losses(3402.84, 300.0, 21600.0, 600.0)
    >>> round(found.useful, 4), round(found.checkpoints, 4), round(found.restarts, 4), round(found.rework, 4)
    (0.8194, 0.0722, 0.0274, 0.081)
    """
    useful = goodput(interval, block, mtbf, restart, lag)
    saving = useful * block / interval
    rest = maximum(1.0 - useful - saving, 0.0)
    starting = minimum(rest, -expm1(-restart / mtbf))
    return Losses(useful, saving, rest - starting, starting)
