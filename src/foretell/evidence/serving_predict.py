"""What is predicted for each measured value of a row."""

from __future__ import annotations

from dataclasses import replace

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import Point, point
from foretell.cost.serving_load import Load
from foretell.evidence.serving_rows import ServingRow
from foretell.sim.outcome import Summary
from foretell.sim.serving import play

__all__ = ["family", "predicted", "simulated"]

_LONGEST = 100.0
"""Seconds of a request, at most, by which arrivals are counted that are in flight together."""
_WAVES, _FEWEST, _MOST = 10, 100, 6000
"""Requests that are played where a row states none: so many for each in flight, and at least; and at most, of a closed loop."""
_FAR = 100_000.0
"""Context tokens over which the slope of a step is taken."""


def predicted(row: ServingRow, found: Deployment | None = None) -> dict[str, float]:
    """Values of the row's metrics that the closed form gives; ``found`` replaces the row's deployment (fits).

    A row of a deployment that cannot hold its requests has none but its capacity.
    """
    deployment = found or row.deployment
    capacity = deployment.capacity
    out = {"kv_tokens": float(max(capacity.tokens, 0)), "kv_bytes": capacity.pool_bytes}
    if row.demand is None or not capacity.feasible:
        return out
    p = point(deployment, row.demand)
    out |= _speeds(row, row.demand, p)
    if "itl_slope_s_per_context_token" in row.measured:
        out |= _line(deployment)
    return out


def _speeds(row: ServingRow, demand: Demand, p: Point) -> dict[str, float]:
    rate = p.rate * row.deployment.replicas / (row.gpus if row.per_gpu else 1)
    client = row.deployment.steps.engine.request_s
    ttft = p.ttft - (client if row.engine_only else 0.0)
    output = demand.outputs * rate
    out = {
        "ttft_s": ttft,
        "itl_s": p.gap if row.step_gap and row.statistic == "median" else p.itl,
        "output_tokens_per_s": output,
        "total_tokens_per_s": output + demand.inputs * rate,
        "input_tokens_per_s": demand.inputs * rate,
    }
    if demand.kind == "single":  # prompt and answer are timed apart
        out["input_tokens_per_s"] = demand.inputs / p.prompt
        out["output_tokens_per_s"] = 1.0 / p.itl if demand.outputs > 1 and "itl_s" in row.measured else output
    return out


def simulated(row: ServingRow) -> dict[str, float]:
    """Values of the row's metrics that a simulation of its demand gives."""
    demand = row.demand
    assert demand is not None  # noqa: S101  # asked only where there is one
    requests = None
    if demand.requests is None:
        in_flight = demand.concurrency or 0.0
        if demand.rate is not None:
            p = point(row.deployment, demand)
            in_flight = demand.rate * min(p.ttft + demand.outputs * p.itl, _LONGEST)
        requests = int(min(max(_WAVES * in_flight, _FEWEST), _MOST))
    elif demand.requests > _MOST and demand.kind != "open":
        demand = replace(demand, requests=_MOST)
    found = play(row.deployment, demand, requests=requests)
    tokens = found.output_tokens_per_s / (row.gpus if row.per_gpu else 1)
    share = found.total_tokens_per_s / found.output_tokens_per_s if found.output_tokens_per_s else 1.0
    gaps = found.itl if row.step_gap else found.tpot
    values = {
        "ttft_s": _middle(found.ttft, row.ttft_statistic),
        "itl_s": _middle(gaps, row.statistic),
        "ttft_p99_s": found.ttft.p99,
        "itl_p99_s": gaps.p99,
        "output_tokens_per_s": tokens,
        "total_tokens_per_s": tokens * share,
        "input_tokens_per_s": tokens * (share - 1.0),
    }
    return {name: value for name, value in values.items() if value is not None}


def _middle(found: Summary, statistic: str) -> float | None:
    """Mean where a row says so, or says nothing: it is what load generators print first."""
    return found.p50 if statistic == "median" else found.mean


def _line(found: Deployment) -> dict[str, float]:
    """A step as a straight line over the context of one sequence."""
    near, far = (float(found.seconds(Load(decode=1.0, context=seen))) for seen in (1.0, _FAR))
    slope = (far - near) / (_FAR - 1.0)
    return {"itl_s": near - slope, "itl_slope_s_per_context_token": slope}


def family(metric: str) -> str:
    """Name the group of metrics whose intervals one takes."""
    if metric.startswith("ttft"):
        return "ttft"
    if metric.startswith("itl"):
        return "itl"
    return "kv" if metric.startswith("kv") else "throughput"
