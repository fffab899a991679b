"""The few functions that formulas need besides ``+ - * /``, for Python numbers and NumPy arrays alike.

NumPy is imported only where an array comes in: a single answer never pays for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = [
    "Value",
    "ceil",
    "exp",
    "expm1",
    "known",
    "log1p",
    "log2",
    "maximum",
    "minimum",
    "otherwise",
    "power",
    "rounding",
    "sqrt",
    "where",
]

Value = Any
"""A number, or an array of numbers broadcast against the others."""


_PLAIN = (float, int, bool)
"""Types that need no look at their attributes: most values are numbers."""


def is_array(*values: Value) -> bool:
    """Whether any of the values is a NumPy array.

    >>> is_array(1.0, 2)
    False
    """
    for value in values:  # noqa: SIM110  # any() makes a generator: three times as long, and every formula asks
        if value.__class__ not in _PLAIN and hasattr(value, "dtype"):
            return True
    return False


def maximum(a: Value, b: Value) -> Value:
    """Larger of two, elementwise."""
    if a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return max(a, b)
    if is_array(a, b):
        import numpy as np  # noqa: PLC0415  # 0.1 s, for sweeps only

        return np.maximum(a, b)
    return max(a, b)


def minimum(a: Value, b: Value) -> Value:
    """Smaller of two, elementwise."""
    if a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return min(a, b)
    if is_array(a, b):
        import numpy as np  # noqa: PLC0415

        return np.minimum(a, b)
    return min(a, b)


def ceil(a: Value) -> Value:
    """Smallest whole number that is not below, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.ceil(a)
    return float(math.ceil(a))


def rounding(*values: Value) -> tuple[Callable[[Value], Value], Callable[..., Value], Callable[..., Value]]:
    """Return :func:`ceil`, :func:`maximum` and :func:`minimum` for values of these kinds: inner loops ask only once.

    >>> up, larger, smaller = rounding(0.5, 2)
    >>> up(0.5), larger(0.5, 2), smaller(0.5, 2)
    (1, 2, 0.5)
    """
    if is_array(*values):
        import numpy as np  # noqa: PLC0415

        return np.ceil, np.maximum, np.minimum
    return math.ceil, max, min


def where(condition: Value, a: Value, b: Value) -> Value:
    """``a`` where the condition holds, else ``b``.

    >>> where(True, 1.0, 2.0)
    1.0
    """
    if condition.__class__ is bool and a.__class__ in _PLAIN and b.__class__ in _PLAIN:
        return a if condition else b
    if is_array(condition, a, b):
        import numpy as np  # noqa: PLC0415

        return np.where(condition, a, b)
    return a if condition else b


def log2(a: Value) -> Value:
    """Binary logarithm, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.log2(a)
    return math.log2(a)


def exp(a: Value) -> Value:
    """Exponential, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.exp(a)
    return math.exp(a)


def power(a: Value, b: Value) -> Value:
    """``a`` to the ``b``, elementwise."""
    if a.__class__ is float and b.__class__ is float:
        return a**b
    if is_array(a, b):
        import numpy as np  # noqa: PLC0415

        return np.power(a, b)
    return float(a**b)


def expm1(a: Value) -> Value:
    """``exp(a) - 1``, exact where ``a`` is small, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.expm1(a)
    return math.expm1(a)


def log1p(a: Value) -> Value:
    """``log(1 + a)``, exact where ``a`` is small, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.log1p(a)
    return math.log1p(a)


def sqrt(a: Value) -> Value:
    """Square root, elementwise."""
    if is_array(a):
        import numpy as np  # noqa: PLC0415

        return np.sqrt(a)
    return math.sqrt(a)


def known(a: Value) -> Value:
    """Whether a number is one, rather than the NaN that stands for "left open"; elementwise.

    >>> known(1.0), known(float("nan"))
    (True, False)
    """
    return a == a  # noqa: PLR0124  # NaN is not equal to itself


def otherwise(a: Value, b: Value) -> Value:
    """``a`` where it is known, else ``b``.

    >>> otherwise(float("nan"), 2.0)
    2.0
    """
    return where(known(a), a, b)
