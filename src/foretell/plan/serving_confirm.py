"""A fleet that was sized in closed form, played event by event; replicas are added until the simulation meets the targets too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import point
from foretell.plan.serving_option import Confirmation, Option
from foretell.plan.serving_slo import SloTargets
from foretell.plan.serving_trace import TraceLoad
from foretell.sim.outcome import Outcome
from foretell.sim.requests_file import TraceFile
from foretell.sim.serving import play

__all__ = ["REQUESTS", "confirmed"]

REQUESTS: Final = 4000
"""Requests that are played: a 99th percentile then has forty above it."""
_MOST: Final = 20_000
"""... where they stay long; a trace of no more is played whole."""
_LIVES: Final = 12.0
"""Times of a request that are played at least, a quarter of which does not count: the batch has to fill."""
_TRIES: Final = 5

Progress = Callable[[int, int], None]


def confirmed(
    option: Option,
    demand: Demand,
    slo: SloTargets,
    *,
    trace: TraceLoad | None = None,
    requests: int | None = None,
    seed: int = 0,
    most_replicas: int | None = None,
    progress: Progress | None = None,
) -> Option:
    """Return the option with what a simulation says; more replicas where it has to be.

    ``trace``: its own requests are played, all of them or those around its busiest window.  ``requests``: how many are played of
    a demand.  ``progress``: is given the requests that are over, and those of one run.
    """
    assert option.replicas is not None  # noqa: S101  # only what meets the targets is confirmed
    count, first, found = option.replicas, option.replicas, None
    for _ in range(_TRIES):
        found = _played(option, count, demand, slo, trace, requests, seed, progress)
        if found.met:
            break
        more = max(1, count // 10)
        if most_replicas is not None and count >= most_replicas:
            break
        count = min(count + more, most_replicas or count + more)
    assert found is not None  # noqa: S101
    return _with(option, replace(found, added=found.replicas - first))


def _with(option: Option, found: Confirmation) -> Option:
    """The option with the replicas that the simulation asks for."""
    share = found.replicas / (option.replicas or 1)
    why = option.why if found.met else f"the simulation misses a target with {found.replicas} replicas; {option.why}"
    return replace(
        option,
        feasible=found.met,
        why=why,
        recipe=replace(option.recipe, dp=found.replicas),
        replicas=found.replicas,
        gpus=None if option.gpus is None else round(option.gpus * share),
        usd_per_h=None if option.usd_per_h is None else option.usd_per_h * share,
        load=None if option.load is None else option.load / share,
        confirmed=found,
    )


def _played(
    option: Option,
    replicas: int,
    demand: Demand,
    slo: SloTargets,
    trace: TraceLoad | None,
    requests: int | None,
    seed: int,
    progress: Progress | None,
) -> Confirmation:
    """One run of the simulator: of the whole fleet where a trace or bursts are played, else of one replica with its share.

    That replica gets each request of the fleet's with equal probability; a balancer that deals them out in turn, or to the
    emptiest, does better.
    """
    found = option.deployment
    assert found is not None  # noqa: S101  # as above
    together = replicas if trace is not None or demand.burst else 1
    recipe = replace(found.recipe, dp=together, dp_kind="replica")
    fleet = replace(found, resolved=replace(found.resolved, recipe=recipe))
    more: dict[str, Any] = {"seed": seed, "slo": slo.tightest}
    if trace is not None:
        total = trace.requests if trace.requests <= _MOST else trace.busiest.requests
        more |= {"progress": None if progress is None else lambda over, _: progress(over, total)}
        outcome = _replayed(fleet, trace, more)
    else:
        assert demand.rate is not None  # noqa: S101  # checked
        own = replace(demand, rate=demand.rate * together / replicas, requests=None)
        if not demand.burst:
            own = replace(own, arrival_cv=_shared_cv(demand.arrival_cv, together / replicas))
        total, window = _length(fleet, own, requests)
        more |= {"progress": None if progress is None else lambda over, _: progress(over, total)}
        outcome = play(fleet, own, requests=total, window=window, **more)
    seconds = {target.name: target.seen(outcome) for target in slo}
    met = all(value is not None and value <= target.seconds for target, value in zip(slo, seconds.values(), strict=True)
              if target.metric != "itl" or value is not None)  # fmt: skip
    kept = not outcome.rejected and outcome.requests > 0
    return Confirmation(replicas, together, outcome.requests, seconds, met and kept, outcome.slo_share, outcome.preemptions)


def _replayed(fleet: Any, trace: TraceLoad, more: dict[str, Any]) -> Outcome:
    """Play a trace whole, or around its busiest window where it is long."""
    if trace.requests <= _MOST:
        return play(fleet, None, source=TraceFile(trace.path, speed=trace.speed, requests=trace.requests), **more)
    start = trace.lead_s
    return play(fleet, None, source=trace.around_peak(), window=(start, start + trace.window_s), **more)


def _shared_cv(cv: float, share: float) -> float:
    """Spread of the times between arrivals of a part of the fleet: each arrival is its own with that probability."""
    return math.sqrt(max(1.0 + (cv**2 - 1.0) * share, 0.0))


def _length(fleet: Any, demand: Demand, requests: int | None) -> tuple[int, tuple[float, float]]:
    """Requests to play, and the seconds that count."""
    assert demand.rate is not None  # noqa: S101  # checked
    said = point(fleet, demand)
    stay = said.ttft + demand.outputs * said.itl
    total = requests or REQUESTS
    if requests is None and math.isfinite(stay):
        total = int(min(max(total, _LIVES * stay * demand.rate), _MOST))
    span = total / demand.rate
    return total, (0.2 * span, 0.97 * span)
