"""Replay of collective rows: measured time or bandwidth beside what the topology and the size give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.cost.collectives import calibration, interval
from foretell.errors import ForetellError
from foretell.evidence.collective_rows import METRICS, CollectiveRow, read_row
from foretell.evidence.kinds import Kind
from foretell.evidence.reading import labels, plain, read
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import Scored

__all__ = ["KIND", "score"]


def score(row: Mapping[str, Any]) -> Scored:
    """Predict one row, in the unit of its metric; a row that cannot be predicted says why."""
    try:
        ready = read(read_row, row)
        point = ready.predict()
        return _scored(row, ready, point)
    except Skip as reason:
        return _skipped(row, str(reason))
    except ForetellError as error:
        return _skipped(row, f"not-modelled: {error}")


def _scored(row: Mapping[str, Any], ready: CollectiveRow, point: float) -> Scored:
    unit = METRICS[ready.metric]
    low, high = interval(point, ready.group, ready.topology)
    if ready.metric != "time_us":  # a longer time is a lower bandwidth
        low, high = point * point / high, point * point / low
    return Scored(
        **_common(row),
        metric=ready.metric,
        measured=float(row["measured"][ready.metric]),
        predicted=point / unit,
        low=low / unit,
        high=high / unit,
        note="; ".join(ready.notes),
    )


def _skipped(row: Mapping[str, Any], reason: str) -> Scored:
    measured = row.get("measured")
    metric = next((key for key in METRICS if isinstance(measured, Mapping) and key in measured), "unread")
    value = measured[metric] if isinstance(measured, Mapping) and metric in measured else None
    return Scored(**_common(row), metric=metric, measured=plain(value), skipped=reason)


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    made = labels(row)
    return made | {"framework": _library(str(row.get("algorithm")), made["gpu"])}


def _library(algorithm: str, gpu: str) -> str:
    """Name the library that ran, from the algorithm and the accelerator."""
    if algorithm.casefold().startswith("deepep"):
        return "deepep"
    return "rccl" if gpu.startswith("mi") else "nccl"


def _extra(_: Sequence[Scored]) -> dict[str, Any]:
    """What shipped rows see of constants that were fitted without their source, or without their accelerator."""
    out = calibration()["left_out"]
    sources = out["source"].values()
    rows = sum(found["rows"] for found in sources)
    covered = sum(found["rows"] * found["coverage_pct"] for found in sources) / rows
    return {
        "left_out": {name.rsplit("/", 1)[-1]: found for part in out.values() for name, found in part.items()},
        "coverage_left_out_pct": round(covered, 1),
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
