"""The question of TailLatencyModel for many loads at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver._numeric_sweep import Numeric
from foretell.core.solver.tail_latency import CHECKS, UNSTABLE
from foretell.operations.queueing import Queue, backlog_growth

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["sweep"]

DEFAULTS: Final[dict[str, Any]] = {"num_replicas": 1, "service_time_cv": 1.0, "arrival_cv": 1.0}


def sweep(given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every load that the axes make."""
    how = Numeric(CHECKS, DEFAULTS, _answers, by="p99_latency_s", unfit=UNSTABLE, shown=_plain)
    table = how.sweep(given, product=product)
    return table.with_column("is_stable", table["feasible"])


def _plain(name: str, value: Any, number: float) -> Any:  # what came, or the same as a number
    """Return the value of an axis as the number that it is, in the unit of the axis' name."""
    if isinstance(value, int | float):
        return value
    return number * 1e3 if name == "service_latency_ms" else number


def _answers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of some rows."""
    rate, service, replicas, cv_service, cv_arrival = (settings[name] for name in CHECKS)
    queue = Queue.of(rate, service, replicas, cv_service, cv_arrival)
    latencies = {f"p{round(100 * p)}_latency_s": queue.response_quantile(p) for p in (0.5, 0.9, 0.95, 0.99)}
    return latencies | {
        "mean_latency_s": queue.mean_response,
        "mean_wait_s": queue.mean_wait,
        "p99_wait_s": queue.wait_quantile(0.99),
        "wait_probability": queue.probability,
        "queue_utilization": queue.utilization,
        "backlog_growth_per_s": np.where(queue.stable, 0.0, backlog_growth(rate, service, replicas)),
        "feasible": queue.stable,
    }
