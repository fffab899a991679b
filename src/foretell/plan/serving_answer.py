"""What sizing answers: options in order, those that no other beats, and what would make the impossible possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.core.serving_demand import Demand
from foretell.plan.serving_advice import fixes
from foretell.plan.serving_option import Option
from foretell.plan.serving_slo import SloTargets
from foretell.plan.serving_trace import TraceLoad

__all__ = ["OBJECTIVES", "ParetoPoint", "Sizing", "advised", "front", "order"]

OBJECTIVES: Final = ("gpus", "cost", "latency")
_ALIKE: Final = 0.02
"""Requests whose times differ by less of them are equally fast."""
_NAMED: Final = 3
"""Changes that are named where nothing is feasible."""


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A kind of replica at a load: no other gives as much for each accelerator at as short an ITL."""

    label: str
    rate_per_s: float
    """Of one replica."""
    itl_s: float
    ttft_s: float
    output_tokens_per_s_per_gpu: float


@dataclass(frozen=True)
class Sizing:
    """The answer: options in the order of the objective, those that meet the targets first."""

    demand: Demand
    """What was sized for."""
    slo: SloTargets
    objective: str
    options: tuple[Option, ...]
    pareto: tuple[ParetoPoint, ...]
    """Output tokens a second and accelerator against ITL, within the targets; ITL rises."""
    advice: tuple[str, ...]
    """What would make it feasible, where nothing is."""
    notes: tuple[str, ...]
    trace: TraceLoad | None = None

    @property
    def best(self) -> Option | None:
        """First in the order of the objective; None where nothing is feasible."""
        return self.options[0] if self.options and self.options[0].feasible else None

    @property
    def feasible(self) -> bool:
        """Whether anything is."""
        return self.best is not None

    @property
    def cheapest(self) -> Option | None:
        """By price where every feasible option has one, else by the number of accelerators."""
        found = [one for one in self.options if one.feasible]
        priced = all(one.usd_per_h is not None for one in found)
        return min(found, key=order("cost" if priced else "gpus"), default=None)

    @property
    def fastest(self) -> Option | None:
        """Shortest request: first token and all others."""
        return min((one for one in self.options if one.feasible), key=order("latency"), default=None)

    @property
    def binding(self) -> str:
        """What holds the best option up, or stands in the way of the nearest one."""
        return self.options[0].binding

    @property
    def why(self) -> str:
        """The same in a sentence."""
        return self.options[0].why

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Return plain data; ``most``: options, the first ones."""
        shown = self.options if most is None else self.options[:most]
        picked = {name: getattr(self, name) for name in ("best", "cheapest", "fastest")}
        return {
            "feasible": self.feasible,
            "objective": self.objective,
            "targets": self.slo.to_dict(),
            "requests_per_s": self.demand.rate,
            "input_tokens": self.demand.inputs,
            "output_tokens": self.demand.outputs,
            "arrival_cv": self.demand.arrival_cv,
            "binding": self.binding,
            "why": self.why,
            **{name: None if one is None else one.to_dict() for name, one in picked.items()},
            "options": [one.to_dict() for one in shown],
            "tried": len(self.options),
            "pareto": [{name: getattr(one, name) for name in one.__slots__} for one in self.pareto],
            "advice": list(self.advice),
            "notes": list(self.notes),
        }


def order(objective: str) -> Callable[[Option], tuple[float, ...]]:
    """Return what options are sorted by: those that meet the targets first, then the objective; infeasible ones by nearness."""

    def key(one: Option) -> tuple[float, ...]:
        gpus = float(one.gpus) if one.gpus is not None else math.inf
        cost = one.usd_per_h if one.usd_per_h is not None else math.inf
        request = one.request_s if one.request_s is not None else math.inf
        alike = math.floor(math.log(request) / _ALIKE) if 0.0 < request < math.inf else request
        tuned = float(len(one.flags))  # of equals, the one that leaves most to the engine
        if one.feasible:
            first = {"gpus": (gpus, alike), "cost": (cost, gpus, alike), "latency": (alike, gpus)}[objective]
            return (0.0, *first, tuned, request)
        if one.gpus is not None:  # more accelerators than are allowed
            return (1.0, gpus, alike, tuned, request)
        return (2.0, request) if one.latencies else (3.0, one.missing_bytes if one.missing_bytes is not None else math.inf)

    return key


def front(options: Sequence[Option]) -> Iterator[ParetoPoint]:
    """Yield the points that no other beats, ITL rising."""
    points = [(point, one) for one in options for point in one.points]
    most = 0.0
    for point, one in sorted(points, key=lambda pair: (pair[0].itl_s, -pair[0].output_tokens_per_s_per_gpu)):
        if point.output_tokens_per_s_per_gpu > most:
            most = point.output_tokens_per_s_per_gpu
            label = replace(one, replicas=None).label
            yield ParetoPoint(label, point.rate_per_s, point.itl_s, point.ttft_s, most)


def advised(
    options: Sequence[Option], demand: Demand, slo: SloTargets, limit: int | None, gpus_per_node: int | None
) -> Iterator[str]:
    """Say what would make it feasible."""
    nearest = options[0]
    if nearest.gpus is not None and nearest.replicas:
        each = nearest.gpus // nearest.replicas
        served = (limit or 0) // each * nearest.rate_per_replica
        yield f"{nearest.gpus} accelerators: {nearest.label}"
        if served:
            yield f"a rate of {served:.4g} requests/s with {limit}"
    elif nearest.latencies:
        for target in slo:
            least = min(one.latencies[target.name] for one in options if one.latencies)
            if least > target.seconds:
                yield (
                    f"a looser {target.name}: {least:.3g} s at least, {least / target.seconds:.3g} times the target, "
                    "with the fastest of what was tried"
                )
        if nearest.latencies and all(
            min(one.latencies[target.name] for one in options if one.latencies) <= target.seconds for target in slo
        ):
            worst = max(nearest.latencies[target.name] / target.seconds for target in slo)
            yield f"targets {worst:.3g} times as long: each is met by some option, and none meets all"
    else:
        found = nearest.deployment
        if found is not None:
            for fix in fixes(found, nearest.recipe, demand.traffic, node=gpus_per_node or 8)[:_NAMED]:
                yield f"{fix.change} ({fix.option}), which holds it on {fix.gpus} accelerators"
            if nearest.missing_bytes:
                yield f"{nearest.missing_bytes / 2**30:.2f} GiB more on each accelerator"
