"""Emissions of making the hardware, kg CO2e: a range over the accounts that were published, with their boundaries.

Accounts of one accelerator differ several times over (an H100: 164 to 575 kg), and those that count the die alone are 40 times
lower still: these are left out, with the reason in the notes. The accounts stand in `catalog/data/operations/embodied.json`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from foretell.machine import Fleet, HardwareNode, Node, load_fleet, load_hardware
from foretell.operations._data import data, sources
from foretell.operations.ranges import Range, merged, total
from foretell.validation import positive_int

__all__ = ["embodied_device", "embodied_host", "embodied_node"]


def embodied_device(hardware: str | os.PathLike[str] | Mapping[str, Any] | HardwareNode) -> Range:
    """Return the emissions of making one accelerator, kg CO2e.

    One that no account covers has the range of all that one does, with a note: never 0.

    >>> h100 = embodied_device("h100")
    >>> h100.low, h100.point, h100.high
    (164.0, 273.0, 575.1)
    """
    card = load_hardware(hardware)
    for row in data("embodied")["devices"]:
        if card.id and card.id in row["hardware"]:
            made = _range(row, row["name"])
            return made if row["hardware"][0] == card.id else made.noted(f"accounts of {row['name']} taken for {card.name}")
    return _unknown(card)


def embodied_host(accelerators: int = 8) -> Range:
    """Return the emissions of making a server without its accelerators, kg CO2e.

    Known for servers of eight. For another number the point goes with it; the ends do where that makes the range wider, since
    a host has parts that do not go with it.

    >>> embodied_host(8).point, embodied_host(4).low, embodied_host(4).point, embodied_host(4).high
    (5700.0, 1250.0, 2850.0, 5700.0)
    """
    accelerators = positive_int(accelerators, "accelerators")
    row = data("embodied")["host"]
    made = _range(row, "host")
    share = accelerators / row["accelerators"]
    if share == 1.0:
        return made
    note = f"a server of {row['accelerators']} accelerators scaled to {accelerators}"
    low, high = made.low * min(share, 1.0), made.high * max(share, 1.0)
    return Range(low, made.point * share, high, made.unit, (*made.notes, note), made.sources)


def embodied_node(node: str | os.PathLike[str] | Fleet | Node) -> Range:
    """Return the emissions of making a node, accelerators and host, kg CO2e.

    Eight H100 at 273 kg and a host of 5,700 kg make 7,884 kg: the host is most of it.

    >>> embodied_node("dgx-h100").point
    7884.0
    """
    one = node if isinstance(node, Node) else load_fleet(node).node
    count = one.accelerators_per_node
    return total([embodied_device(one.accelerator).scaled(count), embodied_host(count)], "kg")


def _range(row: Mapping[str, Any], name: str) -> Range:
    """Return the range of the accounts that count, around the row's point."""
    counted = [account for account in row["accounts"] if "excluded" not in account]
    kg = [account["kg"] for account in counted]
    notes = [f"{name}: {account['kg']:g} kg, {_told(account)}" for account in row["accounts"]]
    known = sources("embodied", merged(account["source"] for account in row["accounts"]))
    return Range(min(kg), row["point_kg"], max(kg), "kg", tuple(notes), known)


def _told(account: Mapping[str, Any]) -> str:
    """Return an account's boundary, year and remark as text."""
    text = f"boundary {account['boundary']}, {account['year']}"
    if "excluded" in account:
        return f"{text}, left out: {account['excluded']}"
    return f"{text}, {account['note']}" if "note" in account else text


def _unknown(card: HardwareNode) -> Range:
    """Return the range over all accelerators that have one; its point is the geometric mean of theirs."""
    rows = [row for row in data("embodied")["devices"] if row["hardware"]]
    known = [_range(row, row["name"]) for row in rows]
    point = math.exp(math.fsum(math.log(one.point) for one in known) / len(known))
    names = ", ".join(row["name"] for row in rows)
    notes = [f"no account of {card.name} was found: the range is that of the data-centre GPUs with one ({names})"]
    if card.kind not in (None, "gpu"):
        notes.append(f"{card.name} is no GPU (kind {card.kind}): it may lie outside")
    low, high = min(one.low for one in known), max(one.high for one in known)
    return Range(low, point, high, "kg", tuple(notes), merged(*(one.sources for one in known)))
