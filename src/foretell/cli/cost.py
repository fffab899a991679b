"""`foretell cost`: what machines cost to own and run, what renting them costs, from when on owning pays."""

from __future__ import annotations

from typing import Any

import click

from foretell.cli._app import Verb
from foretell.cli._operations_options import COST
from foretell.cli._options import OUTPUT, add
from foretell.errors import InputError

__all__ = ["command"]


def _cost(**options: Any) -> int:  # text or flags
    """Say what these machines cost for a time, owned or rented, and from which use on owning is cheaper.

    US dollars without tax. Prices are the catalog's, each with its date, or those that you give.
    """
    from foretell.cli._operations import give  # noqa: PLC0415  # the rooms below

    def screen() -> Any:
        from foretell.report.operations_fleet_screen import cost_line, show_cost  # noqa: PLC0415

        return cost_line, show_cost

    return give("cost", options, COST, _answer, screen)


def _answer(options: dict[str, Any]) -> Any:
    """Return the answer to the options."""
    from foretell.cli._operations import PUE, Answer, days_of, machines, measure, watts  # noqa: PLC0415
    from foretell.cli._values import amount, one_of, share  # noqa: PLC0415
    from foretell.core.pricing import KWH_PRICE  # noqa: PLC0415
    from foretell.core.solver import EconomicsModel  # noqa: PLC0415
    from foretell.operations.power import REGIMES  # noqa: PLC0415
    from foretell.operations.prices import OFFER_KINDS  # noqa: PLC0415
    from foretell.report.operations import cost_of  # noqa: PLC0415

    found = machines(options)
    days, assumed = days_of(options)
    used = share(options["utilisation"], "utilisation")
    if used is not None and used < 1e-6:
        raise InputError("leaves no useful hour", field="utilisation", value=options["utilisation"], allowed="above 0% to 100%")
    shares = {"discount": 0.08, "residual": 0.0, "maintenance": 0.05}
    shares |= {name: value for name in shares if (value := share(options[name], name)) is not None}
    tariff = measure(options["kwh_price"], "kwh_price", "USD a kWh: a number", least=0.0, most=1e3)
    mode = "rent" if options["own"] is False else "own"
    dollars = {name: measure(options[name], name, what) for name, what in _DOLLARS.items()}
    free = {name: measure(options[name], name, what, least=0.0) for name, what in _FREE.items()}
    given: dict[str, Any] = {
        "datacenter": options["region"],
        "provider": options["provider"],
        "price_kind": one_of(options["price_kind"], "price_kind", OFFER_KINDS) or "on-demand",
        "life_years": measure(options["life"], "life", "a number of years", least=0.1, most=100.0),
        "tokens_per_second": amount(options["tokens_per_second"], "tokens_per_second"),
        "regime": one_of(options["regime"], "regime", REGIMES) or "training",
        "pue": measure(options["pue"], "pue", PUE, least=1.0, most=10.0),
        "operator": options["operator"],
        "node_power_w": watts(options["node_power"], "node_power"),
    }
    result = EconomicsModel().solve(
        found.fleet,
        days,
        KWH_PRICE if tariff is None else tariff,
        mode=mode,
        node_price_usd=dollars["node_price"],
        network_usd_per_node=free["network_price"],
        price_usd_per_device_hour=dollars["price"],
        discount_rate=shares["discount"],
        residual_fraction=shares["residual"],
        maintenance_fraction=shares["maintenance"],
        utilisation=1.0 if used is None else used,
        staff_usd_per_year=free["staff"] or 0.0,
        colocation_usd_per_kw_month=free["colocation"] or 0.0,
        **given,
    )
    owned = mode == "own"
    inputs = found.inputs | {
        "days": days,
        "hours": 24 * days,
        "utilisation": 1.0 if used is None else used,
        "tokens_per_second": given["tokens_per_second"],
        "own": owned,
        "node_price_usd": dollars["node_price"],
        "network_price_usd": free["network_price"],
        "life_years": given["life_years"],
        **{name: value if owned else None for name, value in shares.items()},
        "staff_usd_per_year": (free["staff"] or 0.0) if owned else None,
        "colocation_usd_per_kw_month": (free["colocation"] or 0.0) if owned else None,
        "region": options["region"],
        "kwh_price_usd": result.kwh_price_usd,
        "pue": given["pue"],
        "operator": given["operator"],
        "regime": given["regime"] if owned else None,
        "node_power_w": given["node_power_w"],
        "price_usd_per_device_hour": result.price_usd_per_device_hour,
        "provider": given["provider"],
        "price_kind": given["price_kind"] if result.rent_usd is not None and dollars["price"] is None else None,
    }
    return Answer(
        inputs, cost_of(result, found.fleet, (*found.assumed, *assumed, *result.assumed)), tuple(result.notes), result.sources
    )


_DOLLARS = {"node_price": "USD of a whole node: a number", "price": "USD of one accelerator and hour: a number"}
"""Prices, which are above zero."""
_FREE = {
    "network_price": "USD of a node's network: a number",
    "staff": "USD a year: a number",
    "colocation": "USD a kW and month: a number",
}
"""... and those that may be zero."""

command = Verb(
    "cost",
    callback=_cost,
    help=_cost.__doc__,
    params=list[click.Parameter](),
    examples=(
        "foretell cost --system dgx-h100 --nodes 8",
        "foretell cost --gpu h100 --gpus 64 --days 90 --rent --provider aws",
        "foretell cost --system dgx-h100 --days 1095 --region us-iowa --utilisation 60%",
        "foretell cost --gpu t4 --gpus 4 --node-price 9000 --hours 100",
        "foretell cost --gpu h100 --rent --price 2.5 --tokens-per-second 12k --json",
    ),
)
for _heading, _table in COST.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
