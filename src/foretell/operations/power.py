"""What accelerators and whole nodes draw at work, in watts: from measurements, not from the limit on the label.

Power is neither the TDP nor proportional to the arithmetic that is done: eight H100 in intensive training draw 76 % of their
node's rating on average and never more than 83 % (arXiv:2506.14551, arXiv:2412.08602), and an H100 that decodes draws 33 to 99 %
of its TDP with the batch (ML.ENERGY leaderboard). The shares stand in `catalog/data/operations/power.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from foretell.errors import InputError
from foretell.machine import Fleet, HardwareNode, Node, load_fleet, load_hardware
from foretell.operations._data import data, sources
from foretell.operations.ranges import Range, merged, total
from foretell.validation import choice

__all__ = ["REGIMES", "device_power", "host_power", "node_power"]

REGIMES: Final = ("training", "prefill", "decode", "idle")
"""What a node does: `decode` is the steady state of a server of language models, `idle` a job that is loaded and waits."""


def device_power(hardware: str | os.PathLike[str] | Mapping[str, Any] | HardwareNode, regime: str = "training") -> Range:
    """Return what one accelerator draws in a regime, watts: a measured share of its TDP.

    An H100 in training draws 0.87 of 700 W: 609 W.

    >>> device_power("h100", "training").point
    609.0
    >>> device_power("h100", "idle").high < device_power("h100", "decode").point
    True
    """
    card = load_hardware(hardware)
    row = _row(data("power")["device"][choice(regime, "regime", REGIMES)], card.id)
    notes = [row["note"]]
    if row.get("hardware") is None and regime != "training":
        notes.append(f"{card.name} itself was not measured in {regime}: the share is that of the cards named")
    if "tdp_w" in card.estimates:
        notes.append(f"tdp_w of {card.name} is an estimate")
    return _range(row, _tdp(card), notes)


def host_power(fleet_or_node: str | os.PathLike[str] | Fleet | Node, regime: str = "training") -> Range:
    """Return what a node draws beside its accelerators, watts: CPUs, memory, NICs, switches, fans, losses.

    With a rating: 0.626 of what the rating leaves beside the TDPs, (8,480 - 5,600)/(10,200 - 5,600) of the 8xH100 node that was
    measured; without one, a share of the TDPs. An idle host was never measured: the lowest share of loaded ones is its point.

    >>> round(host_power("dgx-h100").point)
    2880
    """
    node = _node(fleet_or_node)
    tdp = _tdp(node.accelerator) * node.accelerators_per_node
    known = data("power")["host"]
    idle = choice(regime, "regime", REGIMES) == "idle"
    rating = node.node_power_w
    row = known["of_tdp" if rating is None else "of_headroom"]
    watts, notes = tdp if rating is None else max(rating - tdp, 0.0), [row["note"]]
    if rating is not None and rating < tdp:
        notes.append(f"node_power_w of {rating:g} W is below the accelerators' TDPs of {tdp:g} W: taken as a cap")
    if idle:
        row = dict(row) | {"point": row["low"]}
        notes.append(known["idle_note"])
    return _range(row, watts, notes)


def node_power(fleet_or_node: str | os.PathLike[str] | Fleet | Node, regime: str = "training") -> Range:
    """Return what a whole node draws in a regime, host included, watts.

    Accelerators and host are added; where a node has a rating (`node_power_w`) it is the most that comes out. 8 x 609 W and
    2,880 W make 7,752 W for eight H100 in training, the 76 % of 10.2 kW that were measured.

    >>> watts = node_power("dgx-h100")
    >>> round(watts.point), round(watts.high)
    (7752, 8480)
    """
    node = _node(fleet_or_node)
    card, count = node.accelerator, node.accelerators_per_node
    choice(regime, "regime", REGIMES)
    for row in data("power")["measured"].get(regime, ()):
        if card.id in row["hardware"]:
            each = Range(row["low_w"], row["point_w"], row["high_w"], "W", (row["note"],), sources("power", row["sources"]))
            return each.scaled(count)
    made = total([device_power(card, regime).scaled(count), host_power(node, regime)], "W")
    if node.node_power_w is None:
        return made
    capped = {name: min(getattr(made, name), node.node_power_w) for name in ("low", "point", "high")}
    return replace(made, **capped)


def _node(given: str | os.PathLike[str] | Fleet | Node) -> Node:
    """Return the node of whatever names one."""
    if isinstance(given, Node):
        return given
    return load_fleet(given).node


def _tdp(card: HardwareNode) -> float:
    """Return an accelerator's TDP, or say how to give one."""
    if card.tdp_w is None:
        hint = (
            "Give node_power_w (--node-power), a whole node's at work, or tdp_w in a hardware file of your own (docs/extend.md)"
        )
        raise InputError(f"is not known for {card.name}", field="tdp_w", where=f"hardware {card.id or card.name}", hint=hint)
    return card.tdp_w


def _row(rows: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the first row that lists an accelerator, else the one for all others."""
    return next(row for row in rows if name in row.get("hardware", (name,)))


def _range(row: Mapping[str, Any], watts: float, notes: Iterable[str]) -> Range:
    """Return a row's shares of some watts."""
    known = sources("power", row["sources"])
    return Range(row["low"], row["point"], row["high"], "W", merged(notes), known).scaled(watts)
