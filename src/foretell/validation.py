"""Checks at the door: a value comes out as the plain type it should have, or an InputError names it.

Imports errors only.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from foretell.errors import InputError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_DEGREE", "MAX_SEQUENCE", "choice", "flag", "number", "positive_int"]

MAX_DEGREE = 10**9
"""Largest parallel degree, batch or count that is taken for a meant one (all GPUs ever made are fewer)."""

MAX_SEQUENCE = 10**8
"""Largest sequence length (tokens) that is taken for a meant one."""


def positive_int(
    value: object,
    field: str,
    *,
    minimum: int = 1,
    maximum: int = MAX_DEGREE,
    where: str | None = None,
) -> int:
    """Return `value` as an int between `minimum` and `maximum`, or raise an InputError that names `field`.

    A whole float (8.0) and a NumPy integer are taken; a boolean, a fraction, NaN, infinity and text are not.

    >>> positive_int(8.0, "tp_size")
    8
    >>> positive_int(True, "tp_size")
    Traceback (most recent call last):
    foretell.errors.InputError: tp_size=True must be a whole number, not a boolean; allowed: 1 to 1000000000
    """
    whole, problem = _whole(value)
    if whole is not None and minimum <= whole <= maximum:
        return whole
    if whole is not None:
        problem = f"is {'below the smallest' if whole < minimum else 'above the largest'} value taken"
    raise InputError(problem, field=field, value=value, allowed=f"{minimum} to {maximum}", where=where)


def number(
    value: object,
    field: str,
    *,
    minimum: float = 0.0,
    maximum: float = math.inf,
    where: str | None = None,
) -> float:
    """Return `value` as a finite float in [minimum, maximum], or raise an InputError that names `field`.

    >>> number(0.05, "communication_buffer_fraction", maximum=1)
    0.05
    """
    result: float | None = None
    if not isinstance(value, bool | str | bytes):
        try:
            result = float(value)  # type: ignore[arg-type]  # any object: what float() refuses is refused here
        except (TypeError, ValueError, OverflowError):
            result = None
    if result is not None and math.isfinite(result) and minimum <= result <= maximum:
        return result
    allowed = f"{minimum:g} to {maximum:g}" if math.isfinite(maximum) else f"{minimum:g} or more"
    problem = "must be a finite number in range"
    raise InputError(problem, field=field, value=value, allowed=allowed, where=where)


def flag(value: object, field: str, *, where: str | None = None) -> bool:
    """Return `value` if it is a boolean: "no", 0 and None are not taken for False."""
    if isinstance(value, bool):
        return value
    raise InputError("must be true or false", field=field, value=value, allowed=[True, False], where=where)


def choice(value: object, field: str, allowed: Iterable[str], *, where: str | None = None) -> str:
    """Return `value` if it is one of `allowed`, or raise an InputError with the nearest names.

    >>> choice("ful", "recompute", ["none", "full"])
    Traceback (most recent call last):
    foretell.errors.InputError: recompute='ful' is not known; allowed: none, full. Did you mean full?
    """
    names = list(allowed)
    if isinstance(value, str) and value in names:
        return value
    near = nearest(value, names, most=1) if isinstance(value, str) else []
    hint = f"Did you mean {near[0]}?" if near else None
    raise InputError("is not known", field=field, value=value, allowed=names, where=where, hint=hint)


def _whole(value: Any) -> tuple[int | None, str]:  # anything may come through the door
    """Return (the whole number, "") or (None, why it is none)."""
    if isinstance(value, bool):
        return None, "must be a whole number, not a boolean"
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            return None, "must be a whole number"
        return int(value), ""
    try:
        return operator.index(value), ""
    except TypeError:
        return None, f"must be a whole number, not {type(value).__name__}"
