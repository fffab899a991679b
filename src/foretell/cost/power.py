"""Energy of an accelerator at work, from its rated power alone."""

from __future__ import annotations

from typing import Final

from foretell.cost.arrays import Value, minimum

__all__ = ["IDLE", "NOTE", "energy"]

IDLE: Final = 0.3
"""Share of the rated power that an accelerator takes while a job holds it and nothing runs (assumed: between an idle card's
tenth and a busy one's whole)."""
NOTE: Final = (
    "energy: rated power x (0.3 + 0.7 x the busier of arithmetic and memory); assumed, not measured; the host is left out"
)


def energy(tdp_w: Value, seconds: Value, load: Value) -> Value:
    """Joules of one device; ``load``: share of its peak arithmetic or of its bandwidth that is used, whichever is larger.

    >>> energy(700.0, 2.0, 1.0), energy(700.0, 2.0, 0.0)
    (1400.0, 420.0)
    """
    return tdp_w * seconds * (IDLE + (1.0 - IDLE) * minimum(load, 1.0))
