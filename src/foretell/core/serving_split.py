"""Prompts and decoding on servers of their own (disaggregated serving): what each side does, and the cache that travels between.

Each side is a deployment of the same model; the slower one bounds the rate.  The first token reaches the client when the keys
and values of the prompt have arrived where it is decoded (DistServe, arXiv 2401.09670; Splitwise, arXiv 2311.18677).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand, checked_demand
from foretell.core.serving_forecast import ServingForecast, serve
from foretell.core.solver._result import Result
from foretell.errors import CombinationError
from foretell.validation import number

__all__ = ["SplitForecast", "cache_bytes", "serve_split"]


@dataclass(frozen=True)
class SplitForecast(Result):
    """Both sides of a disaggregated deployment under arrivals at a rate; means."""

    title: ClassVar[str] = "disaggregated serving"

    feasible: bool
    """Both sides hold the weights and a request."""
    stable: bool
    """Both sides keep up with the arrivals."""
    ttft_s: float | None
    """Queue and prompt on the one side, transfer, and the wait for a place on the other."""
    itl_s: float | None
    transfer_s: float
    """Of one prompt's keys and values."""
    cache_bytes: float
    """Of one prompt, over all ranks and layers."""
    capacity_requests_per_s: float | None
    """What the slower side can at most serve."""
    bound: str
    """prefill or decode: the side that is slower; memory where one does not fit."""
    prefill: ServingForecast
    decode: ServingForecast
    notes: tuple[str, ...]


def cache_bytes(found: Deployment, tokens: float) -> float:
    """Bytes of the keys, values and states of so many tokens, each layer counted once."""
    ranks = found.recipe.tp * found.recipe.pp
    held = float(found.capacity.sequence_bytes(tokens)) * ranks
    latent = found.steps.arch.config.get("kv_lora_rank")
    heads = found.steps.arch.kv_heads or found.steps.arch.heads or 1
    copies = found.recipe.tp if isinstance(latent, int) else max(1.0, found.recipe.tp / heads)
    return held / copies


def serve_split(prefill: Deployment, decode: Deployment, demand: Demand, network_bytes_per_s: float) -> SplitForecast:
    """Return what both sides do under arrivals at a rate (``demand.kind`` open).

    ``network_bytes_per_s``: at which one request's cache travels.  Raises InputError or CombinationError for a demand that means
    nothing or two models that differ.
    """
    asked = checked_demand(demand)
    if asked.kind != "open":
        raise CombinationError("needs arrivals at a rate", field="load", value=asked.kind, allowed=["open"])
    if prefill.steps.arch is not decode.steps.arch:
        raise CombinationError(
            "is another model than the one that reads the prompts",
            field="decode",
            value=decode.workload.name,
            allowed=prefill.workload.name,
        )
    rate = number(network_bytes_per_s, "network_bandwidth", minimum=1.0)
    reads = serve(prefill, replace(asked, outputs=1.0, longest=None))
    # the cache comes along: only the last token of the prompt is run again
    makes = serve(decode, replace(asked, cached=asked.inputs - 1.0))
    size = cache_bytes(prefill, asked.inputs)
    transfer = size / rate
    tops = {"prefill": reads.capacity_requests_per_s, "decode": makes.capacity_requests_per_s}
    feasible = reads.feasible and makes.feasible
    slower = min(tops, key=lambda side: math.inf if tops[side] is None else float(tops[side] or 0.0))
    ttft = None
    if feasible and reads.ttft_s is not None and makes.queue_s is not None:
        ttft = reads.ttft_s + transfer + makes.queue_s
    notes: dict[str, Any] = dict.fromkeys((*reads.notes, *makes.notes))
    return SplitForecast(
        feasible=feasible,
        stable=reads.stable and makes.stable,
        ttft_s=ttft,
        itl_s=makes.itl_s,
        transfer_s=transfer,
        cache_bytes=size,
        capacity_requests_per_s=tops[slower] if feasible else None,
        bound=slower if feasible else "memory",
        prefill=reads,
        decode=makes,
        notes=tuple(notes),
    )
