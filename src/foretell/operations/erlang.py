"""Erlang's two formulas: the share of requests lost (B) without a queue, and of those that wait (C) with one.

Stable for any number of servers: no factorial, and no more steps than the answer needs.  Numbers or arrays.
"""

from __future__ import annotations

import math
from typing import Final

from foretell.cost.arrays import Value, exp, is_array, maximum, where
from foretell.operations.exponentials import log

__all__ = ["NOTHING", "REACH", "erlang_b", "erlang_c", "fractional"]

NOTHING: Final = 1e-300
"""Smaller shares are 0: they would be lost to underflow a few steps later."""

REACH: Final = 80.0
"""Twice the logarithm by which a wrong start must have shrunk: exp(-40) is below the rounding of a float."""


def erlang_b(servers: Value, offered: Value) -> Value:
    """Return the share of requests that find all `servers` busy where none can wait; `offered` load in servers' worth.

    B(0) = 1, B(k) = a B(k-1) / (k + a B(k-1)) (Erlang 1917; Iversen, Teletraffic Engineering Handbook, section 4.4).  A step
    takes a relative error times k/a at most, so that far below the load any start will do: the recursion begins where an
    error of the start B = 1 - k/a has shrunk below rounding at the end, some nine roots of the load before it.  A fractional
    number of servers starts from :func:`fractional`.

    >>> round(erlang_b(2, 1.0), 12), round(erlang_b(1000, 990.0), 9)
    (0.2, 0.018965776)
    """
    if is_array(servers, offered):
        from foretell.operations._erlang_rows import erlang_b_rows  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return erlang_b_rows(servers, offered)
    if offered <= 0:
        return 0.0 if servers > 0 else 1.0
    top = min(servers, offered)
    gap = offered - top
    far = REACH * offered / (gap + math.sqrt(gap * gap + REACH * offered))
    first, part = max(math.floor(top - far), 0), servers % 1.0
    share = fractional(part, offered) if not first else 1.0 - (first + part) / offered
    for k in range(first + 1, math.floor(servers) + 1):
        share *= offered
        share /= k + part + share
        if share < NOTHING:
            return 0.0
    return share


def erlang_c(servers: Value, offered: Value) -> Value:
    """Return the share of requests that wait (M/M/c, first come first served); 1 where the queue is not stable.

    C = B / (1 - rho (1 - B)).

    >>> erlang_c(1, 0.8), round(erlang_c(5, 4.0), 10), erlang_c(2, 3.0)
    (0.8, 0.5541125541, 1.0)
    """
    stable = offered < servers
    if not is_array(servers, offered):
        if not stable:
            return 1.0
        lost = erlang_b(servers, offered)
        return servers * lost / (servers - offered * (1.0 - lost))
    load = where(stable, offered, 0.5 * servers)
    lost = erlang_b(servers, load)
    return where(stable, servers * lost / (servers - load * (1.0 - lost)), 1.0)


def fractional(part: Value, offered: Value) -> Value:
    """Return Erlang's B of less than one server: the parabola through the logarithms at 0, 1 and 2 servers.

    Rapp's way between whole servers (1964, "Planning of junction network in a multi-exchange area"; Iversen, section 4.4.2) on
    a logarithmic scale, which little load needs; within 3.5 %, and 0.3 % from half a server's load on.

    >>> fractional(0.0, 3.0), round(fractional(1.0, 3.0), 12), round(fractional(0.5, 3.0), 4)
    (1.0, 0.75, 0.8726)
    """
    load = maximum(offered, NOTHING)
    one = log(load) - log(1.0 + load)
    two = one + log(load) - log(2.0 + load * load / (1.0 + load))
    return exp(part * (2.0 - part) * one + 0.5 * part * (part - 1.0) * two)
