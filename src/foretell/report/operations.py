"""From the results of the operations' solvers to the `result` of each verb: plain data, keys with their units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from foretell.machine.fleet import Fleet, load_fleet

if TYPE_CHECKING:
    from foretell.core.solver import CheckpointResult, EconomicsResult, ReliabilityResult, SustainabilityResult

__all__ = ["carbon_of", "checkpoint_of", "cost_of", "curve_of", "reliability_of"]

_SCALES: Final = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Points of the curve, as multiples of the fleet."""
_ENDLESS_S: Final = 1e15
"""Wall times beyond which a job never ends."""
_APART: Final = ("notes", "sources", "assumed")
"""What stands elsewhere in the object."""


def _plain(result: Any, assumed: Sequence[str]) -> dict[str, Any]:  # one of the four results
    """Return the fields of a result but for what stands elsewhere, with all that was assumed."""
    made = {name: value for name, value in result.to_dict().items() if name not in _APART}
    return made | {"assumed": list(dict.fromkeys(assumed))}


def _named(fleet: Fleet) -> dict[str, Any]:
    return {"machines": fleet.name, "gpu": fleet.accelerator.name, "gpus": fleet.total_accelerators}


def reliability_of(
    result: ReliabilityResult, fleet: Fleet, inputs: Mapping[str, Any], assumed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/reliability.json` describes it."""
    made = _named(fleet) | _plain(result, assumed)
    made["wall_time_s"] = _ends(result.wall_time_s)
    made["wall_time_interval_s"] = [_ends(end) for end in result.wall_time_interval_s]
    return made | {"curve": curve_of(result, fleet, inputs)}


def _ends(seconds: float) -> float | None:
    """Return a wall time, None where the job never ends."""
    return seconds if seconds < _ENDLESS_S else None


def curve_of(result: ReliabilityResult, fleet: Fleet, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how the same job does on an eighth to eight times the nodes, at each size's best interval."""
    from foretell.core.solver import ReliabilityModel  # noqa: PLC0415  # of the one verb that needs it

    counts = dict.fromkeys(max(1, round(scale * fleet.nodes)) for scale in _SCALES)
    rows = []
    for count in counts:
        one = ReliabilityModel().solve(
            load_fleet(fleet, count),
            inputs["hours"],
            inputs["checkpoint_time_s"],
            recovery_time_s=result.recovery_time_s,
            failure_rate=result.failures_per_1000_node_days,
            durability_lag_s=inputs["lag_s"],
        )
        rows.append(
            {
                "nodes": count,
                "gpus": count * fleet.node.accelerators_per_node,
                "fleet_mtbf_s": one.fleet_mtbf_s,
                "expected_failures": one.expected_failures,
                "optimal_checkpoint_interval_s": one.optimal_checkpoint_interval_s,
                "goodput_ratio": one.goodput_ratio,
                "feasible": one.feasible,
            }
        )
    return rows


def checkpoint_of(result: CheckpointResult, assumed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/checkpoint.json` describes it."""
    return _plain(result, assumed)


def cost_of(result: EconomicsResult, fleet: Fleet, assumed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer as plain data, with the parts that sum to it; see `report/schemas/cost.json`."""
    rented = result.mode == "rent"
    parts = {
        "capital": result.capex_usd,
        "electricity": result.opex_energy_usd,
        "maintenance": result.opex_maintenance_usd,
        "other": result.opex_other_usd,
        "rent": result.rent_usd if rented and result.rent_usd is not None else 0.0,
    }
    return _named(fleet) | _plain(result, assumed) | {"breakdown_usd": parts}


def carbon_of(
    result: SustainabilityResult, fleet: Fleet, inputs: Mapping[str, Any], assumed: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/carbon.json` describes it."""
    return _named(fleet) | _plain(result, assumed) | {"days": inputs["days"]}
