"""Energy, carbon and water of a fleet at a site: the numbers of one end of everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.core.site import Site
from foretell.cost.arrays import Value, minimum, otherwise
from foretell.errors import InputError
from foretell.machine.fleet import Fleet
from foretell.operations.embodied import embodied_node
from foretell.operations.emissions import embodied_rate, facility_kwh, grid_kg, it_kwh, off_site_litres, on_site_litres
from foretell.operations.power import REGIMES, node_power
from foretell.operations.ranges import Range
from foretell.validation import choice

__all__ = ["ENDS", "LIFE_USE", "LIFE_YEARS", "Energy", "answers", "energy_of"]

LIFE_YEARS: Final = Range(4.0, 5.0, 6.0, "years", ("life of a server: 4 to 6 years, as operators depreciate them (assumed)",))
LIFE_USE: Final = Range(0.6, 0.85, 1.0, "", ("share of its life that a server is in use: 0.85 as BLOOM's (arXiv 2211.02001)",))
ENDS: Final = {"low": "high", "point": "point", "high": "low"}
"""End of an answer -> end of what divides in it."""
_HOURS: Final = 24.0


@dataclass(frozen=True, slots=True)
class Energy:
    """One end, or the point, of everything that an answer rests on."""

    busy_w: float
    """Of a node."""
    idle_w: float
    embodied_kg: float
    """Of making a node."""
    life_years: float
    life_use: float
    pue: float
    wue: float
    grams: float
    off_site: float | None


def energy_of(fleet: Fleet, site: Site, regime: str, power_w: float | None = None) -> tuple[Energy, Energy, Energy]:
    """Return the low ends, the points and the high ends of a fleet at a site; `power_w`: a node's at work, where it is given.

    What a node draws when it waits is infinite where nobody knows it: `answers` takes no more than it draws at work.
    """
    choice(regime, "regime", REGIMES)
    made = embodied_node(fleet.node)
    busy = node_power(fleet, regime) if power_w is None else Range.exact(power_w, "W")
    idle = _idle(fleet)

    def level(end: str) -> Energy:
        return Energy(
            busy_w=getattr(busy, end),
            idle_w=math.inf if idle is None else getattr(idle, end),
            embodied_kg=getattr(made, end),
            life_years=getattr(LIFE_YEARS, ENDS[end]),
            life_use=getattr(LIFE_USE, ENDS[end]),
            pue=getattr(site.pue, end),
            wue=getattr(site.wue, end),
            grams=getattr(site.grams, end),
            off_site=site.off_site_l_per_kwh,
        )

    return level("low"), level("point"), level("high")


def _idle(fleet: Fleet) -> Range | None:
    """Return what a node draws when it waits; None where the power of its accelerators is unknown."""
    try:
        return node_power(fleet, "idle")
    except InputError:
        return None


def answers(settings: Mapping[str, Any], at: Energy) -> dict[str, Any]:
    """Return the numbers of an answer; numeric settings may be arrays, NaN where one is left open."""
    hours = settings["duration_days"] * _HOURS
    used = settings["utilisation"]
    busy = otherwise(settings["node_power_w"], at.busy_w)
    watts = settings["nodes"] * (used * busy + (1.0 - used) * minimum(at.idle_w, busy))
    energy = it_kwh(watts, hours)
    total = facility_kwh(energy, otherwise(settings["pue"], at.pue))
    electric = grid_kg(total, otherwise(settings["carbon_intensity"], at.grams))
    rate: Value = embodied_rate(at.embodied_kg, otherwise(settings["life_years"], at.life_years), at.life_use)
    made = settings["nodes"] * hours * rate
    return {
        "it_energy_kwh": energy,
        "total_energy_kwh": total,
        "carbon_footprint_kg": electric + made,
        "operational_carbon_kg": electric,
        "embodied_carbon_kg": made,
        "water_usage_liters": on_site_litres(energy, otherwise(settings["wue"], at.wue)),
        "off_site_water_liters": None if at.off_site is None else off_site_litres(total, at.off_site),
    }
