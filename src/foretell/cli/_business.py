"""From the options of `train --tokens` to how the run is operated, and on which nodes."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from foretell.cli._operations import hours_in_s
from foretell.cli._values import duration, listed, one_of, real, whole
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, Node
from foretell.operations.price_list import OFFER_KINDS
from foretell.operations.saving import MODES
from foretell.plan.business import Business
from foretell.units import parse

if TYPE_CHECKING:
    from foretell.cli._request import Request
    from foretell.plan.pace import Pace

__all__ = ["business_inputs", "business_of", "fleet_of"]


def business_of(options: dict[str, Any]) -> Business:
    """Return how the run is operated; InputError names the option that cannot be used."""
    if options["own"]:
        for name in ("price", "provider", "price_kind"):
            if options[name] is not None:
                raise InputError("is of renting", field=name, value=options[name], hint="Leave out --own, or give --node-price")
    elif options["node_price"] is not None:
        raise InputError("is of owning", field="node_price", value=options["node_price"], hint="Add --own")
    rates = tuple(real(part, "failure_rate", minimum=1e-9) for part in listed(options["failure_rate"], "failure_rate"))
    if str(options["storage_bandwidth"] or "x").strip()[-1].isdecimal():
        problem, allowed = "lacks a unit", "a data rate, as 200GB/s"
        raise InputError(problem, field="storage_bandwidth", value=options["storage_bandwidth"], allowed=allowed)
    storage, power = options["storage_bandwidth"], options["node_power"]
    return Business(
        failure_rate=None if not rates else rates[0] if len(rates) == 1 else rates,
        record=options["record"],
        recovery_time_s=duration(options["recovery_time"], "recovery_time"),
        checkpoint_interval_s=hours_in_s(options["checkpoint_interval"], "checkpoint_interval"),
        checkpoint_mode=one_of(options["checkpoint_mode"], "checkpoint_mode", MODES) or "sync",
        storage_bytes_per_s=None if storage is None else parse(storage, "byte/s", "storage_bandwidth"),
        region=options["region"],
        operator=None if options["operator"] is None else options["operator"].strip().casefold(),
        boundary=one_of(options["boundary"], "boundary", ("operational", "lifecycle", "market")),
        pue=real(options["pue"], "pue", minimum=1.0, maximum=10.0),
        carbon_intensity=real(options["carbon_intensity"], "carbon_intensity", maximum=1e5),
        node_power_w=None if power is None else parse(power, "W", "node_power"),
        mode="own" if options["own"] else "rent",
        price_usd_per_device_hour=real(options["price"], "price", minimum=1e-9, maximum=1e6),
        provider=options["provider"],
        price_kind=one_of(options["price_kind"], "price_kind", OFFER_KINDS) or "on-demand",
        node_price_usd=real(options["node_price"], "node_price", minimum=1e-6, maximum=1e12),
        samples=whole(options["samples"], "samples", minimum=100, maximum=1_000_000) or 10_000,
        seed=whole(options["seed"], "seed", minimum=0) or 0,
    )


def business_inputs(made: Business) -> dict[str, Any]:
    """Return every value of how the run is operated, defaults included; None is left open, and comes as a range."""
    out = {field.name: getattr(made, field.name) for field in fields(made) if field.name != "today"}
    return out | {"failure_rate": list(out["failure_rate"]) if isinstance(out["failure_rate"], tuple) else out["failure_rate"]}


def fleet_of(made: Request, pace: Pace) -> Fleet:
    """Return the nodes that the run holds: whole ones, but for a job that is smaller than one."""
    gpus, each = pace.launch.gpus, int(pace.topology.gpus_per_node)
    if made.fleet is not None:
        return replace(made.fleet, nodes=math.ceil(gpus / made.fleet.node.accelerators_per_node))
    each = min(each, gpus)
    node = Node(pace.launch.hardware, accelerators_per_node=each)
    return Fleet(pace.launch.hardware.name, node, nodes=math.ceil(gpus / each))
