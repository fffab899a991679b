"""Checks of numeric parameters that several solvers have, and of those that may be left open, which is NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from foretell.units import parse
from foretell.validation import number, positive_int

__all__ = ["MACHINES", "NAN", "Check", "maybe"]

Check = Callable[[object], float]
"""What gives a parameter's plain number; InputError for a value that means nothing."""
NAN: Final = float("nan")


def maybe(check: Check) -> Check:
    """Return a check that takes None too, as NaN."""
    return lambda value: NAN if value is None else check(value)


MACHINES: Final[dict[str, Check]] = {
    "pue": maybe(lambda value: number(value, "pue", minimum=1.0, maximum=10.0)),
    "node_power_w": maybe(lambda value: number(parse(value, "W", "node_power_w"), "node_power_w", minimum=1e-3, maximum=1e9)),
    "life_years": maybe(lambda value: number(value, "life_years", minimum=0.1, maximum=100.0)),
    "nodes": lambda value: positive_int(value, "nodes"),
}
"""... of machines that run for a time, whatever is asked of them."""
