"""Sizing a fleet: from a rate (or a trace of requests) and latency targets to accelerators, replicas, layout, formats and flags.

Each kind of replica is priced once.  The largest rate that one serves within all targets is read from the percentiles of
:mod:`foretell.plan.serving_tail` between 17 loads, up to ``most_load`` of what it keeps up with (nearer to that, a queue's length
follows no forecast); the fleet has as many replicas as that rate goes into the demand.  Prompts take their share of every step,
so they consume capacity as answers do.  The best few can be played by the simulator, which has the last word.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core.serving_demand import Demand, checked_demand
from foretell.core.speed import CALIBRATED
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.plan.serving_answer import OBJECTIVES, ParetoPoint, Sizing, advised, front, order
from foretell.plan.serving_confirm import confirmed
from foretell.plan.serving_option import Option
from foretell.plan.serving_slo import SloTargets, parse_slo
from foretell.plan.serving_solve import solved
from foretell.plan.serving_space import AUTO, Candidate, Space, request_tokens
from foretell.plan.serving_trace import TraceLoad, read_trace
from foretell.recipe.serving import ServingRecipe
from foretell.validation import choice, flag, number, positive_int

__all__ = ["OBJECTIVES", "ParetoPoint", "Sizing", "size"]

MOST_LOAD: Final = 0.9
"""Share of what a replica keeps up with to which it is loaded at most."""
_CONFIRMED: Final = 3

Flags = Sequence[int | None] | str
Progress = Callable[[int, int], None]


def size(
    workload: Workload | str | os.PathLike[str] | Mapping[str, Any],
    demand: Demand | TraceLoad | str | Path,
    slo: SloTargets | str,
    *,
    hardware: HardwareNode | str | Sequence[HardwareNode | str] = "h100",
    recipe: ServingRecipe | None = None,
    weights: Sequence[str] | None = None,
    kv: Sequence[str | None] | None = None,
    tp: Sequence[int] | None = None,
    max_num_seqs: Flags = AUTO,
    max_num_batched_tokens: Flags = AUTO,
    max_gpus: int | None = None,
    objective: str = "gpus",
    prices: Mapping[str, float] | None = None,
    peak: bool = True,
    most_load: float = MOST_LOAD,
    gpus_per_node: int | None = None,
    efficiency: float | str = CALIBRATED,
    confirm: bool = False,
    confirm_best: int = _CONFIRMED,
    requests: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sizing:
    """Return the fleets that serve a demand within the targets, best first.

    Args:
        workload: the model.
        demand: arrivals at a rate, or a trace (a file's path, or what ``read_trace`` made of it).
        slo: targets, or their text (``parse_slo``).
        hardware: accelerators to choose from, each with the reference network of its generation.
        recipe: engine, version and all flags that do not vary; a batch flag that is set here is kept.
        weights: formats of the weights to choose from; None: the recipe's.
        kv: formats of keys and values; None: the recipe's.
        tp: degrees of tensor parallelism; None: powers of two up to one node that the heads allow.
        max_num_seqs: values to choose from (None among them: the engine's own); ``auto``: others than its own where decoding
            is what misses a target.
        max_num_batched_tokens: the same; shorter chunks where decoding is late, longer ones where first tokens are.
        max_gpus: accelerators that are allowed.
        objective: gpus (fewest), cost (by ``prices``), latency (shortest request).
        prices: USD of one accelerator and hour, by id or alias; others are unknown.
        peak: size a trace for its busiest window; else for its mean rate.
        most_load: share of what a replica keeps up with to which it is loaded at most.
        gpus_per_node: accelerators of one node; None: those of the generation's reference system.
        efficiency: as :func:`foretell.core.serving.deployment` takes it.
        confirm: play the best few; where the simulation misses a target, replicas are added.
        confirm_best: how many.
        requests: how many requests a simulation plays; None: enough for a 99th percentile.
        seed: of the simulation.
        progress: is given the requests that are over, and those of one run.

    Raises:
        InputError: a value cannot be used; CombinationError: a single layout that cannot be.

    """
    model = load_model(workload)
    base = recipe or ServingRecipe()
    if base.dp != 1:
        raise InputError("is what is looked for", field="dp", value=base.dp, allowed=[1])
    targets = parse_slo(slo) if isinstance(slo, str) else slo
    trace = demand if isinstance(demand, TraceLoad) else None if isinstance(demand, Demand) else read_trace(demand)
    asked, played, notes = _load(demand if isinstance(demand, Demand) else None, trace, peak=flag(peak, "peak"))
    devices = _devices(hardware)
    space = Space(
        workload=model,
        hardware=devices,
        base=base,
        weights=tuple(weights) if weights is not None else (base.weights,),
        kv=tuple(kv) if kv is not None else (base.kv,),
        tp=None if tp is None else tuple(tp),
        max_num_seqs=max_num_seqs if base.max_num_seqs is None else (base.max_num_seqs,),
        max_num_batched_tokens=max_num_batched_tokens if base.max_num_batched_tokens is None else (base.max_num_batched_tokens,),
        gpus_per_node=gpus_per_node,
        efficiency=efficiency,
    ).checked()
    choice(objective, "objective", OBJECTIVES)
    limit = None if max_gpus is None else positive_int(max_gpus, "max_gpus")
    number(most_load, "most_load", minimum=0.05, maximum=1.0)
    costs = _prices(prices, devices)
    notes.append(f"replicas are loaded to {100 * most_load:g} % at most, and each gets its part of the requests at random")
    found = list(_solved(space, asked, targets, trace, most_load, limit, costs))
    options = sorted(found, key=order(objective))
    if objective == "cost" and any(one.feasible and one.usd_per_h is None for one in options):
        unknown = sorted({one.hardware for one in options if one.usd_per_h is None})
        notes.append(
            f"no price is known of {', '.join(unknown)}: such options come after those with one, fewest accelerators first"
        )
    if flag(confirm, "confirm"):
        options = _confirmed(options, played, targets, trace, requests, seed, limit, objective, confirm_best, progress)
    feasible = any(one.feasible for one in options)
    return Sizing(
        demand=asked,
        slo=targets,
        objective=objective,
        options=tuple(options),
        pareto=tuple(front(options)),
        advice=() if feasible else tuple(advised(options, asked, targets, limit, gpus_per_node)),
        notes=tuple(notes),
        trace=trace,
    )


# -- what is asked --------------------------------------------------------------------------------------------


def _load(demand: Demand | None, trace: TraceLoad | None, *, peak: bool) -> tuple[Demand, Demand, list[str]]:
    """Return the load to size for, the one to play, and how they were found."""
    notes: list[str] = []
    if trace is not None:
        which = f"its busiest {trace.window_s:g} s, {trace.busiest.rate_per_s:.4g} requests/s" if peak else "its mean rate"
        notes.append(f"sized for {which}; the whole trace has {trace.rate_per_s:.4g} requests/s on average")
        demand = trace.demand(peak=peak)
    assert demand is not None  # noqa: S101  # one of the two
    if demand.kind != "open":
        problem = "is no rate of arrivals, which is what a fleet is sized for"
        raise InputError(problem, field="load", value=demand.kind, allowed="open")
    checked = checked_demand(demand)
    if not demand.burst:
        return checked, checked, notes
    top = max(float(demand.burst.get("peak_rate_per_s", 0.0)), demand.rate or 0.0)
    notes.append(f"sized for the bursts, {top:.4g} requests/s")
    return checked_demand(replace(demand, rate=top, burst=None)), checked, notes


def _devices(hardware: HardwareNode | str | Sequence[HardwareNode | str]) -> list[HardwareNode]:
    given = [hardware] if isinstance(hardware, HardwareNode | str) else list(hardware)
    if not given:
        raise InputError("names nothing to choose from", field="hardware")
    found = [load_hardware(one) for one in given]
    names = [one.id or one.name for one in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError("names one twice", field="hardware", value=twice)
    return found


def _prices(prices: Mapping[str, float] | None, devices: Sequence[HardwareNode]) -> dict[str, float]:
    """Return USD of one accelerator and hour by id."""
    out = {}
    for name, price in (prices or {}).items():
        found = load_hardware(name)
        key = found.id or found.name
        if key not in {one.id or one.name for one in devices}:
            raise InputError("is not among the accelerators to choose from", field="prices", value=name)
        out[key] = number(price, "prices", minimum=1e-9, maximum=1e6)
    return out


# -- what is tried --------------------------------------------------------------------------------------------


def _solved(
    space: Space,
    demand: Demand,
    slo: SloTargets,
    trace: TraceLoad | None,
    most_load: float,
    limit: int | None,
    costs: Mapping[str, float],
) -> Iterator[Option]:
    """Price every candidate, and those with other flags where they may help."""
    length = request_tokens(demand, space, None if trace is None else trace.longest)

    def priced(candidate: Candidate) -> Option:
        cost = costs.get(candidate.hardware.id or candidate.hardware.name)
        return solved(candidate, demand, slo, most_load=most_load, max_gpus=limit, price=cost)

    refused: list[InputError] = []
    some = False
    for candidate in space.candidates(demand, length):
        if candidate.error is not None:
            refused.append(candidate.error)
        some = some or candidate.found is not None
        option = priced(candidate)
        yield option
        smaller = _helps(option, slo)
        if smaller is not None:
            for variant in space.variants(candidate, demand, length, smaller=smaller):
                yield priced(variant)
    if not some:
        raise refused[0]


def _helps(option: Option, slo: SloTargets) -> bool | None:
    """Whether fewer sequences and shorter chunks may help (True), or longer chunks (False); None: neither."""
    if option.deployment is None or not option.latencies:
        return None
    worst = max(slo, key=lambda target: option.latencies[target.name] / target.seconds)
    return worst.metric == "itl" if option.binding != "memory" else None


def _confirmed(
    options: list[Option],
    demand: Demand,
    slo: SloTargets,
    trace: TraceLoad | None,
    requests: int | None,
    seed: int,
    limit: int | None,
    objective: str,
    best: int,
    progress: Progress | None,
) -> list[Option]:
    """Play the best few; those that hold come first, in the order of the objective."""
    count = positive_int(best, "confirm_best", maximum=100)
    tried = [one for one in options if one.feasible][:count]
    rest = [one for one in options if not any(one is other for other in tried)]
    played = []
    for one in tried:
        most = None if limit is None or not one.gpus or not one.replicas else limit * one.replicas // one.gpus
        played.append(
            confirmed(one, demand, slo, trace=trace, requests=requests, seed=seed, most_replicas=most, progress=progress)
        )
    return sorted(played, key=order(objective)) + sorted(rest, key=order(objective)) if played else options
