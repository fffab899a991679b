"""Disaggregated serving as one answer: both sides' forecasts joined, and what each does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from foretell.core.serving_forecast import ServingForecast
from foretell.core.serving_split import SplitForecast
from foretell.cost.serving_host import interval_of

__all__ = ["joined", "split_of"]


def joined(split: SplitForecast) -> ServingForecast:
    """Return both sides as one forecast: the decoding side's, with the TTFT, the capacity and the devices of both."""
    reads, makes = split.prefill, split.decode
    if not split.feasible or split.ttft_s is None:
        worse = makes if not makes.feasible else reads
        return replace(worse, gpus=reads.gpus + makes.gpus, notes=split.notes)
    gpus = reads.gpus + makes.gpus
    client = max(split.ttft_s - (reads.queue_s or 0.0) - (reads.prompt_s or 0.0) - split.transfer_s - (makes.queue_s or 0.0), 0.0)
    queue = (reads.queue_s or 0.0) + (makes.queue_s or 0.0)
    low, high = interval_of(makes.regime, "ttft")
    out, itl = makes.output_tokens_per_s or 0.0, makes.itl_s or 0.0
    steps = 0.0 if makes.request_s is None or not itl else (makes.request_s - (makes.ttft_s or 0.0)) / itl
    peaks = [side.gpus * side.deployment.steps.device.peak for side in (reads, makes)]
    shares = [(side.mfu or 0.0) * peak for side, peak in zip((reads, makes), peaks, strict=True)]
    return replace(
        makes,
        stable=split.stable,
        ttft_s=split.ttft_s,
        ttft_interval_s=(split.ttft_s * low, split.ttft_s * high),
        queue_s=queue,
        prompt_s=split.ttft_s - queue - client,
        request_s=split.ttft_s + steps * itl,
        output_tokens_per_s_per_gpu=out / gpus,
        capacity_requests_per_s=split.capacity_requests_per_s,
        backlog_growth_per_s=max(reads.backlog_growth_per_s or 0.0, makes.backlog_growth_per_s or 0.0),
        utilization=max(reads.utilization or 0.0, makes.utilization or 0.0),
        mfu=sum(shares) / sum(peaks),
        gpus=gpus,
        replicas=makes.replicas,
        notes=split.notes,
    )


def split_of(split: SplitForecast) -> dict[str, Any]:
    """Return what each side does, and the cache that travels between them."""
    return {
        "bound": split.bound,
        "transfer_s": split.transfer_s,
        "cache_bytes": round(split.cache_bytes),
        "prefill": _side(split.prefill),
        "decode": _side(split.decode),
    }


def _side(found: ServingForecast) -> dict[str, Any]:
    r = found.deployment.recipe
    return {
        "gpu": found.deployment.hardware.id or found.deployment.hardware.name,
        "gpus": found.gpus,
        "replicas": found.replicas,
        "tp": r.tp,
        "feasible": found.feasible,
        "capacity_requests_per_s": found.capacity_requests_per_s,
        "utilization": found.utilization,
        "kv_tokens": found.kv_tokens,
        "step_s": sum(found.ledger.values()),
    }
