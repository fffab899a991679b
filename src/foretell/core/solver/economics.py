"""EconomicsModel: what machines cost to own and run for a time, what renting them costs, and from when on owning pays."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from foretell.core._request import GivenFloat
from foretell.core.footprint import ENDS
from foretell.core.pricing import KWH_PRICE, LIFE_YEARS, USUAL, Known
from foretell.core.site import Site, site_of
from foretell.core.solver._open import MACHINES, NAN, Check, maybe
from foretell.core.solver._result import Result
from foretell.cost.arrays import known
from foretell.machine.datacenter import Datacenter
from foretell.machine.fleet import Fleet, load_fleet
from foretell.operations.price_list import first_day
from foretell.validation import number

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["EconomicsModel", "EconomicsResult"]


@dataclass(frozen=True)
class EconomicsResult(Result):
    """Machines owned or rented for a time, US dollars without tax.  Intervals span the prices' and the inputs' ranges."""

    title: ClassVar[str] = "cost"

    mode: str
    """own or rent: which of the two `tco_usd` is of."""
    capex_usd: float
    """The part of what was bought that falls on this time, with interest; 0 where it is rented."""
    purchase_usd: float | None
    """All of what is bought: servers and network; None where it is rented."""
    opex_energy_usd: float
    """Electricity of the building; in a rent."""
    opex_maintenance_usd: float
    opex_other_usd: float
    """Staff, and colocation of what is owned, where they were given."""
    rent_usd: float | None
    """Of renting as many accelerators for the whole time, at the price known; None where none is."""
    rent_interval_usd: tuple[float, float] | None
    total_opex_usd: float
    tco_usd: float
    tco_interval_usd: tuple[float, float]
    usd_per_device_hour: float
    """Of a useful hour: everything over the hours in which accelerators work."""
    price_usd_per_device_hour: float | None
    """Rent of one accelerator."""
    break_even_utilisation: float | None
    """Share of the hours from which on owning is cheaper than renting; above 1 it never is, infinite where the electricity alone
    costs as much as the rent.  None without a rent."""
    usd_per_million_tokens: float | None
    total_energy_kwh: float | None
    """Of the building; in a rent, which is None here and in the tariff."""
    kwh_price_usd: float | None
    device_hours: float
    region_name: str | None
    """Where what is owned stands; None where it is rented, or was not named."""
    price_date: str | None
    """Of the oldest price that the answer rests on; None where all were given."""
    constraint_trace: list[str]
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]

    def explain(self) -> str:
        """Return the parts of the cost as text."""
        low, high = self.tco_interval_usd
        parts = {
            "capital": self.capex_usd,
            "electricity": self.opex_energy_usd,
            "maintenance": self.opex_maintenance_usd,
            "staff, colocation": self.opex_other_usd,
            "rent": self.rent_usd if self.mode == "rent" and self.rent_usd else 0.0,
        }
        lines = [f"{self.title} ({self.mode}) {self.tco_usd:,.0f} USD ({low:,.0f} to {high:,.0f})"]
        lines += [f"  {name:18s} {usd:16,.0f} USD {100 * usd / self.tco_usd:5.1f} %" for name, usd in parts.items() if usd]
        return "\n".join([*lines, *(f"  {text}" for text in self.constraint_trace), *(f"note: {note}" for note in self.notes)])


class EconomicsModel:
    """What do these machines cost?

    Owning: whole nodes with their network, written off as an annuity, with maintenance and the electricity of the building.
    Renting: the price of an accelerator hour, in which all of that is.  A price that nobody knows is an error, never 0.
    """

    def solve(
        self,
        fleet: Fleet | str | os.PathLike[str],
        duration_days: float,
        kwh_price: float = KWH_PRICE,
        *,
        mode: str = "own",
        datacenter: Datacenter | str | os.PathLike[str] | None = None,
        node_price_usd: float | None = None,
        network_usd_per_node: float | None = None,
        price_usd_per_device_hour: float | None = None,
        provider: str | None = None,
        price_kind: str = "on-demand",
        life_years: float | None = None,
        discount_rate: float = 0.08,
        residual_fraction: float = 0.0,
        maintenance_fraction: float = 0.05,
        utilisation: float = 1.0,
        staff_usd_per_year: float = 0.0,
        colocation_usd_per_kw_month: float = 0.0,
        tokens_per_second: float | None = None,
        regime: str = "training",
        pue: float | None = None,
        operator: str | None = None,
        node_power_w: object = None,
        nodes: int | None = None,
        today: dt.date | None = None,
    ) -> EconomicsResult:
        """Answer for one fleet.

        `kwh_price`: USD of a kWh of the building; left out, the tariff of `datacenter`, or 0.12.  `node_price_usd`: of a whole
        node; `price_usd_per_device_hour`, `provider`, `price_kind` (on-demand, reserved, spot, capacity-block): of renting.
        `life_years`: until what was bought is written off (None: 4, 3 to 6), `discount_rate` a year, `residual_fraction` of the
        price that is left then, `maintenance_fraction` of it a year.  `utilisation`: share of the hours that work; idle ones
        cost too.  `tokens_per_second` of the whole fleet gives the price of a million.  `today`: the day prices are aged at.

        Raises InputError for an unknown price, and says how to give it.

        >>> r = EconomicsModel().solve("dgx-h100", 365, 0.1, node_price_usd=320_000, life_years=4, discount_rate=0, pue=1.2)
        >>> r.capex_usd, r.opex_maintenance_usd, round(r.opex_energy_usd)
        (80000.0, 16000.0, 8148)
        """
        system = load_fleet(fleet, nodes)
        settings = {
            "duration_days": duration_days,
            "kwh_price": kwh_price,
            "node_price_usd": node_price_usd,
            "network_usd_per_node": network_usd_per_node,
            "price_usd_per_device_hour": price_usd_per_device_hour,
            "life_years": life_years,
            "discount_rate": discount_rate,
            "residual_fraction": residual_fraction,
            "maintenance_fraction": maintenance_fraction,
            "utilisation": utilisation,
            "staff_usd_per_year": staff_usd_per_year,
            "colocation_usd_per_kw_month": colocation_usd_per_kw_month,
            "tokens_per_second": tokens_per_second,
            "nodes": system.nodes,
            "pue": pue,
            "node_power_w": node_power_w,
        }
        plain = {name: check(settings[name]) for name, check in CHECKS.items()}
        place = datacenter if datacenter is not None else system.datacenter
        site = site_of(place, operator=operator, pue=pue)
        words = {"mode": mode, "provider": provider, "price_kind": price_kind, "regime": regime, "today": today}
        found = Known(system, site, words, {name: plain[name] if known(plain[name]) else None for name in _GIVEN})
        return _result(system, plain, site, found, place_given=place is not None)

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
            given = {name: first(settings[name]) for name in (*_GIVEN, "pue")}
            site = site_of(place, operator=settings["operator"], pue=given["pue"])
            several = load_fleet(system, int(settings["nodes"].max()))  # the price of a network is that of more than one node
            found = Known(several, site, settings, given)
            return {name: value for name, value in found.answers(settings, "point").items() if value is not None} | {
                "feasible": True
            }

        kinds = (*_GIVEN, "pue")
        how = Numeric(CHECKS, DEFAULTS | {"nodes": system.nodes}, columns, by="tco_usd", unfit="", walked=WORDS, kinds=kinds)
        return how.sweep(axes, product=product)


def _usd(field: str, least: float = 0.0, most: float = 1e12) -> Check:
    return lambda value: number(value, field, minimum=least, maximum=most)


def _tariff(value: object) -> float:
    """Return the price of a kWh; NaN for the default, which a region's tariff may replace."""
    return NAN if isinstance(value, GivenFloat) else number(value, "kwh_price", maximum=1e3)


