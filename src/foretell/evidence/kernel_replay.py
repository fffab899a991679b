"""Replay of kernel rows: the measured time of one kernel beside what its shape and its device give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.cost.kernel_shares import calibration, interval
from foretell.errors import ForetellError
from foretell.evidence.kernel_rows import KernelRow, read_row
from foretell.evidence.kinds import Kind
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import Scored

__all__ = ["KIND", "score"]

_METRIC = "time_us"


def score(row: Mapping[str, Any]) -> Scored:
    """Predict one row, in microseconds; a row that cannot be predicted says why."""
    try:
        ready = _read(row)
        point = ready.predict()
    except Skip as reason:
        return _skipped(row, str(reason))
    except ForetellError as error:
        return _skipped(row, f"not-modelled: {error}")
    low, high = interval(point, ready.kind, ready.compute_capability, ready.gpu)
    return Scored(
        **_common(row),
        measured=ready.measured * 1e6,
        predicted=point * 1e6,
        low=low * 1e6,
        high=high * 1e6,
        note="; ".join(ready.notes),
    )


def _read(row: Mapping[str, Any]) -> KernelRow:
    """Read a row; one whose values do not go together is left out, with what went wrong."""
    try:
        return read_row(row)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ForetellError):
            raise
        what = f"{type(error).__name__}: {str(error)[:80]}"
        raise Skip(f"underspecified: the row cannot be read ({what})") from error


def _skipped(row: Mapping[str, Any], reason: str) -> Scored:
    measured = row.get("measured")
    value = measured.get(_METRIC) if isinstance(measured, Mapping) else None
    plain = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Scored(**_common(row), measured=plain, skipped=reason)


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    source, hardware, confidence = row.get("source"), row.get("hardware"), row.get("confidence")
    title = source.get("title") if isinstance(source, Mapping) else None
    gpu = str(hardware.get("gpu")) if isinstance(hardware, Mapping) else "unread"
    return {
        "id": str(row["id"])[:200],
        "source": str(title).rsplit("/", 1)[-1][:100],
        "framework": str(row.get("kind"))[:100],
        "metric": _METRIC,
        "confidence": confidence if isinstance(confidence, int) else 0,
        "gpu": gpu[:100],
    }


def _extra(_: Sequence[Scored]) -> dict[str, Any]:
    """What shipped rows see of shares that were fitted without their source, their accelerator, or a fifth of all rows."""
    out = calibration()["left_out"]
    sources = out["source"].values()
    rows = sum(found["rows"] for found in sources)
    return {
        "left_out": {name: found for part in out.values() for name, found in part.items()},
        "coverage_left_out_pct": round(sum(found["rows"] * found["coverage_pct"] for found in sources) / rows, 1),
    }


KIND = Kind(
    score=score,
    groups={
        "by_source": lambda r: r.source,
        "by_metric": lambda r: r.metric,
        "by_framework": lambda r: r.framework,
        "by_gpu": lambda r: r.gpu,
        "by_confidence": lambda r: f"{r.confidence} {r.metric}",
    },
    extra=_extra,
)
