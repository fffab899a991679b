"""A training run from end to end: step time, checkpoints, failures, days, device-hours, energy, carbon, water, money.

One chain of formulas, walked twice: with the points, and with thousands of samples of every range at once, which give the band.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from foretell.core.solver._result import Result
from foretell.core.speed import SpeedForecast
from foretell.machine.fleet import Fleet
from foretell.plan.business import Business
from foretell.plan.launch import Launch
from foretell.plan.run_chain import LEAST_USEFUL, NEVER_DONE, QUANTITIES, Chain
from foretell.plan.sampling import quantiles
from foretell.validation import number

__all__ = ["Band", "RunForecast", "whole_run"]


@dataclass(frozen=True)
class Band:
    """One quantity of the chain: its value with all points, and where four of five samples lie."""

    point: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True)
class RunForecast(Result):
    """A training run from its first step to its last token."""

    title: ClassVar[str] = "run"

    feasible: bool
    """It gets on: it saves and restarts faster than it fails."""
    tokens: float
    steps: int
    gpus: int
    nodes: int
    checkpoint_size_bytes: float
    bands: Mapping[str, Band]
    """Quantity with its unit -> point and band; of a run that makes no progress those before its goodput."""
    losses: Mapping[str, float]
    """Shares of the wall time: useful, checkpoints, rework, restarts."""
    region_name: str
    boundary: str
    mode: str
    """rent or own: what the money is for."""
    samples: int
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]
    _samples: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def drawn(self) -> Mapping[str, Any]:
        """Quantity -> its samples, in no order, for pictures."""
        return self._samples

    def explain(self) -> str:
        """Return the chain as text, a quantity a line."""
        lines = [
            f"{self.title} of {self.tokens:.4g} tokens on {self.gpus} devices; P10, point and P90 of {self.samples:,} samples"
        ]
        lines += [f"  {name:28s} {band.p10:14.6g} {band.point:14.6g} {band.p90:14.6g}" for name, band in self.bands.items()]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def whole_run(launch: Launch, speed: SpeedForecast, fleet: Fleet, tokens: float, business: Business | None = None) -> RunForecast:
    """Return what a run of so many tokens comes to.

    Raises InputError for what means nothing, and for a price that was asked for and is unknown.
    """
    how = (business or Business()).checked()
    steps = math.ceil(number(tokens, "tokens", minimum=1.0, maximum=1e18) / (launch.global_batch * launch.recipe.seq_len))
    chain = Chain(launch, speed, fleet, how, steps)
    point = chain.walk(chain.points())
    sampled = chain.walk(chain.sampled(), random=True)
    shares = {name: float(point[f"{name}_share"]) for name in ("useful", "checkpoints", "rework", "restarts")}
    feasible = shares["useful"] >= LEAST_USEFUL
    told: list[str] = [name for name in QUANTITIES if name in point and (feasible or name not in NEVER_DONE)]
    bands = {name: Band(float(point[name]), *quantiles(sampled[name])) for name in told}
    return RunForecast(
        feasible=feasible,
        tokens=tokens,
        steps=steps,
        gpus=fleet.total_accelerators,
        nodes=fleet.nodes,
        checkpoint_size_bytes=chain.terms.total,
        bands=bands,
        losses=shares,
        region_name=chain.site.name,
        boundary=chain.site.boundary,
        mode=how.mode,
        samples=how.samples,
        notes=chain.notes(point),
        assumed=chain.assumed(),
        sources=chain.sources(),
        _samples={name: sampled[name] for name in bands},
    )
