"""What the verbs of operations share: machines and durations from their options, and the way an answer is given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._values import duration, whole
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, Node, load_fleet
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.units import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console
    from rich.text import Text

    from foretell.cli._options import Rows

__all__ = ["PUE", "Answer", "Machines", "days_of", "give", "hours_in_s", "machines", "measure", "pair", "seconds", "watts"]

PUE: Final = "energy of the building over that of its IT: a plain number"
_GPUS_PER_NODE: Final = 8
_DAYS: Final = 30.0
_MOST_DAYS: Final = 36500.0
_MOST_NODES: Final = 10**7
_PAIR: Final = re.compile(r"\s*(\d[\d.]*(?:e[+-]?\d+)?)\s*[-,]\s*(\d[\d.]*(?:e[+-]?\d+)?)\s*", re.IGNORECASE)
_UNIT: Final = "_(s|w|years|bytes_per_s|l_per_kwh|g_per_kwh|usd|usd_per_(year|kw_month|device_hour))$"
"""What an input's name says beyond its option's."""

Options = dict[str, Any]


@dataclass(frozen=True)
class Machines:
    """A fleet, what was assumed of it, and its part of the inputs."""

    fleet: Fleet
    assumed: tuple[str, ...]
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a verb says, as plain data, and whether it is a yes."""

    inputs: dict[str, Any]
    result: dict[str, Any]
    notes: tuple[str, ...]
    sources: tuple[str, ...]
    yes: bool = True


def give(
    command: str,
    options: Options,
    table: dict[str, Rows],
    ask: Callable[[Options], Answer],
    screen: Callable[[], tuple[Callable[[Mapping[str, Any]], Text], Callable[[Mapping[str, Any], Console], None]]],
) -> int:
    """Print the answer to the options as asked for, with those that change nothing named, and return the exit code.

    `screen` imports and returns what prints one line and what prints the whole.
    """
    from foretell.cli._effects import idle_options  # noqa: PLC0415  # the rooms below
    from foretell.cli._print import console, print_json, shown  # noqa: PLC0415
    from foretell.report.envelope import envelope  # noqa: PLC0415

    made = ask(options)
    notes = list(made.notes)
    idle = [] if options["quiet"] else idle_options(options, table, lambda tried: _compared(ask(tried)))
    if idle:
        notes.insert(0, f"given, and without effect on this answer: {', '.join(idle)}")
    document = envelope(command, made.inputs, made.result, notes=notes, sources=made.sources)
    if options["json"]:
        print_json(document)
    else:
        headline, show = screen()
        if options["quiet"]:
            console().print(headline(shown(document)), soft_wrap=True)
        else:
            show(shown(document), console())
    return 0 if made.yes else 1


def _compared(made: Answer) -> tuple[dict[str, Any], tuple[Callable[[], Any], ...]]:
    """Return inputs and what of the answer is compared: not the words about what was assumed."""
    inputs = {re.sub(_UNIT, "", name): value for name, value in made.inputs.items()}
    return inputs, (lambda: {name: value for name, value in made.result.items() if name != "assumed"},)


# -- machines and times ------------------------------------------------------------------------------------------


def machines(options: Options) -> Machines:
    """Return the fleet that was named: nodes of a system, or nodes put together from an accelerator."""
    nodes = whole(options["nodes"], "nodes", maximum=_MOST_NODES)
    gpus = whole(options["gpus"], "gpus", maximum=_MOST_NODES)
    per_node = whole(options["gpus_per_node"], "gpus_per_node", maximum=10**4)
    if options["system"] is not None:
        fleet, assumed = _of_system(options, nodes, gpus, per_node)
    elif options["gpu"] is not None:
        fleet, assumed = _of_gpus(load_hardware(options["gpu"]), nodes, gpus, per_node)
    else:
        hint = "For instance: --system dgx-h100 --nodes 4, or --gpu h100 --gpus 32"
        raise InputError("is missing: say which machines", field="system", hint=hint)
    inputs = {
        "system": fleet.id or None,
        "nodes": fleet.nodes,
        "gpu": fleet.accelerator.id or fleet.accelerator.name,
        "gpus": fleet.total_accelerators,
        "gpus_per_node": fleet.node.accelerators_per_node,
    }
    return Machines(fleet, tuple(assumed), inputs)


def _of_system(options: Options, nodes: int | None, gpus: int | None, per_node: int | None) -> tuple[Fleet, list[str]]:
    fleet = load_fleet(options["system"])
    held, each = fleet.accelerator, fleet.node.accelerators_per_node
    gpu = options["gpu"]
    if gpu is not None and load_hardware(gpu).id != held.id:
        raise InputError(f"is not the accelerator of {fleet.name}, which holds {held.id}", field="gpu", value=gpu)
    if per_node is not None and per_node != each:
        problem = f"is not what a node of {fleet.name} holds: {each}"
        raise InputError(problem, field="gpus_per_node", value=per_node, hint="Leave it out, or use --gpu in place of --system")
    count = _nodes(nodes, gpus, each)
    assumed = [f"{fleet.nodes} node{'s' if fleet.nodes > 1 else ''} of {fleet.name}"] if count is None else []
    return load_fleet(fleet, count), assumed


