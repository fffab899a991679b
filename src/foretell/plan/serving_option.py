"""A fleet of one kind of replica: what it takes, what its requests wait for, and what a simulation says of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import ServingForecast, serve
from foretell.recipe.serving import ServingRecipe

__all__ = ["BOUNDS", "Confirmation", "Option", "OptionPoint"]

BOUNDS: Final = ("memory", "prefill", "decode", "queue", "base latency")
"""What can hold a replica up: memory (its model or its batch does not fit), prefill (prompts of others), decode (sequences
beside), queue (a place among max_num_seqs), base latency (an idle replica is too slow)."""


@dataclass(frozen=True, slots=True)
class OptionPoint:
    """A replica at one load that meets every target."""

    rate_per_s: float
    ttft_s: float
    itl_s: float
    output_tokens_per_s_per_gpu: float


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a simulation says of an option."""

    replicas: int
    """Of the fleet."""
    simulated: int
    """Of them, with their share of the load."""
    requests: int
    seconds: Mapping[str, float | None]
    """By target."""
    met: bool
    slo_share: float | None
    """Of the requests, those that met all targets at once."""
    preemptions: int
    added: int = 0
    """Replicas more than the closed form had."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {"seconds": dict(self.seconds)}


@dataclass(frozen=True)
class Option:
    """A fleet of equal replicas.  Rates are requests a second; latencies those that its targets bound, at its own load."""

    hardware: str
    """Id of the accelerator."""
    recipe: ServingRecipe
    """With every flag decided, and dp the replicas."""
    feasible: bool
    """Every target is met, with so many accelerators as are allowed."""
    binding: str
    """One of :data:`BOUNDS`."""
    why: str
    replicas: int | None
    """None: no number of them meets the targets."""
    gpus: int | None
    usd_per_h: float | None
    """None where the price is unknown."""
    rate_per_replica: float
    """The largest that one serves within the targets; 0: none."""
    capacity_per_replica: float
    """The largest that it keeps up with; 0 where it does not fit."""
    load: float | None
    """Share of that capacity at which the replicas run."""
    latencies: Mapping[str, float]
    """By target, seconds; where none is met, those of a replica that is all but idle."""
    statistic: str
    """Of the next two."""
    ttft_s: float | None
    itl_s: float | None
    request_s: float | None
    """TTFT and all further tokens at that pace."""
    output_tokens_per_s_per_gpu: float
    """Of a replica at the largest rate within the targets."""
    missing_bytes: float | None = None
    """On each accelerator, where memory is missing."""
    points: tuple[OptionPoint, ...] = ()
    """Loads that meet the targets."""
    flags: tuple[tuple[str, int], ...] = ()
    """Batch flags that are not the engine's own choice."""
    confirmed: Confirmation | None = None
    deployment: Deployment | None = field(default=None, repr=False, compare=False)
    """One replica; None where there is none."""

    @property
    def label(self) -> str:
        """The option in a few words."""
        r = self.recipe
        count = f"{self.replicas} x " if self.replicas else ""
        kv = f", {r.kv} KV" if r.kv and r.kv not in ("bf16", "fp16", r.weights) else ""
        flags = "".join(f", {name} {value}" for name, value in self.flags)
        return f"{count}{self.hardware}, tp {r.tp}{f', pp {r.pp}' if r.pp > 1 else ''}, {r.weights}{kv}{flags}"

    @functools.cached_property
    def fleet(self) -> Deployment | None:
        """All replicas as one deployment; None where none meets the targets."""
        if self.deployment is None or self.replicas is None:
            return None
        found = self.deployment
        return replace(found, resolved=replace(found.resolved, recipe=replace(found.recipe, dp=self.replicas, dp_kind="replica")))

    def forecast(self, demand: Demand) -> ServingForecast | None:
        """Return the means of the whole fleet under the demand; None where none meets the targets."""
        return None if self.fleet is None else serve(self.fleet, demand)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        r = self.recipe
        return {
            "label": self.label,
            "gpu": self.hardware,
            "feasible": self.feasible,
            "binding": self.binding,
            "why": self.why,
            "replicas": self.replicas,
            "gpus": self.gpus,
            "usd_per_h": self.usd_per_h,
            "tp": r.tp,
            "pp": r.pp,
            "ep": r.ep,
            "weights": r.weights,
            "kv": r.kv,
            "max_num_seqs": r.max_num_seqs,
            "max_num_batched_tokens": r.max_num_batched_tokens,
            "max_model_len": r.max_model_len,
            "requests_per_s_per_replica": self.rate_per_replica,
            "capacity_requests_per_s_per_replica": self.capacity_per_replica,
            "load": self.load,
            "latencies_s": dict(self.latencies),
            "statistic": self.statistic,
            "ttft_s": self.ttft_s,
            "itl_s": self.itl_s,
            "request_s": self.request_s,
            "output_tokens_per_s_per_gpu": self.output_tokens_per_s_per_gpu,
            "missing_bytes": None if self.missing_bytes is None else round(self.missing_bytes),
            "confirmed": None if self.confirmed is None else self.confirmed.to_dict(),
        }
