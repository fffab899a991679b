"""A deployment under a demand, event by event: percentiles where the closed form has means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand, checked_demand
from foretell.errors import InputError
from foretell.sim.arrivals import ClosedLoop, LengthSource, Offline, OnOff, OpenLoop, Request, Source, Tokens
from foretell.sim.outcome import Outcome, Slo
from foretell.sim.server import Scheduler, simulate

__all__ = ["Drawn", "play", "scheduler_of", "source_of"]

ENOUGH = 1000
"""Requests that are played where the demand names no number."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lengths of one demand: inputs lognormal around their mean, outputs exponential and cut, or all equally long."""

    inputs: float
    outputs: float
    cached: float = 0.0
    input_cv: float = 0.0
    decay: float = math.inf
    """Mean of the exponential law before the cut; infinite: all are equally long."""
    longest: float | None = None

    @property
    def finite(self) -> bool:
        """There are always more."""
        return False

    def pairs(self, rng: Random) -> Iterator[Tokens]:
        """Yield lengths without end."""
        spread = math.sqrt(math.log1p(self.input_cv**2))
        middle = math.log(self.inputs) - spread**2 / 2.0
        share = self.cached / self.inputs
        fixed = (max(1, round(self.inputs)), max(1, round(self.outputs)))
        while True:
            inputs, outputs = fixed
            if spread:
                inputs = max(1, round(rng.lognormvariate(middle, spread)))
            if self.longest is not None and math.isfinite(self.decay):
                outputs = max(1, round(min(rng.expovariate(1.0 / self.decay), self.longest)))
            yield inputs, outputs, min(int(share * inputs), inputs - 1)


def source_of(demand: Demand, requests: int | None = None) -> Source | ClosedLoop:
    """Return the requests of a demand; ``requests``: how many, where the demand does not say."""
    t = demand.traffic
    lengths: LengthSource = Drawn(t.inputs, t.outputs, t.cached, demand.input_cv, t.decay, t.longest)
    count = demand.requests or requests or ENOUGH
    if demand.kind == "open":
        assert demand.rate is not None  # noqa: S101  # checked_demand
        if demand.burst:
            peak, on, period = (float(demand.burst.get(name, 0.0)) for name in ("peak_rate_per_s", "duration_s", "period_s"))
            if not on or not period:
                raise InputError("needs a duration and a period", field="burst", value=dict(demand.burst))
            return OnOff(peak, on, period, lengths, demand.rate, requests=count)
        return OpenLoop(demand.rate, lengths, cv=demand.arrival_cv, requests=count)
    if demand.kind in ("offline", "static"):
        return Offline(int(demand.concurrency or 1) if demand.kind == "static" else count, lengths)
    users = 1 if demand.kind == "single" else max(1, round(demand.concurrency or 1))
    return ClosedLoop(users, lengths, requests=max(count, users))


def scheduler_of(found: Deployment, concurrency: float | None = None) -> Scheduler:
    """Return how a replica of a deployment fills its steps; ``concurrency``: requests that the client lets in at a time."""
    limits, width = found.limits, int(found.width)
    seats = int(min(limits.sequences, concurrency or math.inf))
    return Scheduler(
        max_seqs=max(1, min(seats, int(limits.tokens // width))),
        max_tokens=int(limits.tokens),
        kv_tokens=int(limits.kv_tokens),
        block_size=found.recipe.block_size or 1,
        mixed=limits.mixed,
        reserve=limits.reserve,
        chunked=bool(found.recipe.chunked_prefill) or limits.mixed,
        tokens_per_step=found.made,
        width=width,
    )


def play(
    found: Deployment,
    demand: Demand | None,
    *,
    source: Source | ClosedLoop | Iterable[Request] | None = None,
    requests: int | None = None,
    seed: int = 0,
    slo: Slo | None = None,
    progress: Callable[[int, float], None] | None = None,
    window: tuple[float, float] = (0.0, math.inf),
) -> Outcome:
    """Play a demand, or the requests of a ``source``; InputError where the deployment cannot hold one of them."""
    if not found.capacity.feasible:
        short = found.capacity.shortfall_bytes / 2**30
        raise InputError(
            f"does not fit: {short:.2f} GiB are missing on each accelerator", field="model", value=found.workload.name
        )
    asked = None if demand is None else checked_demand(demand)
    offline = None if asked is None or asked.kind != "offline" else asked.concurrency
    requested = source if source is not None else source_of(asked, requests) if asked is not None else ()
    return simulate(
        requested,
        scheduler_of(found, None if offline is None else offline / found.replicas),
        found,
        replicas=found.replicas,
        seed=seed,
        slo=slo,
        first_token_s=found.steps.engine.request_s if found.steps.share is None else 0.0,
        progress=progress,
        window=window,
    )
