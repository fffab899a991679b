"""SustainabilityModel: energy, carbon and water of machines at work, and their share of what making them emitted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.core.footprint import LIFE_USE, LIFE_YEARS, answers, energy_of
from foretell.core.site import Site, site_of
from foretell.core.solver._open import MACHINES, Check, maybe
from foretell.core.solver._result import Result
from foretell.cost.arrays import known
from foretell.machine.datacenter import Datacenter
from foretell.machine.fleet import Fleet, load_fleet
from foretell.operations.embodied import embodied_node
from foretell.operations.power import node_power
from foretell.validation import number

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["SustainabilityModel", "SustainabilityResult"]

_LONGEST_DAYS: Final = 36500.0
_SITE: Final = ("pue", "wue", "carbon_intensity")
"""Figures of the site that a number takes the place of."""


@dataclass(frozen=True)
class SustainabilityResult(Result):
    """Machines running for a time: kWh, kg of CO2-equivalent, litres, watts.  Intervals span the inputs' ranges."""

    title: ClassVar[str] = "footprint"

    it_energy_kwh: float
    """Of the servers: accelerators, hosts, network cards, fans."""
    it_energy_interval_kwh: tuple[float, float]
    total_energy_kwh: float
    """Of the building: IT energy x PUE."""
    total_energy_interval_kwh: tuple[float, float]
    carbon_footprint_kg: float
    """Operation and the share of making: their sum."""
    carbon_footprint_interval_kg: tuple[float, float]
    operational_carbon_kg: float
    """Of the electricity, within `boundary`."""
    operational_carbon_interval_kg: tuple[float, float]
    embodied_carbon_kg: float
    """Share of what making the servers emitted: by hours of their life in use."""
    embodied_carbon_interval_kg: tuple[float, float]
    water_usage_liters: float
    """On the site: IT energy x WUE."""
    water_usage_interval_liters: tuple[float, float]
    off_site_water_liters: float | None
    """Of the power stations: facility energy x the grid's; None where it is unknown."""
    pue: float
    pue_interval: tuple[float, float]
    wue_l_per_kwh: float
    carbon_intensity_g_per_kwh: float
    carbon_intensity_interval_g_per_kwh: tuple[float, float]
    boundary: str
    """What the intensity counts: operational (power stations), lifecycle (plants and fuel supply too) or market (contracts)."""
    carbon_intensity_year: int | None
    region_name: str
    node_power_w: float
    """Mean of a node while it works."""
    node_power_interval_w: tuple[float, float]
    nodes: int
    regime: str
    constraint_trace: list[str]
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]

    def explain(self) -> str:
        """Return the chain from watts to kg and litres, as text."""
        low, high = self.carbon_footprint_interval_kg
        lines = [
            f"{self.title} {self.carbon_footprint_kg / 1000:.4g} t CO2e ({low / 1000:.4g} to {high / 1000:.4g})",
            f"  electricity   {self.operational_carbon_kg / 1000:12.4g} t  {self.boundary}, {self.region_name}",
            f"  making        {self.embodied_carbon_kg / 1000:12.4g} t  share of the servers' life",
        ]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class SustainabilityModel:
    """What do these machines take and emit?

    Power is that of whole nodes, measured by regime (training, prefill, decode, idle), never the label's limit.  Boundaries are
    kept apart: IT and facility energy, operational and lifecycle grid factors, water on the site and of power stations.
    """

    def solve(
        self,
        fleet: Fleet | str | os.PathLike[str],
        duration_days: float,
        datacenter: Datacenter | str | os.PathLike[str] | None = None,
        *,
        regime: str = "training",
        utilisation: float = 1.0,
        boundary: str | None = None,
        operator: str | None = None,
        pue: float | None = None,
        wue: float | None = None,
        carbon_intensity: float | None = None,
        node_power_w: object = None,
        life_years: float | None = None,
        nodes: int | None = None,
    ) -> SustainabilityResult:
        """Answer for one fleet.

        `utilisation`: share of the time in the regime; the rest is idle, at the measured idle power.  `boundary`: operational,
        lifecycle or market; `operator`: google, aws, microsoft, meta ... whose PUE and WUE are taken; `carbon_intensity`: grams
        of CO2-equivalent a kWh; `node_power_w`: mean of a node at work.

        Raises InputError or CatalogError (an unknown region, with near names).

        >>> r = SustainabilityModel().solve("dgx-h100", 30, "us-iowa", nodes=8, pue=1.1, carbon_intensity=400)
        >>> round(r.it_energy_kwh), round(r.total_energy_kwh / r.it_energy_kwh, 6), round(r.operational_carbon_kg)
        (44649, 1.1, 19646)
        """
        system = load_fleet(fleet, nodes)
        settings = {
            "duration_days": duration_days,
            "utilisation": utilisation,
            "pue": pue,
            "wue": wue,
            "carbon_intensity": carbon_intensity,
            "node_power_w": node_power_w,
            "life_years": life_years,
            "nodes": system.nodes,
        }
        plain = {name: check(settings[name]) for name, check in CHECKS.items()}
        site = site_of(
            datacenter if datacenter is not None else system.datacenter,
            operator=operator,
            pue=pue,
            wue=wue,
            carbon_intensity=carbon_intensity,
            boundary=boundary,
        )
        return _result(system, plain, site, regime)

    def sweep(
        self,
        fleet: Fleet | str | os.PathLike[str],
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another)."""
        from foretell.core.solver._numeric_sweep import Numeric, first  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        system = load_fleet(fleet)

        def columns(settings: Mapping[str, Any]) -> dict[str, Any]:
            place = settings["datacenter"] if settings["datacenter"] is not None else system.datacenter
            given: dict[str, Any] = {name: first(settings[name]) for name in _SITE}
            site = site_of(place, operator=settings["operator"], boundary=settings["boundary"], **given)
            point = answers(settings, energy_of(system, site, settings["regime"], first(settings["node_power_w"]))[1])
            return {name: value for name, value in point.items() if value is not None} | {"feasible": True}

        how = Numeric(
            CHECKS,
            DEFAULTS | {"nodes": system.nodes},
            columns,
            by="carbon_footprint_kg",
            unfit="",
            walked=("datacenter", "regime", "operator", "boundary"),
            kinds=(*_SITE, "node_power_w"),
        )
        return how.sweep(axes, product=product)


CHECKS: Final[dict[str, Check]] = {
    "duration_days": lambda value: number(value, "duration_days", minimum=1e-9, maximum=_LONGEST_DAYS),
    "utilisation": lambda value: number(value, "utilisation", maximum=1.0),
    "wue": maybe(lambda value: number(value, "wue", maximum=1e3)),
    "carbon_intensity": maybe(lambda value: number(value, "carbon_intensity", maximum=1e5)),
    **MACHINES,
}
"""Numeric parameters -> what gives their plain number; NaN for one that is left open."""
DEFAULTS: Final[dict[str, Any]] = {
    "datacenter": None,
    "regime": "training",
    "utilisation": 1.0,
    "boundary": None,
    "operator": None,
    "pue": None,
    "wue": None,
    "carbon_intensity": None,
    "node_power_w": None,
    "life_years": None,
}


def _plain(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value if value is None else float(value) for name, value in point.items()}


def _result(system: Fleet, plain: Mapping[str, Any], site: Site, regime: str) -> SustainabilityResult:
    """Return the answer to one question, with its ends."""
    given = plain["node_power_w"]
    levels = energy_of(system, site, regime, given if known(given) else None)
    low, point, high = (answers(plain, level) for level in levels)

    def ends(name: str) -> tuple[float, float]:
        return float(low[name]), float(high[name])

    busy = [level.busy_w for level in levels]
    held = [embodied_node(system.node)] if known(given) else [node_power(system, regime), embodied_node(system.node)]
    notes = [*site.notes, *(note for one in held[:-1] for note in one.notes), *held[-1].notes[-1:]]
    notes += [*(() if known(plain["life_years"]) else LIFE_YEARS.notes), *LIFE_USE.notes]
    notes.append("switches outside the nodes, storage and buildings are not in it; nor are idle accelerators held beside the job")
    count = f"{system.nodes} node{'s' if system.nodes > 1 else ''}"
    return SustainabilityResult(
        **_plain(point),
        it_energy_interval_kwh=ends("it_energy_kwh"),
        total_energy_interval_kwh=ends("total_energy_kwh"),
        carbon_footprint_interval_kg=ends("carbon_footprint_kg"),
        operational_carbon_interval_kg=ends("operational_carbon_kg"),
        embodied_carbon_interval_kg=ends("embodied_carbon_kg"),
        water_usage_interval_liters=ends("water_usage_liters"),
        pue=site.pue.point,
        pue_interval=(site.pue.low, site.pue.high),
        wue_l_per_kwh=site.wue.point,
        carbon_intensity_g_per_kwh=site.grams.point,
        carbon_intensity_interval_g_per_kwh=(site.grams.low, site.grams.high),
        boundary=site.boundary,
        carbon_intensity_year=site.year,
        region_name=site.name,
        node_power_w=busy[1],
        node_power_interval_w=(busy[0], busy[2]),
        nodes=system.nodes,
        regime=regime,
        constraint_trace=[
            f"{count} at {busy[1] / 1000:.4g} kW in {regime}: {point['it_energy_kwh']:.6g} kWh of IT energy",
            f"x PUE {site.pue.point:.3g} = {point['total_energy_kwh']:.6g} kWh, {site.grams.point:.4g} g/kWh ({site.boundary})",
        ],
        notes=list(dict.fromkeys(notes)),
        assumed=site.assumed,
        sources=tuple(dict.fromkeys(f"{source.title}, {source.url}" for one in held for source in one.sources)),
    )
