"""ServingForecast: what a deployment does under a demand: TTFT, ITL, throughput, what is resident, and what holds it up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Final

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand, checked_demand
from foretell.core.solver._result import Result
from foretell.cost.serving_flow import Flow, at_concurrency, at_rate, job_s, largest_rate, prompt_s, resident_limit
from foretell.cost.serving_host import calibration, family_of, interval_of
from foretell.cost.serving_load import Load

__all__ = ["Point", "ServingForecast", "point", "regime_of", "serve"]

SOURCES: Final = (
    "catalog/data/calibration/kernels.json",
    "catalog/data/calibration/collectives.json",
    "catalog/data/calibration/serving.json",
)
_FEW: Final = 20.0
"""Requests for each place in the batch from which on a job is in its steady state for most of its time."""


@dataclass(frozen=True)
class ServingForecast(Result):
    """One deployment under one demand; means, of the whole deployment unless a name says otherwise."""

    title: ClassVar[str] = "step"

    feasible: bool
    """Weights and one request's keys and values fit."""
    stable: bool
    """The server keeps up with the arrivals."""
    ttft_s: float | None
    """Mean time to first token: client, queue, prompt; None where nothing is served."""
    ttft_interval_s: tuple[float, float] | None
    ttft_floor_s: float | None
    """What the arithmetic of the prompt takes at the peak: no interval begins below it."""
    queue_s: float | None
    """Of it, until the request is admitted."""
    prompt_s: float | None
    """Of it, the steps that read the prompt."""
    itl_s: float | None
    """Mean time between two tokens of a request (time per output token)."""
    itl_interval_s: tuple[float, float] | None
    gap_s: float | None
    """The usual step between two tokens, without the stalls of prompts."""
    request_s: float | None
    """Mean time of a whole request."""
    requests_per_s: float | None
    output_tokens_per_s: float | None
    output_tokens_per_s_interval: tuple[float, float] | None
    total_tokens_per_s: float | None
    """Prompts' tokens included."""
    output_tokens_per_s_per_gpu: float | None
    duration_s: float | None
    """Of a job with a known number of requests."""
    capacity_requests_per_s: float | None
    """The rate above which the queue grows for ever."""
    backlog_growth_per_s: float | None
    """Requests by which the queue grows every second, where arrivals exceed that rate; 0 where they do not."""
    resident: float | None
    """Requests that are read or decode, of one replica."""
    decoding: float | None
    waiting: float | None
    max_resident: float
    """What the scheduler admits at these lengths, of one replica."""
    bound: str
    """What holds the resident batch down."""
    kv_tokens: int
    """Of one replica."""
    kv_bytes: float
    """... on one accelerator."""
    weights_bytes: float
    """On one accelerator."""
    available_bytes: float
    utilization: float | None
    """Of the largest rate that the server keeps up with."""
    ledger: Mapping[str, float]
    """Seconds of the mean step, by what it spends them on."""
    mfu: float | None
    """FLOP of what is served over the peak of the deployment."""
    replicas: int
    gpus: int
    regime: str
    """Whose residuals the intervals were set from."""
    notes: tuple[str, ...]
    assumed: tuple[str, ...]
    sources: tuple[str, ...] = SOURCES
    _flow: Flow | None = field(default=None, repr=False, compare=False)
    _deployment: Deployment | None = field(default=None, repr=False, compare=False)

    @property
    def deployment(self) -> Deployment:
        """What was served."""
        assert self._deployment is not None  # noqa: S101  # set by serve()
        return self._deployment

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; what is infinite (the wait of a queue that grows for ever) is null, as JSON has no infinity."""
        return {name: _finite(value) for name, value in super().to_dict().items()}

    def explain(self) -> str:
        """Return the mean step's ledger as text."""
        total = sum(self.ledger.values())
        lines = [f"{self.title} {total * 1e3:.4g} ms"]
        for name, spent in sorted(self.ledger.items(), key=lambda item: -item[1]):
            if spent > 0:
                lines.append(f"  {name:18s} {spent * 1e3:10.4g} ms {100 * spent / total:5.1f} %")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _finite(value: Any) -> Any:
    """Return a value with None for infinities, inside lists too."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class Point:
    """What one replica does."""

    ttft: float
    queue: float
    prompt: float
    itl: float
    gap: float
    rate: float
    """Requests a second."""
    load: Load
    decoding: float
    reading: float
    waiting: float
    bound: str
    stable: bool = True
    duration: float | None = None
    flow: Flow | None = None


def serve(found: Deployment, demand: Demand) -> ServingForecast:
    """Return what a deployment does under a demand; InputError or CombinationError for a demand that means nothing."""
    asked = checked_demand(demand)
    limits, traffic = found.limits, asked.traffic
    most, _ = resident_limit(traffic, limits)
    fits = found.capacity.feasible and most >= 1.0
    capacity = found.capacity
    common: dict[str, Any] = {
        "max_resident": most,
        "kv_tokens": int(limits.kv_tokens),
        "kv_bytes": capacity.pool_bytes,
        "weights_bytes": capacity.budget.weights,
        "available_bytes": capacity.budget.device,
        "replicas": found.replicas,
        "gpus": found.recipe.devices,
        "assumed": found.resolved.assumed,
        "_deployment": found,
    }
    regime = regime_of(found, asked)
    if not fits:
        return _nothing(found, common, regime)
    return _forecast(found, asked, point(found, asked), common, regime)


def regime_of(found: Deployment, demand: Demand) -> str:
    """Name whose residuals an interval takes."""
    engine = found.resolved.engine
    known = family_of(engine.name, engine.version)[1] and found.resolved.certain
    seen = found.hardware.id in calibration()["devices"]
    experts = " experts" if found.steps.arch.experts else ""
    return f"{demand.kind}{experts}" + ("" if known and seen else " elsewhere")


def _nothing(found: Deployment, common: dict[str, Any], regime: str) -> ServingForecast:
    """What is said of a deployment that cannot hold one request."""
    short = found.capacity.shortfall_bytes
    why = (
        f"does not fit: {short / 2**30:.2f} GiB are missing on each accelerator"
        if short > 0
        else "one request needs more KV than there is"
    )
    known: dict[str, Any] = common | {
        "feasible": False,
        "stable": False,
        "bound": "memory",
        "ledger": {},
        "regime": regime,
        "notes": (why, *found.notes),
    }
    nothing: dict[str, Any] = dict.fromkeys(f.name for f in fields(ServingForecast) if f.default is MISSING)
    return ServingForecast(**(nothing | known))


def point(found: Deployment, asked: Demand) -> Point:
    """What one replica does with its part of a demand."""
    traffic, limits, n = asked.traffic, found.limits, found.replicas
    client = found.steps.engine.request_s if found.steps.share is None else 0.0
    if asked.kind in ("single", "static"):
        return _batch(found, asked, client)
    speed = {"width": found.width, "made": found.made}
    if asked.kind == "open":
        assert asked.rate is not None  # noqa: S101  # checked
        flow = at_rate(found, traffic, limits, asked.rate / n, arrival_cv=asked.arrival_cv, **speed)
    elif asked.kind == "closed":
        assert asked.concurrency is not None  # noqa: S101  # checked
        flow = at_concurrency(found, traffic, limits, asked.concurrency / n, width=found.width, made=found.made)
    else:
        return _job(found, asked, client, speed)
    return _of(flow, client)


def _of(flow: Flow, client: float, duration: float | None = None, rate: float | None = None) -> Point:
    return Point(
        client + flow.ttft_s,
        flow.queue_s,
        flow.prompt_s,
        flow.itl_s,
        flow.gap_s,
        flow.rate if rate is None else rate,
        flow.load,
        flow.decoding,
        flow.reading,
        flow.waiting,
        flow.bound,
        flow.stable,
        duration,
        flow,
    )


def _batch(found: Deployment, asked: Demand, client: float) -> Point:
    """One batch that starts together, or one request after the other."""
    traffic = asked.traffic
    size = 1.0 if asked.kind == "single" else float(asked.concurrency or 1.0) / found.replicas
    reading = prompt_s(found, traffic, found.limits, size)
    load = Load(decode=size, context=size * (traffic.inputs + (traffic.outputs + 1.0) / 2.0), width=found.width)
    step = float(found.seconds(load))
    itl = step / found.made
    whole = reading + client + (traffic.outputs - 1.0) * itl
    bound = "demand" if asked.kind == "single" else "batch"
    return Point(reading + client, 0.0, reading, itl, step, size / whole, load, size, 0.0, 0.0, bound)


def _job(found: Deployment, asked: Demand, client: float, speed: Mapping[str, float]) -> Point:
    """Requests that are all there at the start."""
    traffic, limits, n = asked.traffic, found.limits, found.replicas
    given = None if asked.concurrency is None else asked.concurrency / n
    requests = None if asked.requests is None else asked.requests / n
    most, _ = resident_limit(traffic, limits)
    places = min(most, given or math.inf, requests or math.inf)
    if places < most or given is not None:
        together = min(places, most)
        flow = at_concurrency(found, traffic, limits, together, width=found.width, made=found.made, staggered=True)
    else:
        flow = largest_rate(found, traffic, limits, **speed)
    if requests is None or requests > _FEW * places:
        return _of(flow, client)
    duration = job_s(found, traffic, limits, requests, places, **speed)
    return _of(flow, client, duration, requests / duration)


def _forecast(found: Deployment, asked: Demand, p: Point, common: dict[str, Any], regime: str) -> ServingForecast:
    n, traffic = found.replicas, asked.traffic
    rate = p.rate * n
    out = rate * traffic.outputs
    top = None if p.flow is None else p.flow.top
    if top is None:
        top = largest_rate(found, traffic, found.limits, width=found.width, made=found.made).rate
    notes = list(found.notes)
    if not p.stable:
        notes.append(f"arrivals exceed the {top * n:.4g} requests a second that it can serve: the queue grows for ever")
    arch = found.steps.arch
    matrices = arch.active_parameters - (arch.vocab or 0) * arch.hidden  # the token table is looked up
    flops = 2.0 * matrices * (traffic.computed + traffic.outputs) * rate
    peak = found.steps.device.low_peak if found.steps.formats.low else found.steps.device.peak
    floor = 2.0 * matrices * traffic.computed / (peak * found.recipe.tp * found.recipe.pp)
    return ServingForecast(
        feasible=True,
        stable=p.stable,
        ttft_s=p.ttft,
        ttft_interval_s=_not_below(_around(p.ttft, regime, "ttft"), floor),
        ttft_floor_s=floor,
        queue_s=p.queue,
        prompt_s=p.prompt,
        itl_s=p.itl,
        itl_interval_s=_around(p.itl, regime, "itl"),
        gap_s=p.gap,
        request_s=p.ttft + max(traffic.outputs - 1.0, 0.0) * p.itl,
        requests_per_s=rate,
        output_tokens_per_s=out,
        output_tokens_per_s_interval=_around(out, regime, "throughput"),
        total_tokens_per_s=out + rate * traffic.inputs,
        output_tokens_per_s_per_gpu=out / found.recipe.devices,
        duration_s=p.duration,
        capacity_requests_per_s=top * n,
        backlog_growth_per_s=max(0.0, (asked.rate or 0.0) - top * n) if asked.kind == "open" else 0.0,
        resident=p.decoding + p.reading,
        decoding=p.decoding,
        waiting=p.waiting,
        bound=p.bound,
        utilization=rate / (top * n),
        ledger=_ledger(found, p),
        mfu=flops / (peak * found.recipe.devices),
        regime=regime,
        notes=tuple(dict.fromkeys(notes)),
        _flow=p.flow,
        **common,
    )


def _ledger(found: Deployment, p: Point) -> dict[str, float]:
    """Seconds of the mean step by what it spends them on, what proposes tokens included."""
    steps = p.flow.steps if p.flow is not None and p.flow.steps else ((1.0, p.load),)
    out: dict[str, float] = {}
    for often, load in steps:
        terms: dict[str, float] = found.steps.ledger(load)
        if found.recipe.speculation is not None:
            terms["draft"] = float(found.seconds(load)) - sum(terms.values())
        for name, spent in terms.items():
            out[name] = out.get(name, 0.0) + often * float(spent)
    return out


def _not_below(interval: tuple[float, float], least: float) -> tuple[float, float]:
    """Return an interval that begins no earlier than the peak allows."""
    return max(interval[0], min(least, interval[1])), interval[1]


def _around(value: float, regime: str, metric: str) -> tuple[float, float]:
    low, high = interval_of(regime, metric)
    return value * low, value * high
