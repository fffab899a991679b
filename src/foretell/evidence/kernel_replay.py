"""Replay of kernel rows: the measured time of one kernel beside what its shape and its device give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.cost.kernel_shares import calibration, interval
from foretell.errors import ForetellError
from foretell.evidence.kernel_rows import read_row
from foretell.evidence.kinds import Kind
from foretell.evidence.reading import labels, plain, read
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import Scored

__all__ = ["KIND", "score"]

_METRIC = "time_us"


def score(row: Mapping[str, Any]) -> Scored:
    """Predict one row, in microseconds; a row that cannot be predicted says why."""
    try:
        ready = read(read_row, row)
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


def _skipped(row: Mapping[str, Any], reason: str) -> Scored:
    measured = row.get("measured")
    value = measured.get(_METRIC) if isinstance(measured, Mapping) else None
    return Scored(**_common(row), measured=plain(value), skipped=reason)


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    return labels(row) | {"framework": str(row.get("kind"))[:100], "metric": _METRIC}


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
