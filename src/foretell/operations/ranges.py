"""A value as low, point and high with what it rests on: what the data of operations give, since one number would mislead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from foretell.errors import InputError
from foretell.validation import number

__all__ = ["Range", "Source", "as_sources", "merged", "total"]

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """Where a number comes from."""

    title: str
    url: str
    date: str
    basis: str
    """read, secondary or recalled, as the catalog's README says."""

    def to_dict(self) -> dict[str, str]:
        """Return plain data."""
        return {"title": self.title, "url": self.url, "date": self.date, "basis": self.basis}


@dataclass(frozen=True)
class Range:
    """The lowest, the most likely and the highest value of one quantity, in `unit`.

    >>> Range(1.0, 2.0, 4.0, "kg").scaled(8)
    Range(low=8.0, point=16.0, high=32.0, unit='kg', notes=(), sources=())
    >>> Range(3.0, 2.0, 4.0, "kg")
    Traceback (most recent call last):
    foretell.errors.InputError: low=3.0 must not be above the point of 2.0
    """

    low: float
    point: float
    high: float
    unit: str = ""
    notes: tuple[str, ...] = ()
    """What a reader must know: what was assumed, left out, or taken from something else."""
    sources: tuple[Source, ...] = ()

    def __post_init__(self) -> None:
        """Check that the numbers are finite, not negative, and in order."""
        for name in ("low", "point", "high"):
            object.__setattr__(self, name, number(getattr(self, name), name))
        if self.low > self.point:
            raise InputError(f"must not be above the point of {self.point}", field="low", value=self.low)
        if self.high < self.point:
            raise InputError(f"must not be below the point of {self.point}", field="high", value=self.high)

    @classmethod
    def exact(cls, value: float, unit: str = "", notes: tuple[str, ...] = ()) -> Self:
        """Return the range of a value that is known."""
        return cls(value, value, value, unit, notes)

    def __contains__(self, value: float) -> bool:
        """Whether a value lies between the ends."""
        return self.low <= value <= self.high

    def scaled(self, factor: float, unit: str | None = None) -> Self:
        """Return the range times a number that is not negative, in another unit if it is given."""
        factor = number(factor, "factor")
        made = {name: getattr(self, name) * factor for name in ("low", "point", "high")}
        return replace(self, **made, unit=self.unit if unit is None else unit)

    def noted(self, *notes: str) -> Self:
        """Return the range with further notes."""
        return replace(self, notes=merged(self.notes, notes))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "low": self.low,
            "point": self.point,
            "high": self.high,
            "unit": self.unit,
            "notes": list(self.notes),
            "sources": [source.to_dict() for source in self.sources],
        }


def total(parts: Iterable[Range], unit: str) -> Range:
    """Return the sum of ranges of one unit: the ends are added, as if all parts erred the same way.

    >>> total([Range(1, 2, 3, "W"), Range(10, 20, 40, "W")], "W").high
    43.0
    """
    rows = list(parts)
    for row in rows:
        if row.unit != unit:
            raise InputError("is not of the sum's unit", field="unit", value=row.unit, allowed=[unit])
    low, point, high = (math.fsum(getattr(row, name) for row in rows) for name in ("low", "point", "high"))
    notes = merged(*(row.notes for row in rows))
    return Range(low, point, high, unit, notes, merged(*(row.sources for row in rows)))


def merged(*groups: Iterable[T]) -> tuple[T, ...]:
    """Return the members of all groups once each, in their order."""
    return tuple(dict.fromkeys(item for group in groups for item in group))


def as_sources(rows: Iterable[Mapping[str, Any]]) -> tuple[Source, ...]:
    """Return the sources that a data file lists."""
    return tuple(Source(**{key: str(row.get(key, "")) for key in ("title", "url", "date", "basis")}) for row in rows)
