"""What simpler answers say of a served row: two roofs at full rates, and the plain formula of calculators.

A forecast that is no better than these is not worth its constants; the report prints them beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from foretell.core.serving import Deployment
from foretell.core.serving_demand import Demand
from foretell.cost.serving_load import Load
from foretell.evidence.serving_rows import ServingRow

__all__ = ["NOTES", "naive", "reference"]

NOTES: Final = {
    "naive_roofline": (
        "every kernel at the peak or the full bandwidth, whichever is longer; prompts and decoding apart, nothing else; the "
        "batch is the stated concurrency, at most what all of the memory holds beside the weights"
    ),
    "reference_formula": (
        "TTFT: 2 x parameters x tokens at half the peak; ITL: all weights and the batch's keys and values over the bandwidth; "
        "accelerators pooled into one; throughput: batch over ITL, without prompts"
    ),
}
_SHARE: Final = 0.5
_MANY: Final = 256.0
"""Batch where a row does not bound it."""


def naive(row: ServingRow) -> dict[str, float]:
    """Two roofs at full rates."""
    found, demand = row.deployment, row.demand
    if demand is None:
        return {}
    steps = replace(found.steps, share=1.0)
    batch = _batch(row, demand)
    seen = demand.inputs + demand.outputs / 2.0
    together = batch if demand.kind == "static" else 1.0
    tokens = together * demand.traffic.computed
    ttft = float(steps.seconds(Load(prefill=tokens, pairs=together * demand.traffic.pairs, prompts=together)))
    itl = float(steps.seconds(Load(decode=batch, context=batch * seen)))
    reading = ttft * batch / together
    return _answers(row, demand, ttft, itl, batch / (reading + demand.outputs * itl) * found.replicas)


def reference(row: ServingRow) -> dict[str, float]:
    """The plain formula."""
    found, demand = row.deployment, row.demand
    if demand is None:
        return {}
    steps, r = found.steps, found.recipe
    ranks = r.tp * r.pp * (r.dp if r.dp_kind == "attention" else 1)
    peak = (steps.device.low_peak if steps.formats.low else steps.device.peak) * ranks * _SHARE
    rate = steps.device.bandwidth * ranks
    parameters = found.workload.parameters
    batch = _batch(row, demand)
    together = batch if demand.kind == "static" else 1.0
    ttft = 2.0 * parameters * demand.inputs * together / peak
    kept = _kept(found)
    itl = (parameters * steps.formats.expert + batch * (demand.inputs + demand.outputs / 2.0) * kept) / rate
    return _answers(row, demand, ttft, itl, batch / (max(demand.outputs, 1.0) * itl) * found.replicas)


def _kept(found: Deployment) -> float:
    """Bytes of a token's keys and values on all ranks together."""
    arch = found.steps.arch
    heads, width = arch.kv_heads or arch.heads or 1, arch.head_dim or arch.hidden // (arch.heads or 1)
    return 2.0 * arch.layers * heads * width * found.steps.formats.kv


def _batch(row: ServingRow, demand: Demand) -> float:
    """The stated batch of a replica, at most what all of the memory holds beside the weights."""
    found = row.deployment
    ranks = found.recipe.devices / found.replicas
    room = found.hardware.memory_bytes * ranks - found.workload.parameters * found.steps.formats.expert
    fits = max(1.0, room / (_kept(found) * (demand.inputs + demand.outputs)))
    if demand.kind == "single":
        return 1.0
    asked = demand.concurrency or (_MANY if demand.requests is None else min(float(demand.requests), _MANY))
    return max(1.0, min(asked / found.replicas, fits))


def _answers(row: ServingRow, demand: Demand, ttft: float, itl: float, rate: float) -> dict[str, Any]:
    rate /= row.gpus if row.per_gpu else 1
    output = demand.outputs * rate
    return {
        "ttft_s": ttft,
        "itl_s": itl,
        "output_tokens_per_s": output,
        "total_tokens_per_s": output + demand.inputs * rate,
        "input_tokens_per_s": demand.inputs * rate,
    }
