"""The recursion of Erlang's B for many queues at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.operations.erlang import NOTHING, REACH, erlang_b, fractional

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["erlang_b_rows"]

_STRIDE: Final = 256
"""Steps between two looks at which rows are done."""
_FAR: Final = 1e7
"""Loads that need so many steps that each is sooner done alone."""


def erlang_b_rows(servers: Any, offered: Any) -> NDArray[Any]:  # arrays, or one of them a number
    """Return what :func:`foretell.operations.erlang.erlang_b` returns, for every pair of `servers` and `offered` load."""
    c, a = (np.asarray(x, float) for x in np.broadcast_arrays(servers, offered))
    shape = c.shape
    c, a = c.ravel(), a.ravel()
    top = np.minimum(c, a)
    root = np.sqrt((a - top) ** 2 + REACH * a)
    far = REACH * a / np.maximum(a - top + root, NOTHING)
    first, part = np.maximum(np.floor(top - far), 0.0), c % 1.0
    share = np.where(first == 0, fractional(part, a), 1.0 - (first + part) / np.maximum(a, NOTHING))
    share[(a <= 0) & (c > 0)] = 0.0
    left, k = np.floor(c) - first, first + part
    for i in np.flatnonzero(a > _FAR):
        share[i], left[i] = erlang_b(float(c[i]), float(a[i])), 0.0
    rows = np.flatnonzero(left > 0)
    while len(rows):
        steps = int(min(left[rows].min(), _STRIDE))
        now, at, load = share[rows], k[rows], a[rows]
        for _ in range(steps):
            at += 1.0
            now *= load
            now /= at + now
        share[rows], k[rows] = now, at
        left[rows] -= steps
        rows = rows[(left[rows] > 0) & (now >= NOTHING)]
    share[share < NOTHING] = 0.0
    out: NDArray[Any] = share.reshape(shape)
    return out
