"""What every replay does with a row that may hold anything: read it or say why not, and name it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from foretell.errors import ForetellError
from foretell.evidence.row_run import Skip

__all__ = ["labels", "plain", "read"]

T = TypeVar("T")


def read(reader: Callable[[Mapping[str, Any]], T], row: Mapping[str, Any]) -> T:
    """Read a row; one whose values do not go together is left out (Skip), with what went wrong."""
    try:
        return reader(row)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ForetellError):
            raise
        what = f"{type(error).__name__}: {str(error)[:80]}"
        raise Skip(f"underspecified: the row cannot be read ({what})") from error


def plain(value: object) -> float | None:
    """Return a number that JSON can hold, else None.

    >>> plain(3), plain(True), plain(float("inf")), plain("3")
    (3.0, None, None, None)
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < sys.float_info.max:
        return None
    return float(value)


def labels(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row's id, source (the last part of its title), confidence and accelerator."""
    source, hardware, confidence = row.get("source"), row.get("hardware"), row.get("confidence")
    title = source.get("title") if isinstance(source, Mapping) else None
    gpu = str(hardware.get("gpu")) if isinstance(hardware, Mapping) else "unread"
    return {
        "id": str(row["id"])[:200],
        "source": str(title).rsplit("/", 1)[-1][:100],
        "confidence": confidence if isinstance(confidence, int) else 0,
        "gpu": gpu[:100],
    }