CHECKS: Final[dict[str, Check]] = {
    "duration_days": lambda value: number(value, "duration_days", minimum=1e-9, maximum=36500.0),
    "kwh_price": _tariff,
    "node_price_usd": maybe(_usd("node_price_usd", 1e-6)),
    "network_usd_per_node": maybe(_usd("network_usd_per_node")),
    "price_usd_per_device_hour": maybe(_usd("price_usd_per_device_hour", 1e-9, 1e6)),
    "discount_rate": lambda value: number(value, "discount_rate", maximum=1.0),
    "residual_fraction": lambda value: number(value, "residual_fraction", maximum=1.0),
    "maintenance_fraction": lambda value: number(value, "maintenance_fraction", maximum=1.0),
    "utilisation": lambda value: number(value, "utilisation", minimum=1e-6, maximum=1.0),
    "staff_usd_per_year": _usd("staff_usd_per_year"),
    "colocation_usd_per_kw_month": _usd("colocation_usd_per_kw_month"),
    "tokens_per_second": maybe(lambda value: number(value, "tokens_per_second", minimum=1e-9, maximum=1e15)),
    **MACHINES,
}
"""Numeric parameters -> what gives their plain number; NaN for one that is left open."""
_OWNERS: Final = (
    *("kwh_price", "node_price_usd", "network_usd_per_node", "life_years", "discount_rate", "residual_fraction"),
    *("maintenance_fraction", "colocation_usd_per_kw_month", "pue", "node_power_w"),
)
"""Settings of what is owned."""
_GIVEN: Final = ("node_price_usd", "price_usd_per_device_hour", "network_usd_per_node", "node_power_w")
WORDS: Final = ("mode", "datacenter", "provider", "price_kind", "regime", "operator", "today")
DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys((*CHECKS, *WORDS)),
    **USUAL,
    "kwh_price": KWH_PRICE,
    "mode": "own",
    "price_kind": "on-demand",
    "regime": "training",
}
del DEFAULTS["duration_days"]


