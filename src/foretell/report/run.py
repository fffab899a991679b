"""From the forecast of a whole run to plain data, keys with their units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretell.plan.whole_run import RunForecast

__all__ = ["run_of"]


def run_of(found: RunForecast) -> dict[str, Any]:
    """Return the `run` of the answer of `train --tokens`: each quantity at its points, and P10, P50 and P90 of the samples."""
    return {
        "feasible": found.feasible,
        "gpus": found.gpus,
        "nodes": found.nodes,
        "checkpoint_size_bytes": round(found.checkpoint_size_bytes),
        "quantities": {
            name: {"point": band.point, "p10": band.p10, "p50": band.p50, "p90": band.p90} for name, band in found.bands.items()
        },
        "losses": dict(found.losses),
        "region": found.region_name,
        "boundary": found.boundary,
        "mode": found.mode,
        "samples": found.samples,
        "assumed": list(found.assumed),
    }
