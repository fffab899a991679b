"""Checks of a measurement by itself: what no server can have done is flagged, not fitted.

A token takes at least the time to read the weights and what the batch keeps, once, at the full bandwidth; and nobody's products
reach more than six tenths of the peak.  Rows beyond these have a prompt cache, another batch or another unit than they say.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.cost.serving_load import Load
from foretell.evidence.serving_rows import ServingRow

__all__ = ["suspicious"]

MOST_MFU = 0.6
"""Of 3,604 published rows none exceeds 0.40 but those with a prompt cache (see ``docs/serving.md``)."""


def suspicious(row: ServingRow) -> str | None:
    """Return why a measurement cannot be what it says, or None."""
    demand, found = row.demand, row.deployment
    if demand is None or not found.capacity.feasible:
        return None
    steps = found.steps
    rate = _rate(row)
    if rate is not None:
        arch = steps.arch
        flops = 2.0 * (arch.active_parameters - _table(row)) * (demand.traffic.computed + demand.outputs) * rate
        peak = (steps.device.low_peak if steps.formats.low else steps.device.peak) * row.gpus
        if flops > MOST_MFU * peak:
            return f"implies {100 * flops / peak:.0f} % of the peak: prompts were cached, or the throughput is of more devices"
    itl = row.measured.get("itl_s")
    if itl is not None and demand.kind in ("static", "single", "closed") and found.recipe.speculation is None:
        batch = (demand.concurrency or 1.0) / found.replicas
        least = _streaming(row, min(batch, found.limits.sequences))
        if itl < least:
            least_ms = f"{1e3 * least:.2f} ms"
            return f"a token took {1e3 * itl:.2f} ms where weights and KV take {least_ms} to read: fewer were resident"
    return None


def _rate(row: ServingRow) -> float | None:
    """Requests a second, as measured."""
    demand, measured = row.demand, row.measured
    assert demand is not None  # noqa: S101  # asked only then
    scale = row.gpus if row.per_gpu else 1
    if "output_tokens_per_s" in measured and demand.kind != "single":
        return measured["output_tokens_per_s"] * scale / max(demand.outputs, 1.0)
    return None


def _table(row: ServingRow) -> float:
    arch = row.deployment.steps.arch
    return float((arch.vocab or 0) * arch.hidden)


def _streaming(row: ServingRow, batch: float) -> float:
    """Seconds to read weights and KV of a batch once, at the full bandwidth."""
    demand, steps = row.demand, row.deployment.steps
    assert demand is not None  # noqa: S101
    roofs = replace(steps, share=1.0)
    seen = demand.inputs + demand.outputs / 2.0
    return float(roofs.seconds(Load(decode=batch, context=batch * seen)))
