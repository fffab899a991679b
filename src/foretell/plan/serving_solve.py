"""One kind of replica against a load and its targets: the rate that one serves, how many are needed, and what holds it up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand
from foretell.plan.serving_option import Option, OptionPoint
from foretell.plan.serving_slo import SloTargets, Target
from foretell.plan.serving_space import Candidate
from foretell.plan.serving_tail import Array, Late, Tail

__all__ = ["solved"]

_LOADS: Final = (0.002, 0.01, 0.03, 0.06, 0.1, 0.15, 0.21, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.84, 0.92, 1.0)
"""Shares of the largest load that are priced."""
_SLACK: Final = 1e-9


def solved(
    candidate: Candidate,
    demand: Demand,
    slo: SloTargets,
    *,
    most_load: float,
    max_gpus: int | None = None,
    price: float | None = None,
) -> Option:
    """Return what a fleet of such replicas takes; ``price``: of one accelerator and hour, USD."""
    found = candidate.found
    if found is None or candidate.problem:
        return _impossible(candidate, slo)
    tail = Tail.of(found, demand.traffic, input_cv=demand.input_cv)
    capacity = tail.sharing.largest_rate
    assert demand.rate is not None  # noqa: S101  # checked
    tail = replace(tail, arrival_cv=_own_cv(demand, demand.rate / (most_load * capacity)))
    rates = np.array(_LOADS) * most_load * capacity
    whole = any(target.metric == "e2e" for target in slo)
    late = {share: tail.at(rates, share, whole=whole) for share in slo.shares}
    strained = {target: late[target.share].of(target.metric) / target.seconds for target in slo}
    worst = np.max(np.stack(list(strained.values())), axis=0)
    over = int(np.argmax(worst > 1.0)) if bool((worst > 1.0).any()) else len(rates)
    largest = _reached(rates, worst, over)
    shown = max(slo, key=lambda target: target.share)
    target = max(slo, key=lambda one: float(strained[one][min(over, len(rates) - 1)]))
    common: dict[str, Any] = {
        "hardware": found.hardware.id or found.hardware.name,
        "capacity_per_replica": capacity,
        "statistic": shown.statistic,
        "flags": _flags(candidate),
        "deployment": found,
    }
    if not over:
        return _too_slow(found, tail, late, slo, shown, common)
    binding, why = _bound(tail, late[target.share], target, over)
    each = found.recipe.devices
    replicas = max(1, math.ceil(demand.rate / largest - _SLACK))
    gpus, own = replicas * each, demand.rate / replicas
    upto = slice(0, over + 1 if over < len(rates) and math.isfinite(worst[over]) else over)

    def here(values: Array) -> float:
        return float(np.interp(own, rates[upto], values[upto]))

    ttft, itl = (here(late[shown.share].of(metric)) for metric in ("ttft", "itl"))
    fits = max_gpus is None or gpus <= max_gpus
    out = demand.outputs / each
    seen = late[shown.share]
    points = [OptionPoint(float(rates[i]), float(seen.ttft[i]), float(seen.tpot[i]), float(rates[i]) * out) for i in range(over)]
    if over < len(rates):
        first, each_token = (float(np.interp(largest, rates[upto], seen.of(metric)[upto])) for metric in ("ttft", "itl"))
        points.append(OptionPoint(largest, first, each_token, largest * out))
    return Option(
        recipe=replace(found.recipe, dp=replicas, dp_kind="replica"),
        feasible=fits,
        binding=binding,
        why=why if fits else f"{gpus} accelerators are needed, {max_gpus} are allowed; {why}",
        replicas=replicas,
        gpus=gpus,
        usd_per_h=None if price is None else price * gpus,
        rate_per_replica=largest,
        load=own / capacity,
        latencies={one.name: here(late[one.share].of(one.metric)) for one in slo},
        ttft_s=ttft,
        itl_s=itl,
        request_s=ttft + max(demand.outputs - 1.0, 0.0) * itl,
        output_tokens_per_s_per_gpu=largest * out,
        points=tuple(points),
        **common,
    )


def _own_cv(demand: Demand, least: float) -> float:
    """Spread of the times between a replica's arrivals, dealt out at random to so many replicas at least.

    Of a stream of which each arrival is kept with probability 1/r, the squared spread is 1 + (cv^2 - 1)/r.
    """
    cv, replicas = demand.arrival_cv, max(1, math.ceil(least - _SLACK))
    if cv <= 1.0:
        return cv if replicas == 1 else 1.0
    return math.sqrt(1.0 + (cv**2 - 1.0) / replicas)


def _reached(rates: Array, worst: Array, over: int) -> float:
    """Largest rate at which no target is passed; between priced ones in proportion, which is below it, as the curves bend up."""
    if over in (0, len(rates)):
        return float(rates[-1]) if over else 0.0
    low, high = float(worst[over - 1]), float(worst[over])
    if not math.isfinite(high):
        return float(rates[over - 1])
    return float(rates[over - 1] + (rates[over] - rates[over - 1]) * (1.0 - low) / (high - low))


def _bound(tail: Tail, late: Late, target: Target, over: int) -> tuple[str, str]:
    """Name what holds the replica up at its largest rate, and say so."""
    replica = tail.replica
    if over >= len(late.ttft):  # no target is passed at the largest load
        if replica.reading >= 0.5:
            return "prefill", f"a full replica reads prompts {100 * replica.reading:.0f} % of its time"
        if replica.bound == "kv" or tail.sharing.places < replica.sharing.places:
            return "memory", f"keys and values of {tail.sharing.places:.0f} requests fill the memory"
        return "decode", f"a full replica decodes {tail.sharing.places:.0f} sequences"
    at = over if math.isfinite(float(late.of(target.metric)[over])) else over - 1
    kept = replica.bound == "kv" or tail.sharing.places < replica.sharing.places
    place = ("memory" if kept else "queue", "for a place in the batch")
    out = {"ttft": 0.0, "itl": 1.0, "e2e": tail.steps * replica.found.made}[target.metric]
    first = 0.0 if target.metric == "itl" else 1.0
    parts = {
        ("prefill", "for prompts that came before"): first * float(late.wait[at]) * (late.wait[at] > late.seat[at]),
        place: first * float(late.seat[at]) * (late.seat[at] >= late.wait[at]),
        ("decode", "for the step that runs, beside sequences that decode"): first * float(late.beside[at]),
        ("prefill", "while prompts of others are read"): out * float(late.stall[at]),
        ("decode", "beside sequences that decode"): out * float(late.slower[at]),
    }
    (name, words), most = max(parts.items(), key=lambda part: part[1])
    value = float(late.of(target.metric)[at])
    return name, f"{target.name}: of {value:.3g} s, {most:.3g} s {words}"


def _too_slow(
    found: Deployment, tail: Tail, late: Mapping[float, Late], slo: SloTargets, shown: Target, common: dict[str, Any]
) -> Option:
    """An idle replica misses a target."""
    idle = {one: float(late[one.share].of(one.metric)[0]) for one in slo}
    worst = max(slo, key=lambda one: idle[one] / one.seconds)
    seen = late[shown.share]
    ttft, itl = float(seen.ttft[0]), float(seen.tpot[0])
    return Option(
        recipe=found.recipe,
        feasible=False,
        binding="base latency",
        why=f"{worst.name}: {idle[worst]:.3g} s on a replica that is all but idle, {worst.seconds:.3g} s asked",
        replicas=None,
        gpus=None,
        usd_per_h=None,
        rate_per_replica=0.0,
        load=None,
        latencies={one.name: value for one, value in idle.items()},
        ttft_s=ttft,
        itl_s=itl,
        request_s=ttft + tail.steps * found.made * itl,
        output_tokens_per_s_per_gpu=0.0,
        **common,
    )


def _impossible(candidate: Candidate, slo: SloTargets) -> Option:
    """There is no replica, or it holds nothing."""
    found = candidate.found
    return Option(
        hardware=candidate.hardware.id or candidate.hardware.name,
        recipe=candidate.recipe if found is None else found.recipe,
        feasible=False,
        binding="memory" if found is not None else "layout",
        why=candidate.problem,
        replicas=None,
        gpus=None,
        usd_per_h=None,
        rate_per_replica=0.0,
        capacity_per_replica=0.0,
        load=None,
        latencies={},
        statistic=max(slo, key=lambda target: target.share).statistic,
        ttft_s=None,
        itl_s=None,
        request_s=None,
        output_tokens_per_s_per_gpu=0.0,
        missing_bytes=candidate.missing_bytes,
        flags=_flags(candidate),
        deployment=found,
    )


def _flags(candidate: Candidate) -> tuple[tuple[str, int], ...]:
    """Batch flags that were chosen for the engine."""
    asked = candidate.recipe
    named = (("max_num_seqs", asked.max_num_seqs), ("max_num_batched_tokens", asked.max_num_batched_tokens))
    return tuple((name, value) for name, value in named if value is not None)
