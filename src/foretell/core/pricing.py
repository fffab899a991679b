"""Cost of a fleet at a site, owned or rented: prices and power looked up once, then arithmetic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from foretell.core._request import GivenFloat
from foretell.core.costs import Bought, node_price, rent_price
from foretell.core.footprint import ENDS, Energy, energy_of
from foretell.core.footprint import answers as footprint
from foretell.core.site import Site
from foretell.cost.arrays import Value, otherwise, where
from foretell.errors import InputError
from foretell.machine.fleet import Fleet
from foretell.operations.money import break_even_utilisation, per_million, yearly_capital
from foretell.operations.prices import OFFER_KINDS, PriceAnswer
from foretell.validation import choice

__all__ = ["KWH_PRICE", "LIFE_YEARS", "MODES", "OPEN", "USUAL", "Known"]

MODES: Final = ("own", "rent")
_YEAR_DAYS: Final = 365.0
_HOURS: Final = 24.0
_MONTH_DAYS: Final = 365.0 / 12.0
_NAN: Final = float("nan")
KWH_PRICE: Final = GivenFloat(0.12)
"""Default of the reference's signature, USD: taken where no region with a tariff is named."""
LIFE_YEARS: Final = (6.0, 4.0, 3.0)
"""Years in which servers are written off: low end of the cost, point, high end (operators' accounts say 3 to 6; assumed)."""
USUAL: Final[dict[str, float]] = {
    "discount_rate": 0.08,
    "residual_fraction": 0.0,
    "maintenance_fraction": 0.05,
    "utilisation": 1.0,
    "staff_usd_per_year": 0.0,
    "colocation_usd_per_kw_month": 0.0,
}
"""Settings of an answer that are numbers where nobody gives them."""
OPEN: Final = dict.fromkeys(
    (
        *("kwh_price", "node_price_usd", "network_usd_per_node", "price_usd_per_device_hour", "life_years"),
        *("tokens_per_second", "pue", "node_power_w"),
    ),
    _NAN,
)
"""... and those that are looked up."""


class Known:
    """Prices and power of a fleet at a site, looked up once."""

    def __init__(self, system: Fleet, site: Site, words: Mapping[str, Any], given: Mapping[str, float | None]) -> None:
        self.system, self.site = system, site
        self.mode = choice(words["mode"], "mode", MODES)
        today = dt.datetime.now(tz=dt.UTC).date() if words["today"] is None else words["today"]
        if isinstance(today, dt.datetime):
            today = today.date()
        if not isinstance(today, dt.date):
            raise InputError("is no date", field="today", value=today, allowed="a datetime.date")
        kind = choice(words["price_kind"], "price_kind", OFFER_KINDS)
        self.rent: PriceAnswer | None = rent_price(
            system, given["price_usd_per_device_hour"], provider=words["provider"], kind=kind, today=today
        )
        if self.mode == "rent" and self.rent is None:
            hint = "Give price_usd_per_device_hour (--price)"
            raise InputError(f"to rent {system.accelerator.name} is not known", field="price", hint=hint)
        self.bought: Bought | None = None
        if self.mode == "own":
            self.bought = node_price(system, given["node_price_usd"], network=given["network_usd_per_node"], today=today)
        self.power: dict[str, Energy] = {}
        if self.mode == "own":
            watts = given.get("node_power_w")
            self.power = dict(zip(ENDS, energy_of(system, site, words["regime"], watts), strict=True))

    def answers(self, settings: Mapping[str, Any], end: str) -> dict[str, Any]:
        """Return the numbers at one end; numeric settings may be arrays."""
        days, nodes = settings["duration_days"], settings["nodes"]
        years = days / _YEAR_DAYS
        devices = nodes * self.system.node.accelerators_per_node
        hours = devices * days * _HOURS
        rent = _NAN if self.rent is None else getattr(self.rent, end)
        rent = otherwise(settings["price_usd_per_device_hour"], rent)
        out: dict[str, Any] = {
            "rent_usd": rent * hours,
            "price_usd_per_device_hour": rent,
            "device_hours": hours,
        }
        if self.bought is None:
            staff = settings["staff_usd_per_year"] * years + hours * 0.0
            out |= dict.fromkeys(("capex_usd", "opex_energy_usd", "opex_maintenance_usd"), hours * 0.0)
            out |= dict.fromkeys(("purchase_usd", "total_energy_kwh", "kwh_price_usd", "break_even_utilisation"))
            out |= dict.fromkeys(("total_opex_usd", "tco_usd"), out["rent_usd"] + staff)
            out["opex_other_usd"] = staff
        else:
            out |= self._owned(settings, end, nodes, years, rent)
        out["usd_per_device_hour"] = out["tco_usd"] / (hours * settings["utilisation"])
        speed = settings["tokens_per_second"]
        out["usd_per_million_tokens"] = per_million(out["tco_usd"] / (hours * settings["utilisation"]), devices, speed)
        return out

    def _owned(
        self,
        settings: Mapping[str, Any],
        end: str,
        nodes: Value,
        years: Value,
        rent: Value,
    ) -> dict[str, Any]:
        """Return the parts of owning."""
        assert self.bought is not None  # noqa: S101  # the caller looked
        energy = footprint(dict(settings) | {"life_years": _NAN, "carbon_intensity": 0.0, "wue": 0.0}, self.power[end])
        tariff = otherwise(settings["kwh_price"], self.site.kwh_price_usd or float(KWH_PRICE))
        server = otherwise(settings["node_price_usd"], getattr(self.bought.server, end))
        wires = otherwise(settings["network_usd_per_node"], where(nodes > 1, getattr(self.bought.network, end), 0.0))
        price = nodes * (server + wires)
        life = otherwise(settings["life_years"], LIFE_YEARS[tuple(ENDS).index(end)])
        yearly = yearly_capital(price, price * settings["residual_fraction"], settings["discount_rate"], life)
        upkeep = price * settings["maintenance_fraction"]
        electric = energy["total_energy_kwh"] * tariff
        kw = nodes * (self.system.node.node_power_w or otherwise(settings["node_power_w"], self.power[end].busy_w)) / 1000.0
        months = settings["duration_days"] / _MONTH_DAYS
        other = settings["staff_usd_per_year"] * years + settings["colocation_usd_per_kw_month"] * kw * months
        capital, maintenance = yearly * years, upkeep * years
        devices = nodes * self.system.node.accelerators_per_node
        busy = otherwise(settings["node_power_w"], self.power[end].busy_w) * nodes / devices / 1000.0
        pue = otherwise(settings["pue"], self.power[end].pue)
        spent = electric + maintenance + other
        return {
            "total_energy_kwh": energy["total_energy_kwh"],
            "kwh_price_usd": tariff + years * 0.0,
            "capex_usd": capital,
            "purchase_usd": price,
            "opex_energy_usd": electric,
            "opex_maintenance_usd": maintenance,
            "opex_other_usd": other,
            "total_opex_usd": spent,
            "tco_usd": capital + spent,
            "break_even_utilisation": break_even_utilisation(yearly / devices, upkeep / devices, busy, pue, tariff, rent),
        }
