"""Error statistics of a replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Scored:
    """One measured value and what was predicted for it, or why it was skipped."""

    id: str
    source: str
    framework: str
    metric: str
    confidence: int
    measured: float | None
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    skipped: str | None = None
    note: str = ""
    outcome: str | None = None
    verdict: str | None = None
    gpu: str = ""
    """Accelerator, where rows of the kind are grouped by it."""

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured value lies in the interval."""
        if self.measured is None or self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        """The contract's row."""
        error = self.error
        row: dict[str, Any] = {
            "id": self.id,
            "source": self.source,
            "framework": self.framework,
            "metric": self.metric,
            "confidence": self.confidence,
            "measured": self.measured,
            "predicted": self.predicted,
            "low": self.low,
            "high": self.high,
            "error_pct": None if error is None else 100 * error,
            "inside_interval": self.inside,
            "skipped": self.skipped,
        }
        if self.outcome is not None:
            row |= {"outcome": self.outcome, "verdict": self.verdict}
        if self.note:
            row["note"] = self.note
        return row


def quantile(values: Sequence[float], q: float) -> float:
    """Linear-interpolated quantile of a non-empty sequence.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summary(rows: Iterable[Scored]) -> dict[str, Any]:
    """The contract's statistics of a set of rows."""
    rows = list(rows)
    errors = [r.error for r in rows if r.error is not None]
    inside = [r.inside for r in rows if r.inside is not None]
    absolute = [abs(e) for e in errors]

    def percent(value: float) -> float:
        return round(100 * value, 3)

    return {
        "n": len(errors),
        "skipped": sum(r.skipped is not None for r in rows),
        "mape_pct": percent(sum(absolute) / len(absolute)) if absolute else None,
        "median_ape_pct": percent(quantile(absolute, 0.5)) if absolute else None,
        "p90_ape_pct": percent(quantile(absolute, 0.9)) if absolute else None,
        "bias_pct": percent(sum(errors) / len(errors)) if errors else None,
        "coverage_pct": percent(sum(inside) / len(inside)) if inside else None,
    }


def grouped(rows: Iterable[Scored], key: Callable[[Scored], str]) -> dict[str, dict[str, Any]]:
    """:func:`summary` of each group."""
    groups: dict[str, list[Scored]] = {}
    for r in rows:
        groups.setdefault(key(r), []).append(r)
    return {name: summary(members) for name, members in sorted(groups.items())}
