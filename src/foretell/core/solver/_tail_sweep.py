"""The question of TailLatencyModel for many loads at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver._axes import Axes
from foretell.core.solver._rows import Reasons, check_axes
from foretell.core.solver._table import Table
from foretell.core.solver.tail_latency import CHECKS, UNSTABLE
from foretell.errors import InputError
from foretell.operations.queueing import Queue, backlog_growth

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["sweep"]

DEFAULTS: Final[dict[str, Any]] = {"num_replicas": 1, "service_time_cv": 1.0, "arrival_cv": 1.0}
_STEP: Final = 100_000
"""Rows that are answered together, which bounds the memory."""


def sweep(given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every load that the axes make."""
    check_axes(given, CHECKS)
    for name in CHECKS:
        if name not in given and name not in DEFAULTS:
            raise InputError("is needed", field=name)
    # Axes asks for a batch, which a queue does not have
    axes = Axes({"batch_size": 1, **{name: _listed(value) for name, value in given.items()}}, product=product, arrays=())
    reasons = Reasons()
    checked = {name: reasons.checked(axes.values.get(name, [DEFAULTS.get(name)]), check) for name, check in CHECKS.items()}
    columns: dict[str, NDArray[Any]] = {}
    reason = np.zeros(len(axes), np.int16)
    for start in range(0, len(axes), _STEP):
        rows = np.arange(start, min(start + _STEP, len(axes)))
        at = {name: axes.index(name, rows) if name in axes.values else np.zeros(len(rows), np.int64) for name in CHECKS}
        for name, (_, codes) in checked.items():
            reason[rows] = np.where(reason[rows] == 0, codes[at[name]], reason[rows])
        found = _answers(*(values[at[name]] for name, (values, _) in checked.items()))
        for name, values in found.items():
            columns.setdefault(name, np.empty(len(axes), values.dtype))[rows] = values
    for name, (values, codes) in checked.items():
        if name in axes.values and not codes.any():
            axes.values[name] = [_plain(name, *pair) for pair in zip(axes.values[name], values.tolist(), strict=True)]
    return _table(axes, columns, reason, reasons)


def _table(axes: Axes, columns: dict[str, NDArray[Any]], reason: NDArray[Any], reasons: Reasons) -> Table:
    """Return the table of the answers, those of rows that mean nothing left out."""
    valid = reason == 0
    stable = columns.pop("stable") & valid
    for values in columns.values():
        values[~valid] = np.nan
    reason[valid & ~stable] = reasons.code(UNSTABLE)
    coded = {name: column for name, column in axes.coded() if name != "batch_size"}
    coded["reason"] = (reason, list(reasons))
    return Table(columns | {"is_stable": stable, "valid": valid, "feasible": stable}, coded, by="p99_latency_s")


def _listed(value: Any) -> Any:  # a value or any sequence of values
    """Return a value that is a quantity as one that is not taken for a sequence."""
    return [value] if hasattr(value, "units") and not getattr(value, "ndim", 0) else value


def _plain(name: str, value: Any, number: float) -> Any:  # what came, or the same as a number
    """Return the value of an axis as the number that it is, in the unit of the axis' name."""
    if isinstance(value, int | float):
        return value
    return number * 1e3 if name == "service_latency_ms" else number


def _answers(
    rate: NDArray[Any], service: NDArray[Any], replicas: NDArray[Any], cv_service: NDArray[Any], cv_arrival: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """Return the columns of some rows."""
    queue = Queue.of(rate, service, replicas, cv_service, cv_arrival)
    latencies = {f"p{round(100 * p)}_latency_s": queue.response_quantile(p) for p in (0.5, 0.9, 0.95, 0.99)}
    return latencies | {
        "mean_latency_s": queue.mean_response,
        "mean_wait_s": queue.mean_wait,
        "p99_wait_s": queue.wait_quantile(0.99),
        "wait_probability": queue.probability,
        "queue_utilization": queue.utilization,
        "backlog_growth_per_s": np.where(queue.stable, 0.0, backlog_growth(rate, service, replicas)),
        "stable": queue.stable,
    }
