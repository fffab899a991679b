"""`foretell carbon`: energy, carbon and water of machines at work, and their share of what making them emitted."""

from __future__ import annotations

from typing import Any

import click

from foretell.cli._app import Verb
from foretell.cli._operations_options import CARBON
from foretell.cli._options import OUTPUT, add

__all__ = ["command"]


def _carbon(**options: Any) -> int:  # text or flags
    """Say what energy, carbon and water these machines take for a time, and their share of what making them emitted.

    Power is that of whole nodes as measured, not the label's limit. Carbon is CO2-equivalent.
    """
    from foretell.cli._operations import give  # noqa: PLC0415  # the rooms below

    def screen() -> Any:
        from foretell.report.operations_fleet_screen import carbon_line, show_carbon  # noqa: PLC0415

        return carbon_line, show_carbon

    return give("carbon", options, CARBON, _answer, screen)


def _answer(options: dict[str, Any]) -> Any:
    """Return the answer to the options."""
    from foretell.cli._operations import PUE, Answer, days_of, machines, measure, watts  # noqa: PLC0415
    from foretell.cli._values import one_of, share  # noqa: PLC0415
    from foretell.core.solver import SustainabilityModel  # noqa: PLC0415
    from foretell.machine.datacenter import BOUNDARIES  # noqa: PLC0415
    from foretell.operations.power import REGIMES  # noqa: PLC0415
    from foretell.report.operations import carbon_of  # noqa: PLC0415

    found = machines(options)
    days, assumed = days_of(options)
    used = share(options["utilisation"], "utilisation")
    grams = "grams of CO2-equivalent a kWh: a plain number"
    power = watts(options["node_power"], "node_power")
    life = measure(options["life"], "life", "a number of years", least=0.1, most=100.0)
    result = SustainabilityModel().solve(
        found.fleet,
        days,
        options["region"],
        regime=one_of(options["regime"], "regime", REGIMES) or "training",
        utilisation=1.0 if used is None else used,
        boundary=one_of(options["boundary"], "boundary", tuple(BOUNDARIES)),
        operator=options["operator"],
        pue=measure(options["pue"], "pue", PUE, least=1.0, most=10.0),
        wue=measure(options["wue"], "wue", "litres a kWh of IT energy: a plain number", least=0.0, most=1e3),
        carbon_intensity=measure(options["carbon_intensity"], "carbon_intensity", grams, least=0.0, most=1e5),
        node_power_w=power,
        life_years=life,
    )
    inputs = found.inputs | {
        "days": days,
        "hours": 24 * days,
        "utilisation": 1.0 if used is None else used,
        "regime": result.regime,
        "node_power_w": result.node_power_w,
        "life_years": life,
        "region": options["region"],
        "boundary": result.boundary,
        "carbon_intensity_g_per_kwh": result.carbon_intensity_g_per_kwh,
        "operator": options["operator"],
        "pue": result.pue,
        "wue_l_per_kwh": result.wue_l_per_kwh,
    }
    made = carbon_of(result, found.fleet, inputs, (*found.assumed, *assumed, *result.assumed))
    return Answer(inputs, made, tuple(result.notes), result.sources)


command = Verb(
    "carbon",
    callback=_carbon,
    help=_carbon.__doc__,
    params=list[click.Parameter](),
    examples=(
        "foretell carbon --system dgx-h100 --nodes 8 --region us-iowa",
        "foretell carbon --gpu a100 --gpus 384 --region france --boundary lifecycle",
        "foretell carbon --system dgx-h100 --region us-central1 --operator google",
        "foretell carbon --gpu h100 --hours 48 --regime decode --utilisation 40%",
        "foretell carbon --gpu h100 --carbon-intensity 400 --pue 1.1 --wue 0.2 --json",
    ),
)
for _heading, _table in CARBON.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
