"""Questions about money, energy, carbon and water -> the library's own formulas, in dollars, kWh, kg and litres."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foretell.evidence.operations_given import Given
from foretell.evidence.operations_jobs import DAY_S, HOUR_S, YEAR_D
from foretell.evidence.row_run import Skip
from foretell.operations import emissions, money

__all__ = ["ANSWERS"]


# -- sustainability -----------------------------------------------------------------------------------------------------------


def _pue(given: Given) -> float:
    return given.number("pue", "pue_multiplier", default=1.0)


def _device_hours(given: Given) -> float:
    """Return device-hours, stated or from devices and days."""
    if given.matching("device_hours"):
        return given.count("device_hours")
    devices = given.number("accelerators", "gpus", "devices")
    return devices * given.time("training", "duration", "observation") / HOUR_S


def _run_kwh(given: Given) -> float:
    """Return facility energy of devices for a time."""
    watts = given.power("device_power", "power", "mean_gpu_power")
    return float(emissions.facility_kwh(emissions.it_kwh(watts, _device_hours(given)), _pue(given)))


def _energy(given: Given) -> float:
    """Return the facility's energy of whatever energy is stated: what is said to be IT's is multiplied by the PUE."""
    if given.matching("facility_energy"):
        return given.energy("facility_energy")
    if given.matching("it_energy"):
        return float(emissions.facility_kwh(given.energy("it_energy"), _pue(given)))
    if given.matching("energy"):
        return float(emissions.facility_kwh(given.energy("energy", "total_energy"), _pue(given)))
    return _run_kwh(given)


def _grid(given: Given) -> float:
    return given.intensity("grid", "carbon_intensity", "grid_intensity")


def _carbon(given: Given) -> float:
    return float(emissions.grid_kg(_energy(given), _grid(given)))


def _chip_hours(given: Given) -> float:
    phases = given.numbers("phases_devices_hours")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in phases):
        raise Skip("underspecified: phases_devices_hours is no list of pairs")
    return float(sum(devices * hours for devices, hours in phases))


def _embodied(given: Given) -> float:
    used = given.number("utilisation_fraction", default=1.0)
    return float(emissions.embodied_rate(given.mass("embodied"), given.time("life") / (YEAR_D * DAY_S), used))


def _per_token(given: Given) -> float:
    """Return joules a token of devices at a mean power."""
    watts = given.number("gpus", "accelerators", default=1.0) * given.power("mean_gpu_power", "device_power", "power")
    return watts / given.number("output_tokens_per_s", "tokens_per_s")


def _per_request(given: Given) -> float:
    """Return kWh a request: of its tokens, of devices that answer so many a second, of all requests, or of its parts."""
    if given.matching("tokens_per_request") or given.has("output_tokens"):
        joules = given.number("energy_j_per_token") if given.has("energy_j_per_token") else _per_token(given)
        return joules * given.number("tokens_per_request", "output_tokens_per_request", "output_tokens") / 3.6e6 * _pue(given)
    if given.has("requests_per_s"):
        watts = given.number("gpus", "accelerators", "nodes", default=1.0) * given.power(
            "mean_gpu_power", "device_power", "power"
        )
        return watts * _pue(given) / given.number("requests_per_s") / 3.6e6
    if given.matching("requests") or given.matching("prompts") or given.matching("queries"):
        return _energy(given) / given.count("requests", "prompts", "queries")
    parts = given.energies()
    if not parts:
        raise Skip("underspecified: the question gives no energy")
    return sum(parts) * _pue(given)


def _mean_power(given: Given) -> float:
    """Return watts of a device: from joules a token at so many tokens a second, or an energy and device-hours (or a time)."""
    if given.has("energy_j_per_token"):
        watts = given.number("energy_j_per_token") * given.number("output_tokens_per_s", "tokens_per_s")
        return watts / given.number("gpus", "accelerators", default=1.0)
    hours = (
        _device_hours(given)
        if given.matching("device") or given.matching("accelerators")
        else given.time("observation", "duration") / HOUR_S
    )
    return given.energy("energy", "it_energy", "facility_energy") * 1000.0 / hours


def _prompt_water(given: Given) -> float:
    """Return litres on the site for a prompt's energy: IT energy is the facility's over its PUE, where that is stated."""
    energy = given.energy("it_energy", default=-1.0)
    if energy < 0:
        energy = given.energy("prompt_energy", "facility_energy", "energy") / _pue(given)
    return float(emissions.on_site_litres(energy, given.number("wue_l_per_kwh")))


def _on_site(given: Given) -> float:
    return float(emissions.on_site_litres(given.energy("it_energy", "energy"), given.number("wue_l_per_kwh")))


def _off_site(given: Given) -> float:
    return float(emissions.off_site_litres(_energy(given), given.number("ewif_l_per_kwh", "off_site_water_l_per_kwh")))


def _grid_implied(given: Given) -> float:
    return 1000.0 * given.mass("emissions", "carbon") / _energy(given)


def _water_implied(given: Given) -> float:
    return given.volume("water", "water_on_site", "water_off_site") / _energy(given)


def _emissions_a_day(given: Given) -> float:
    days = given.time("duration", "observation", "training", default=0.0) / DAY_S
    if days and given.matching("emissions"):
        return given.mass("emissions") / days
    watts = given.power("power", "device_power", "mean_power") * given.number("gpus", "accelerators", "nodes", default=1.0)
    facility = emissions.facility_kwh(emissions.it_kwh(watts, 24.0), _pue(given))
    return float(emissions.grid_kg(facility, _grid(given)))


# -- money --------------------------------------------------------------------------------------------------------------------


def _yearly(given: Given) -> tuple[float, float]:
    """Return capital and maintenance a year."""
    price = given.number("price_usd")
    years = given.time("life") / (YEAR_D * DAY_S)
    capital = money.yearly_capital(
        price, given.number("residual_usd", default=0.0), given.number("discount_fraction_per_year"), years
    )
    return float(capital), price * given.number("maintenance_fraction_per_year", default=0.0)


def _running(given: Given) -> tuple[float, float, float]:
    """Return kW, PUE and the tariff."""
    return given.power("power") / 1000.0, _pue(given), given.number("electricity_usd_per_kwh")


def _owned(given: Given) -> float:
    used = given.number("utilisation_fraction", default=1.0)
    return float(money.owned_per_hour(*_yearly(given), *_running(given), used))


def _break_even(given: Given) -> float:
    rent = given.number("rent_usd_per_gpu_hour", "price_usd_per_gpu_hour")
    return float(money.break_even_utilisation(*_yearly(given), *_running(given), rent))


def _rent(given: Given) -> float:
    return given.number("gpu_hours") * given.number("price_usd_per_gpu_hour", "rent_usd_per_gpu_hour")


def _devices(given: Given) -> float:
    """Return GPUs, stated or of nodes."""
    if given.has("gpus"):
        return given.number("gpus")
    return given.number("nodes", "mean_nodes") * given.number("gpus_per_node")


def _daily_cost(given: Given) -> float:
    return _devices(given) * 24.0 * given.number("price_usd_per_gpu_hour", "rent_usd_per_gpu_hour")


def _hours_of_tokens(given: Given) -> float:
    return given.count("tokens") / 1e12 * given.number("gpu_hours_per_trillion_tokens")


def _hours_summed(given: Given) -> float:
    names = given.matching("gpu_hours")
    if not names:
        raise Skip("underspecified: the question gives no GPU-hours")
    return sum(given.number(name) for name in names)


def _fleet_nodes(given: Given) -> float:
    """Return nodes that tokens of a day take: of each kind of tokens its count over what a node gives in a day."""
    total = 0.0
    for kind in ("input", "output", "prefill", "decode", "prompt"):
        counts = [name for name in given.matching(kind, "token") if "per_s" not in name and "per_node" not in name]
        speeds = [name for name in given.matching(kind, "token") if name not in counts]
        if counts and speeds:
            total += _scaled(given, counts[0]) / DAY_S / given.number(speeds[0])
    if not total:
        raise Skip("underspecified: the question gives no tokens with their rate per node")
    return total


def _revenue(given: Given) -> float:
    """Return dollars of tokens of several kinds at a price a million of each."""
    total = 0.0
    prices = given.matching("usd")
    for name in prices:
        stem = name.replace("price_", "").replace("_price", "").split("_usd")[0]
        counts = [other for other in given.matching(stem) if other != name and "usd" not in other]
        if len(counts) != 1:
            raise Skip(f"underspecified: no tokens belong to {name}")
        total += _scaled(given, counts[0]) / 1e6 * given.number(name)
    if not total:
        raise Skip("underspecified: the question gives no tokens with their price")
    return total


def _scaled(given: Given, name: str) -> float:
    """Return a count whose name may end in billions."""
    scale = {"thousands": 1e3, "millions": 1e6, "billions": 1e9, "trillions": 1e12}
    return given.number(name) * next((factor for word, factor in scale.items() if word in name), 1.0)


def _two(given: Given, words: tuple[str, ...]) -> float:
    names = [name for word in words for name in given.matching(word)]
    if not names:
        raise Skip(f"underspecified: the question does not give {' or '.join(words)}")
    return given.number(names[0])


def _markup(given: Given) -> float:
    return _two(given, ("revenue", "income")) / _two(given, ("cost", "expense")) - 1.0


def _margin(given: Given) -> float:
    return 1.0 - _two(given, ("cost", "expense")) / _two(given, ("revenue", "income"))


ANSWERS: Final[Mapping[str, Callable[[Given], Any]]] = {
    "economics.gpu_hours": _hours_of_tokens,
    "economics.gpu_hours_sum": _hours_summed,
    "economics.rental_cost": _rent,
    "economics.wall_time": lambda g: g.number("gpu_hours") / g.number("gpus") * HOUR_S,
    "economics.fleet_daily_cost": _daily_cost,
    "economics.fleet_nodes": _fleet_nodes,
    "economics.daily_revenue": _revenue,
    "economics.markup": _markup,
    "economics.margin": _margin,
    "economics.cost_per_million_tokens": lambda g: money.per_million(
        g.number("price_usd_per_gpu_hour"), g.number("gpus", default=1.0), g.number("output_tokens_per_s", "tokens_per_s")
    ),
    "economics.electricity_per_million_tokens": lambda g: money.electricity_per_million(
        g.number("energy_j_per_token"), _pue(g), g.number("electricity_usd_per_kwh")
    ),
    "economics.capital_recovery_factor": lambda g: money.capital_recovery(
        g.number("discount_fraction_per_year"), g.time("life") / (YEAR_D * DAY_S)
    ),
    "economics.net_present_value": lambda g: money.net_present_value(
        g.number("discount_fraction_per_year"), [float(flow) for flow in g.numbers("cash_flows_usd")]
    ),
    "economics.owned_cost_per_gpu_hour": _owned,
    "economics.break_even_utilisation": _break_even,
    "sustainability.training_carbon": _carbon,
    "sustainability.training_energy": _run_kwh,
    "sustainability.run_energy": _run_kwh,
    "sustainability.carbon_from_facility_energy": _carbon,
    "sustainability.carbon_from_it_energy": _carbon,
    "sustainability.device_hours": _chip_hours,
    "sustainability.sum_emissions": lambda g: 1000.0 * sum(float(part) for part in g.numbers("parts_t")),
    "sustainability.implied_grid_intensity": _grid_implied,
    "sustainability.implied_water_intensity": _water_implied,
    "sustainability.energy_per_request": _per_request,
    "sustainability.mean_power": _mean_power,
    "sustainability.emissions_per_day": _emissions_a_day,
    "sustainability.prompt_energy": _per_request,
    "sustainability.prompt_water": _prompt_water,
    "sustainability.water_on_site": _on_site,
    "sustainability.water_off_site": _off_site,
    "sustainability.embodied_share": _embodied,
    "sustainability.energy_per_token": _per_token,
}
