"""From a forecast of a server to the `result` of `serve`: plain data, keys with their units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import ServingForecast
from foretell.cost.kv_search import share_interval
from foretell.cost.serving_host import interval_of
from foretell.errors import InputError
from foretell.plan.serving_advice import Fix, admitted
from foretell.plan.serving_curve import CurvePoint
from foretell.sim.outcome import Outcome, Summary

__all__ = ["FLAG_NAMES", "interval_basis", "plain_number", "result_of"]

FLAG_NAMES: Final = {
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "tensorrt-llm": "free_gpu_memory_fraction",
    "lmdeploy": "cache_max_entry_count",
    "tgi": "cuda_memory_fraction",
}
"""Engine -> its own name of the memory flag."""
_SPEEDS: Final = (
    "ttft_s",
    "queue_s",
    "prompt_s",
    "itl_s",
    "gap_s",
    "request_s",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "duration_s",
    "capacity_requests_per_s",
    "backlog_growth_per_s",
    "utilization",
    "mfu",
    "resident",
    "decoding",
    "waiting",
)


def result_of(
    forecast: ServingForecast,
    demand: Demand,
    curve: Sequence[CurvePoint] = (),
    outcome: Outcome | None = None,
    *,
    split: Mapping[str, Any] | None = None,
    slo: Mapping[str, Any] | None = None,
    sizing: Mapping[str, Any] | None = None,
    launch: Mapping[str, Any] | None = None,
    fixes: Sequence[Fix] = (),
    seed: int = 0,
    assumed: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/serve.json` describes it.

    With a simulation (``outcome``) means are its own, else the closed form's (``basis``).
    """
    found = forecast.deployment
    speeds = _speeds(forecast, outcome)
    return {
        "model": found.workload.name,
        "parameters": found.workload.parameters,
        "layers": found.steps.arch.layers,
        "gpu": found.hardware.name,
        "gpus": forecast.gpus,
        "replicas": forecast.replicas,
        "feasible": forecast.feasible,
        "starts": forecast.feasible and found.capacity.holds_longest,
        "keeps_up": forecast.feasible and forecast.stable,
        "shortfall_bytes": round(found.capacity.shortfall_bytes),
        "load": _load(demand),
        "basis": "closed form" if outcome is None else "simulation",
        **speeds,
        **_intervals(forecast, speeds),
        "interval_basis": interval_basis(forecast),
        "max_resident": forecast.max_resident,
        "bound": forecast.bound,
        "step": _step(forecast),
        "kv": _kv(found, demand),
        "curve": [asdict(one) for one in curve],
        "percentiles": None if outcome is None else _percentiles(outcome),
        "simulation": None if outcome is None else _simulation(outcome, seed),
        "split": None if split is None else dict(split),
        "slo": None if slo is None else dict(slo),
        "sizing": None if sizing is None else dict(sizing),
        "fixes": [fix.to_dict() for fix in fixes],
        "launch": None if launch is None else dict(launch),
        "regime": forecast.regime,
        "assumed": list(assumed),
    }


def interval_basis(forecast: ServingForecast) -> str:
    """Say where the intervals come from."""
    if forecast.deployment.steps.share is not None:
        return "none: a share of the peak was given in place of the calibrated model"
    kind = {
        "single": "one request after the other",
        "static": "one batch",
        "closed": "a constant number of requests in flight",
        "open": "arrivals at a rate",
        "offline": "requests that are all there at the start",
    }
    words = forecast.regime.split()
    said = f"90 % of measured runs with {kind[words[0]]}"
    return f"{said}; widened, as this engine or accelerator was not among them" if len(words) > 1 else said


def plain_number(value: float | None) -> float | None:
    """Return a whole number as one.

    >>> plain_number(32.0), plain_number(0.5), plain_number(None)
    (32, 0.5, None)
    """
    return int(value) if value is not None and value == int(value) else value


def _load(demand: Demand) -> dict[str, Any]:
    return {
        "kind": demand.kind,
        "input_tokens": plain_number(demand.inputs),
        "output_tokens": plain_number(demand.outputs),
        "cached_tokens": plain_number(demand.cached),
        "longest_output": plain_number(demand.longest),
        "input_cv": demand.input_cv,
        "concurrency": plain_number(demand.concurrency),
        "requests_per_s": demand.rate,
        "arrival_cv": demand.arrival_cv if demand.kind == "open" else None,
        "burst": None if demand.burst is None else dict(demand.burst),
        "requests": demand.requests,
    }


