"""The answers of `cost` and `carbon` on a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from foretell.report.operations_screen import energy, figure, foot, ledger, row, scaled, spread, tonnes, usd, volume, where
from foretell.report.screen import heading, paragraph, wrapped

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["carbon_line", "cost_line", "show_carbon", "show_cost"]

_PARTS: Final = {
    "capital": "capital",
    "electricity": "electricity",
    "maintenance": "maintenance",
    "other": "staff, colocation",
    "rent": "rent",
}
_BOUNDARIES: Final = {
    "operational": "what power stations emit",
    "lifecycle": "building plants and supplying fuel too",
    "market": "what contracts leave",
}


def cost_line(document: Mapping[str, Any]) -> Text:
    """Return one line: what it costs, with its range, and what a useful hour comes to."""
    result = document["result"]
    ends = spread(result["tco_interval_usd"], usd).removesuffix(" USD")
    text = f"{usd(result['tco_usd'])} to {result['mode']}" + (f" ({ends})" if ends else "")
    return Text(f"{text}  {usd(result['usd_per_device_hour'])} a GPU-hour", style="bold")


def show_cost(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, cost_line(document))
    place = f", {result['region_name']}" if result["region_name"] else ""
    where(inputs, result, console, f", {100 * inputs['utilisation']:.4g} % of the hours in use{place}")
    heading(console, "parts")
    parts = {name: result["breakdown_usd"][key] for key, name in _PARTS.items() if result["breakdown_usd"][key]}
    ledger(console, {name: (size, usd(size)) for name, size in parts.items()})
    if result["purchase_usd"] is not None:
        heading(console, "what they rest on")
        row(console, "bought for", usd(result["purchase_usd"]), "servers and network")
        kwh = f"at {result['kwh_price_usd']:.4g} USD a kWh"
        row(console, "energy of the building", energy(result["total_energy_kwh"]), kwh)
    heading(console, "rates")
    row(console, "GPU-hours", f"{result['device_hours']:,.0f}")
    row(console, "a useful one", usd(result["usd_per_device_hour"]))
    if result["usd_per_million_tokens"] is not None:
        row(console, "a million tokens", usd(result["usd_per_million_tokens"]))
    if result["mode"] == "own":
        _break_even(result, console)
    console.print()
    _prices(result, document["sources"], console)
    foot(console, document)


def _break_even(result: Mapping[str, Any], console: Console) -> None:
    """Print what renting costs, and from when on owning is cheaper."""
    heading(console, "own or rent")
    if result["rent_usd"] is None:
        wrapped(console, Text("  no price to rent one is known: give --price USD of one accelerator and hour"))
        return
    ends = spread(result["rent_interval_usd"], usd).removesuffix(" USD")
    each = f"{usd(result['price_usd_per_device_hour'])} a GPU-hour"
    row(console, "to rent as many", usd(result["rent_usd"]), f"{ends}; {each}" if ends else each)
    even = result["break_even_utilisation"]
    text = "at no use of them" if even > 1 else f"from {100 * even:.3g} % of the hours in use on"
    row(console, "owning is cheaper", text)


def _prices(result: Mapping[str, Any], sources: Sequence[str], console: Console) -> None:
    """Print which prices the answer rests on, and of when."""
    if result["price_date"] is None:
        paragraph(console, "prices", "as given")
        return
    paragraph(console, "prices", f"the oldest of {result['price_date']}")
    for label, start in (("to buy", "price to buy: "), ("to rent", "rent: ")):
        held = [source.removeprefix(start) for source in sources if source.startswith(start)]
        if held:
            paragraph(console, label, "; ".join(held))


# -- carbon ------------------------------------------------------------------------------------------------------


def carbon_line(document: Mapping[str, Any]) -> Text:
    """Return one line: carbon with its range, energy and water."""
    result = document["result"]
    total = f"{tonnes(result['carbon_footprint_kg'])} CO2e ({spread(result['carbon_footprint_interval_kg'], tonnes)})"
    more = f"{energy(result['total_energy_kwh'])}, {volume(result['water_usage_liters'])} of water on site"
    return Text(f"{total}  {more}", style="bold")


def show_carbon(document: Mapping[str, Any], console: Console) -> None:
    """Print the whole screen."""
    result, inputs = document["result"], document["inputs"]
    wrapped(console, carbon_line(document))
    use = "" if inputs["utilisation"] == 1 else f", {100 * inputs['utilisation']:.4g} % of the time, else idle"
    where(inputs, result, console, f" of {result['regime']}{use}; {result['region_name']}")
    heading(console, "from power to carbon")
    row(console, "a node at work", _kw(result["node_power_w"]), spread(result["node_power_interval_w"], _kw))
    row(console, "IT energy", energy(result["it_energy_kwh"]), spread(result["it_energy_interval_kwh"], energy))
    row(console, "x PUE", f"{result['pue']:.4g}", spread(result["pue_interval"], lambda value: f"{value:.4g}"))
    row(console, "= of the building", energy(result["total_energy_kwh"]), spread(result["total_energy_interval_kwh"], energy))
    grams = spread(result["carbon_intensity_interval_g_per_kwh"], figure)
    year = f", {result['carbon_intensity_year']}" if result["carbon_intensity_year"] else ", as given"
    about = f"{result['boundary']}: {_BOUNDARIES[result['boundary']]}{year}"
    row(console, "x g CO2e a kWh", figure(result["carbon_intensity_g_per_kwh"]), f"{grams}; {about}" if grams else about)
    heading(console, "CO2-equivalent")
    total = result["carbon_footprint_kg"] or 1.0
    for key, name, about in (("operational", "electricity", ""), ("embodied", "making the servers", "of their life in use")):
        kg, ends = result[f"{key}_carbon_kg"], spread(result[f"{key}_carbon_interval_kg"], tonnes)
        share = f"{100 * kg / total:.1f} %"
        row(console, name, tonnes(kg), "; ".join(filter(None, (ends, share, about and f"the share {about}"))))
    row(console, "together", tonnes(result["carbon_footprint_kg"]), spread(result["carbon_footprint_interval_kg"], tonnes))
    heading(console, "water")
    litres = f"{result['wue_l_per_kwh']:.3g} L a kWh of IT energy"
    ends = spread(result["water_usage_interval_liters"], volume)
    row(console, "on the site", volume(result["water_usage_liters"]), f"{ends}; {litres}" if ends else litres)
    if result["off_site_water_liters"] is not None:
        row(console, "off the site", volume(result["off_site_water_liters"]), "of the power stations")
    else:
        row(console, "off the site", "unknown", "of the power stations; not in the rest")
    foot(console, document)


def _kw(value: float) -> str:
    return scaled(value, ((1e6, "MW"), (1e3, "kW"), (1.0, "W")))