def _result(system: Fleet, plain: Mapping[str, Any], site: Site, found: Known, *, place_given: bool) -> EconomicsResult:
    """Return the answer to one question, with its ends."""
    low, point, high = (found.answers(plain, end) for end in ENDS)
    numbers = {name: None if value is None or not known(value) else float(value) for name, value in point.items()}
    rented = numbers["rent_usd"] is not None
    own = found.mode == "own"
    assumed = [text for text in site.assumed if own and text.startswith("pue ")]  # carbon and water cost nothing here
    notes = [text for text in site.notes if own and text.startswith("pue ")]
    if found.mode == "own" and not known(plain["kwh_price"]):
        if site.kwh_price_usd is not None:
            notes.append(f"tariff of {site.name}: {site.kwh_price_usd:g} USD/kWh ({site.kwh_price_year})")
        else:
            where = f"no tariff of {site.name} is known" if place_given else "region not named"
            assumed.append(f"{float(KWH_PRICE):g} USD a kWh: {where}")
    if own and not known(plain["life_years"]):
        assumed.append(f"written off in {LIFE_YEARS[1]:g} years ({LIFE_YEARS[2]:g} to {LIFE_YEARS[0]:g})")
    dates = []
    if found.bought is not None:
        notes += found.bought.notes
        dates.append(found.bought.date)
        notes.append("power and cooling plant, land, storage and spare nodes are not in it; staff and colocation where given")
    if found.rent is not None:
        notes += [f"rent: {text}" for text in found.rent.notes]
        dates.append(found.rent.date)
    if found.mode == "rent":
        notes.append("electricity and maintenance are in the rent; storage and traffic are not")
        idle = [name for name in _OWNERS if known(plain[name]) and plain[name] != DEFAULTS[name]]
        notes += [f"no effect on a rent: {', '.join(idle)}"] if idle else []
    return EconomicsResult(
        **numbers,  # type: ignore[arg-type]  # those that may be None are
        mode=found.mode,
        rent_interval_usd=(low["rent_usd"], high["rent_usd"]) if rented else None,
        tco_interval_usd=(float(low["tco_usd"]), float(high["tco_usd"])),
        region_name=site.name if place_given and own else None,
        price_date=min((date for date in dates if date), key=first_day, default=None),
        constraint_trace=_trace(system, numbers, found),
        notes=list(dict.fromkeys(notes)),
        assumed=tuple(assumed),
        sources=_sources(found),
    )


def _trace(system: Fleet, numbers: Mapping[str, float | None], found: Known) -> list[str]:
    devices = system.total_accelerators
    each = f"{numbers['usd_per_device_hour']:.4g} USD an hour"
    out = [f"{devices} accelerators, {numbers['device_hours']:,.0f} device-hours: {each}"]
    even, rent = numbers["break_even_utilisation"], numbers["price_usd_per_device_hour"]
    if found.mode == "own" and even is not None and rent is not None:
        when = f"from {100 * even:.3g} % of the hours on" if even <= 1 else "at no utilisation"
        out.append(f"renting at {rent:.4g} USD an hour: owning is cheaper {when}")
    return out


def _sources(found: Known) -> tuple[str, ...]:
    """Return where the prices come from."""
    offers = () if found.rent is None else found.rent.offers
    bought = () if found.bought is None else found.bought.sources
    rents = (f"rent: {offer.provider}, {offer.instance or offer.accelerator}, {offer.date}" for offer in offers)
    return tuple(dict.fromkeys((*bought, *rents)))