def _speeds(forecast: ServingForecast, outcome: Outcome | None) -> dict[str, Any]:
    """Return times and rates; an endless queue has none."""
    out = {name: _finite(getattr(forecast, name)) for name in _SPEEDS}
    if not out["itl_s"]:  # answers of one token
        out["itl_s"] = out["gap_s"] = None
    if outcome is None:
        return out
    top = forecast.capacity_requests_per_s
    rate = outcome.requests_per_s
    return out | {
        "ttft_s": outcome.ttft.mean,
        "queue_s": outcome.wait.mean,
        "prompt_s": None if outcome.ttft.mean is None else outcome.ttft.mean - (outcome.wait.mean or 0.0) - _client(forecast),
        "itl_s": outcome.tpot.mean,
        "gap_s": outcome.itl.p50,
        "request_s": outcome.e2e.mean,
        "requests_per_s": rate,
        "output_tokens_per_s": outcome.output_tokens_per_s,
        "total_tokens_per_s": outcome.total_tokens_per_s,
        "output_tokens_per_s_per_gpu": outcome.output_tokens_per_s / forecast.gpus,
        "duration_s": outcome.duration_s,
        "utilization": rate / top if top else None,
        "resident": outcome.resident_mean,
    }


def _client(forecast: ServingForecast) -> float:
    steps = forecast.deployment.steps
    return steps.engine.request_s if steps.share is None else 0.0


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _intervals(forecast: ServingForecast, speeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the 90 % intervals around the means; none where two roofs alone decide."""
    out: dict[str, Any] = {"client_s": _client(forecast) if forecast.feasible else None}
    for name, metric in (("ttft_s", "ttft"), ("itl_s", "itl"), ("output_tokens_per_s", "throughput")):
        value = speeds[name]
        key = name.replace("_s", "_interval_s") if metric != "throughput" else "output_tokens_per_s_interval"
        if value is None or forecast.deployment.steps.share is not None:
            out[key] = None
            continue
        low, high = interval_of(forecast.regime, metric)
        least = forecast.ttft_floor_s or 0.0 if metric == "ttft" else 0.0
        out[key] = [max(value * low, min(least, value)), value * high]
    return out


def _step(forecast: ServingForecast) -> dict[str, Any]:
    """Return the mean step by what it spends its time on, what proposes tokens among it."""
    terms = {name: float(spent) for name, spent in forecast.ledger.items() if spent > 0}
    return {"total_s": sum(terms.values()), "tokens_per_sequence": forecast.deployment.made, "ledger_s": terms}


def _kv(found: Deployment, demand: Demand) -> dict[str, Any]:
    """Return the pool of one accelerator, and what it holds."""
    c, traffic = found.capacity, demand.traffic
    return {
        "tokens": c.tokens,
        "interval_tokens": list(c.interval),
        "blocks": c.blocks,
        "block_size": c.block_size,
        "pool_bytes": round(c.pool_bytes),
        "bytes_per_token": c.bytes_per_token,
        "device_bytes": round(c.budget.device),
        "weights_bytes": round(c.budget.weights),
        "max_model_len": found.recipe.max_model_len,
        "max_concurrency": c.max_concurrency if c.feasible else 0.0,
        "holds_longest": c.feasible and c.holds_longest,
        "request_tokens": traffic.inputs + (traffic.longest or traffic.outputs),
        "max_requests": admitted(c, traffic),
        "ledger": [{**term._asdict(), "bytes": round(term.bytes)} for term in c.ledger],
        "memory_flag": _memory_flag(found),
    }


def _memory_flag(found: Deployment) -> dict[str, Any] | None:
    """Return the engine's memory flag, and between which values it starts and does not run out."""
    name = FLAG_NAMES.get(found.recipe.engine, "memory share")
    if found.recipe.memory_share is None:
        return None
    try:
        interval = share_interval(found.workload.architecture, found.hardware, found.recipe)
    except InputError:
        return None
    feasible = interval.feasible
    return {
        "name": name,
        "value": found.recipe.memory_share,
        "low": interval.low,
        "high": interval.high if interval.high is None or interval.high > 0 else None,
        "feasible": feasible,
        "why": interval.why,
    }


def _percentiles(outcome: Outcome) -> dict[str, Any]:
    """Return the distributions of a simulation, seconds."""
    found = {
        "ttft_s": outcome.ttft,
        "tpot_s": outcome.tpot,
        "gap_s": outcome.itl,
        "request_s": outcome.e2e,
        "queue_s": outcome.wait,
    }
    return {name: _summary(summary) for name, summary in found.items()}


def _summary(found: Summary) -> dict[str, float | None]:
    values = {name: getattr(found, name) for name in ("mean", "p50", "p90", "p95", "p99", "maximum")}
    return {name: None if value is None else max(0.0, value) for name, value in values.items()}  # rounding leaves -1e-20


def _simulation(outcome: Outcome, seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "requests": outcome.requests,
        "unfinished": outcome.unfinished,
        "rejected": outcome.rejected,
        "duration_s": outcome.duration_s,
        "resident_mean": outcome.resident_mean,
        "resident_max": outcome.resident_max,
        "kv_mean": outcome.kv_mean,
        "kv_max": outcome.kv_max,
        "utilization": outcome.utilisation,
        "preemptions": outcome.preemptions,
        "steps": outcome.steps,
        "slo_share": outcome.slo_share,
        "goodput_per_s": outcome.goodput_per_s,
    }
