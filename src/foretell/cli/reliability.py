"""`foretell reliability`: how often a job is interrupted, how often to save it, how much of the time trains."""

from __future__ import annotations

from typing import Any

import click

from foretell.cli._app import Verb
from foretell.cli._operations_options import RELIABILITY
from foretell.cli._options import OUTPUT, add
from foretell.errors import InputError

__all__ = ["command"]


def _reliability(**options: Any) -> int:  # text or flags
    """Say how often a job on these machines fails, how often to save it, and what share of the time trains.

    Without a rate of your own the machines fail as public fleets did, whose range comes with every number.
    """
    from foretell.cli._operations import give  # noqa: PLC0415  # the rooms below

    def screen() -> Any:
        from foretell.report.operations_jobs_screen import reliability_line, show_reliability  # noqa: PLC0415

        return reliability_line, show_reliability

    return give("reliability", options, RELIABILITY, _answer, screen)


def _answer(options: dict[str, Any]) -> Any:
    """Return the answer to the options."""
    from foretell.cli._operations import Answer, days_of, hours_in_s, machines, measure, pair, seconds  # noqa: PLC0415
    from foretell.cli._values import whole  # noqa: PLC0415
    from foretell.core.failing import MOST_RATE  # noqa: PLC0415
    from foretell.core.solver import ReliabilityModel  # noqa: PLC0415
    from foretell.report.operations import reliability_of  # noqa: PLC0415

    found = machines(options)
    days, assumed = days_of(options)
    mtbf = hours_in_s(options["mtbf"], "mtbf")
    repair = hours_in_s(options["repair_time"], "repair_time")
    spares = whole(options["spares"], "spares", minimum=0, maximum=10**7)
    if spares and repair is None:
        problem = "need the time until a failed node is back"
        raise InputError(problem, field="spares", value=spares, hint="Add --repair-time 24h")
    given: dict[str, Any] = {
        "checkpoint_time_s": seconds(options["checkpoint_time"], "checkpoint_time") or 60.0,
        "recovery_time_s": seconds(options["recovery_time"], "recovery_time", zero=True),
        "failure_rate": pair(options["failure_rate"], "failure_rate", "failures per 1,000 node-days", most=MOST_RATE),
        "mtbf_hours": None if mtbf is None else mtbf / 3600,
        "record": options["record"],
        "causes": _causes(options["causes"]),
        "checkpoint_interval_s": hours_in_s(options["interval"], "interval"),
        "durability_lag_s": seconds(options["lag"], "lag", zero=True) or 0.0,
        "weibull_shape": measure(options["weibull_shape"], "weibull_shape", "a shape", least=0.05, most=20.0) or 1.0,
        "spares": spares or 0,
        "repair_hours": None if repair is None else repair / 3600,
    }
    result = ReliabilityModel().solve(found.fleet, 24 * days, **given)
    if options["checkpoint_time"] is None:
        assumed = (*assumed, "60 s for a checkpoint")
    inputs = found.inputs | {
        "days": days,
        "hours": 24 * days,
        "checkpoint_time_s": given["checkpoint_time_s"],
        "interval_s": result.checkpoint_interval_s,
        "lag_s": given["durability_lag_s"],
        "recovery_time_s": result.recovery_time_s,
        "failure_rate": None if mtbf is not None else list(result.failures_per_1000_node_days_interval),
        "mtbf_s": mtbf,
        "record": given["record"],
        "causes": given["causes"],
        "weibull_shape": given["weibull_shape"],
        "spares": given["spares"],
        "repair_time_s": repair,
    }
    made = reliability_of(result, found.fleet, inputs, (*found.assumed, *assumed, *result.assumed))
    return Answer(inputs, made, tuple(result.notes), result.sources, yes=result.feasible)


def _causes(text: str | None) -> str | None:
    """Return a set of causes as the records name it; hyphens are read as spaces."""
    from foretell.operations.failure_rates import CAUSES  # noqa: PLC0415
    from foretell.validation import choice  # noqa: PLC0415

    if text is None:
        return None
    wanted = text.strip().casefold().replace("-", " ")
    return next((name for name in CAUSES if name.casefold() == wanted), None) or choice(text, "causes", CAUSES)


command = Verb(
    "reliability",
    callback=_reliability,
    help=_reliability.__doc__,
    params=list[click.Parameter](),
    examples=(
        "foretell reliability --system dgx-h100 --nodes 128",
        "foretell reliability --gpu h100 --gpus 16384 --days 54 --checkpoint-time 5s",
        "foretell reliability --gpu h100 --gpus 2048 --failure-rate 2.3-6.5",
        "foretell reliability --system dgx-h100 --nodes 64 --spares 2 --repair-time 24h",
        "foretell reliability --gpu h100 --gpus 1024 --mtbf 12h --interval 1h --json",
    ),
)
for _heading, _table in RELIABILITY.items():
    add(command, _table, _heading)
add(command, OUTPUT, "Output")