def _of_gpus(hardware: HardwareNode, nodes: int | None, gpus: int | None, per_node: int | None) -> tuple[Fleet, list[str]]:
    assumed = []
    each = per_node or _GPUS_PER_NODE
    if per_node is None:
        if gpus is not None and nodes is None and gpus < each:
            each = gpus
        elif gpus is not None and nodes is not None and gpus % nodes == 0:
            each = gpus // nodes
        assumed.append(f"nodes of {each} accelerator{'s' if each > 1 else ''}")
    count = _nodes(nodes, gpus, each)
    if count is None:
        count = 1
        assumed.append("1 node")
    name = f"{count * each} x {hardware.id or hardware.name}"
    return Fleet(name, Node(hardware, each), nodes=count), assumed


def _nodes(nodes: int | None, gpus: int | None, each: int) -> int | None:
    """Return the number of nodes, from either count."""
    if gpus is None:
        return nodes
    if nodes is not None and nodes * each != gpus:
        problem = f"is not {nodes} nodes x {each}"
        raise InputError(problem, field="gpus", value=gpus, allowed=f"{nodes * each}", hint="Leave out --gpus or --nodes")
    if gpus % each:
        problem = f"is no multiple of the {each} accelerators of a node"
        allowed = f"{each}, {2 * each}, {3 * each} ..."
        raise InputError(problem, field="gpus", value=gpus, allowed=allowed, hint="Or give --gpus-per-node")
    return gpus // each


def days_of(options: Options) -> tuple[float, tuple[str, ...]]:
    """Return days of wall time, and what was assumed."""
    if options["days"] is not None and options["hours"] is not None:
        raise InputError("is the same as --days", field="hours", value=options["hours"], hint="Leave out one of the two")
    hours = measure(options["hours"], "hours", "a number of hours", most=24 * _MOST_DAYS)
    days = measure(options["days"], "days", "a number of days", most=_MOST_DAYS) if hours is None else hours / 24
    return (_DAYS, (f"{_DAYS:g} days",)) if days is None else (days, ())


# -- values ------------------------------------------------------------------------------------------------------


def measure(text: str | None, field: str, what: str, *, least: float | None = None, most: float = 1e12) -> float | None:
    """Return a plain number from `least` (None: above zero) to `most`, or None where nothing was given.

    >>> measure("1.2", "pue", "a plain number", least=1.0, most=10.0)
    1.2
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if (value > 0 if least is None else value >= least) and value <= most:
        return value
    allowed = f"{what}, {'above 0' if least is None else f'{least:g}'} to {most:g}"
    problem = "is not in range" if math.isfinite(value) else "is not a plain number"
    raise InputError(problem, field=field, value=text, allowed=allowed)


def seconds(text: str | None, field: str, *, zero: bool = False) -> float | None:
    """Return seconds from "60s", "5 min" or 60, or None where nothing was given."""
    value = duration(text, field)
    if value is not None and (value > 1e9 or (value < 1e-6 and not (zero and value == 0.0))):
        allowed = f"a time {'of 0 or more' if zero else 'above 0'} and at most 30 years, as 60s or 5min"
        raise InputError("is not in range", field=field, value=text, allowed=allowed)
    return value


def hours_in_s(text: str | None, field: str) -> float | None:
    """Return seconds from text with a unit, or from a bare number of hours; None where nothing was given.

    >>> hours_in_s("2", "interval"), hours_in_s("30min", "interval")
    (7200.0, 1800.0)
    """
    if text is None:
        return None
    bare = re.fullmatch(r"\s*[+-]?[\d.]+(?:e[+-]?\d+)?\s*", text, re.IGNORECASE) if len(text) < 40 else None
    if bare is None:
        return seconds(text, field)
    return 3600.0 * (measure(text.strip(), field, "hours, or a time as 30min or 2d", most=2.5e5) or 0.0)


def watts(text: str | None, field: str) -> float | None:
    """Return watts from "8kW" or 8000, or None where nothing was given."""
    if text is None:
        return None
    value = parse(text, "W", field)
    if not 1e-3 <= value <= 1e9:
        raise InputError("is not in range", field=field, value=text, allowed="a power above 0, as 8kW or 8000")
    return value


def pair(text: str | None, field: str, what: str, *, most: float) -> float | tuple[float, float] | None:
    """Return one number, or the two of LOW-HIGH (also LOW,HIGH), or None where nothing was given.

    >>> pair("2.3-6.5", "failure_rate", "failures", most=1e7), pair("4", "failure_rate", "failures", most=1e7)
    ((2.3, 6.5), 4.0)
    """
    found = _PAIR.fullmatch(text) if text is not None and len(text) < 80 else None
    if found is None or text is None:
        return measure(text, field, f"{what}, or LOW-HIGH", most=most)
    low, high = (measure(part, field, f"{what}, or LOW-HIGH", most=most) or 0.0 for part in found.groups())
    if low > high:
        raise InputError("has its ends in the wrong order", field=field, value=text, allowed="LOW-HIGH, as 2.3-6.5")
    return low, high
