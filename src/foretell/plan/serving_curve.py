"""A deployment over concurrency: what each user gets, what each accelerator gives, and where one costs the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand, checked_demand
from foretell.core.serving_forecast import point
from foretell.cost.serving_flow import resident_limit

__all__ = ["CurvePoint", "curve", "steps_to"]

_BEYOND = 2.0
"""Largest concurrency over what is resident at most: beyond it requests wait, and nothing else changes."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The deployment with a constant number of requests in flight."""

    concurrency: int
    ttft_s: float
    queue_s: float
    prompt_s: float
    itl_s: float
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    output_tokens_per_s_per_user: float | None
    """Once the first token is there: 1 / ITL; None for answers of one token."""
    resident: float
    """Of one replica."""
    bound: str
    pareto: bool = True
    """No other point has a smaller ITL and at least the throughput, or the same and more."""


def curve(found: Deployment, demand: Demand, *, fine: bool = False) -> list[CurvePoint]:
    """Return the curve from one request for each replica to twice what fits; empty where nothing fits.

    Whatever the demand's kind, its lengths are those of requests in a closed loop.  ``fine``: four points for each doubling, to
    draw; else one.  Raises InputError or CombinationError for a demand that means nothing.
    """
    asked = checked_demand(demand)
    most, _ = resident_limit(asked.traffic, found.limits)
    if not found.capacity.feasible or most < 1.0:
        return []
    n, gpus = found.replicas, found.recipe.devices
    points = []
    for concurrency in steps_to(n, most * n, 4 if fine else 1):
        p = point(found, replace(asked, kind="closed", concurrency=float(concurrency), rate=None, burst=None))
        out = p.rate * n * asked.outputs
        points.append(
            CurvePoint(
                concurrency=concurrency,
                ttft_s=p.ttft,
                queue_s=p.queue,
                prompt_s=p.prompt,
                itl_s=p.itl,
                requests_per_s=p.rate * n,
                output_tokens_per_s=out,
                output_tokens_per_s_per_gpu=out / gpus,
                output_tokens_per_s_per_user=1.0 / p.itl if p.itl else None,
                resident=p.decoding + p.reading,
                bound=p.bound,
            )
        )
    return list(_marked(points))


def steps_to(least: int, most: float, each: int = 1) -> list[int]:
    """Return numbers from ``least``, ``each`` for every doubling, to twice the largest that fits, which is one of them.

    >>> steps_to(1, 20.6), steps_to(2, 5.0)
    ([1, 2, 4, 8, 16, 20, 40], [2, 4, 5, 10])
    """
    top = max(least, math.floor(most + 1e-9))
    found = {top, round(_BEYOND * top)}
    size = 0
    while (value := least * 2.0 ** (size / each)) < top:
        found.add(round(value))
        size += 1
    return sorted(found)


def _marked(points: Sequence[CurvePoint]) -> Iterator[CurvePoint]:
    """Mark those that another one beats: by less than a thousandth is not beaten."""
    for one in points:
        beaten = any(
            other.itl_s <= one.itl_s
            and other.ttft_s <= one.ttft_s
            and other.output_tokens_per_s >= one.output_tokens_per_s * 0.999
            and (other.ttft_s < one.ttft_s * 0.999 or other.itl_s < one.itl_s * 0.999)
            for other in points
        )
        yield replace(one, pareto=not beaten)
