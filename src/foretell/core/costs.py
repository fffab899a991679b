"""What machines cost: a node's price with its share of the network, and the rent of an accelerator; ranges with dates."""

from __future__ import annotations

import datetime as dt
import functools
from dataclasses import dataclass

from foretell.catalog import loader
from foretell.errors import CatalogError, InputError
from foretell.machine.fleet import Fleet, NetworkFabric, Node, load_fleet
from foretell.operations.price_list import first_day
from foretell.operations.prices import PriceAnswer, purchase, purchases, rent
from foretell.operations.ranges import Range
from foretell.validation import number

__all__ = ["HOST_SHARE", "node_price", "rent_price"]

HOST_SHARE = Range(
    1.07,
    1.3,
    1.55,
    "",
    ("server over its accelerators' price: 1.07 (A100) to 1.55 (B200) by the catalog's prices of both",),
)
_PORTS = 3
"""Switch ports of a NIC in a non-blocking network of two layers: its own at the leaf, one up, one at the spine."""
_LINKS = 2
"""... and cables with their optics."""
_PORT_BYTES_PER_S = 50e9
"""400 Gbit/s, which the catalog's port and optics are of; other rates are priced by their bandwidth."""


@dataclass(frozen=True)
class Bought:
    """A node's price."""

    server: Range
    network: Range
    """Switch ports and optics of its NICs, where there is more than one node."""
    date: str
    """Of the oldest price used; empty where all were given."""
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """What was priced, and when."""


def node_price(fleet: Fleet, given: object = None, *, network: object = None, today: dt.date) -> Bought:
    """Return what one node costs to buy, without tax: the price given, its server's, or its accelerators' with a host.

    Raises InputError that says how to give a price where none is known: a missing price is never 0.
    """
    remembered = not loader.has_own("price")
    prices: tuple[PriceAnswer, ...] = ()
    notes: tuple[str, ...] = ()
    if given is not None:
        usd = number(given, "node_price_usd", minimum=1e-6, maximum=1e12)
        server = Range.exact(usd, "USD")
    else:
        server, prices, notes = (_shipped_server if remembered else _server)(fleet.id, fleet.node, today)
    if network is not None:
        usd = number(network, "network_usd_per_node", maximum=1e12)
        wires = Range.exact(usd, "USD")
    else:
        wires, others, more = (_shipped_network if remembered else _network)(fleet.fabric, today, several=fleet.nodes > 1)
        prices, notes = prices + others, notes + more
    date = min((price.date for price in prices), key=first_day, default="")
    rows = (row for price in prices for row in price.purchases)
    told = dict.fromkeys(f"price to buy: {row.what} {row.item}, {row.usd:g} USD {row.unit}, {row.date}" for row in rows)
    return Bought(server, wires, date, tuple(dict.fromkeys(notes)), tuple(told))


_Priced = tuple[Range, tuple[PriceAnswer, ...], tuple[str, ...]]
"""A price, what it rests on, and notes."""


def _server(system: str, node: Node, today: dt.date) -> _Priced:
    """Return the price of a server: of this system, of one with the same accelerators, or put together from its parts."""
    count = node.accelerators_per_node
    found = purchase(system, "server", today=today) if _priced(system, "server") else None
    if found is not None:
        return _range(found), (found,), found.notes
    if _priced(system, "rack"):
        rack = purchase(system, "rack", today=today)
        if rack is not None:
            share = count / (node.domain_gpus or count)
            note = f"{share:.3g} of a rack of {node.domain_gpus} accelerators"
            return _range(rack).scaled(share), (rack,), (note, *rack.notes)
    for row in purchases(what="server"):
        if row.item != system and _same(row.item, node):
            alike = purchase(row.item, "server", today=today)
            if alike is not None:
                return _range(alike), (alike,), (f"price of {row.item}, a server with the same accelerators", *alike.notes)
    part = purchase(node.accelerator, "accelerator", today=today)
    if part is None:
        hint = "Give node_price_usd (--node-price), or ask what renting costs: mode='rent'"
        problem = f"to buy {node.accelerator.name} is not known"
        raise InputError(problem, field="price", hint=hint)
    whole = _range(part)
    low, point, high = (getattr(whole, end) * getattr(HOST_SHARE, end) * count for end in ("low", "point", "high"))
    notes = ("no server's price known: its accelerators' with a host", *HOST_SHARE.notes, *part.notes)
    return Range(low, point, high, "USD"), (part,), notes


def _priced(item: str, what: str) -> bool:
    """Whether the catalog has a price of something."""
    return bool(item) and any(row.item == item for row in purchases(what=what))


def _same(item: str, node: Node) -> bool:
    """Whether a system of the catalog has as many of the same accelerator in a node."""
    try:
        other = load_fleet(item).node
    except CatalogError:
        return False
    return other.accelerator.id == node.accelerator.id and other.accelerators_per_node == node.accelerators_per_node


def _network(fabric: NetworkFabric | None, today: dt.date, *, several: bool) -> _Priced:
    """Return the switches and optics that one node takes."""
    none = Range.exact(0.0, "USD")
    if not several:
        return none, (), ()
    if fabric is None or fabric.nic_bytes_per_s is None:
        return none, (), ("the network between the nodes is unknown and its price left out: give network_usd_per_node",)
    port, optics = (purchase("400g", what, today=today) for what in ("switch-port", "optics"))
    if port is None or optics is None:
        return none, (), ("no price of switch ports and optics is known: give network_usd_per_node",)
    scale = fabric.nics_per_node * fabric.nic_bytes_per_s / _PORT_BYTES_PER_S
    low, point, high = (scale * (_PORTS * getattr(port, end) + _LINKS * getattr(optics, end)) for end in ("low", "point", "high"))
    note = f"network: {_PORTS} switch ports and {_LINKS} links of 400 Gbit/s for each 50 GB/s of a node, two layers, non-blocking"
    return Range(low, point, high, "USD"), (port, optics), (note, *port.notes, *optics.notes)


_shipped_server = functools.lru_cache(maxsize=256)(_server)
_shipped_network = functools.lru_cache(maxsize=256)(_network)


def rent_price(fleet: Fleet, given: object = None, *, provider: str | None, kind: str, today: dt.date) -> PriceAnswer | None:
    """Return what one accelerator and hour costs to rent; None where that is not known and no provider was asked for."""
    if given is not None:
        usd = number(given, "price_usd_per_device_hour", minimum=1e-9, maximum=1e6)
        return PriceAnswer(usd, usd, usd, "USD per accelerator and hour", "")
    if not loader.has_own("price") and fleet.accelerator.id:
        return _rented(fleet.accelerator.id, provider, kind, today)
    return _rent(fleet.accelerator.id or fleet.accelerator.name, provider, kind, today)


@functools.lru_cache(maxsize=256)
def _rented(accelerator: str, provider: str | None, kind: str, today: dt.date) -> PriceAnswer | None:
    return _rent(accelerator, provider, kind, today)


def _rent(accelerator: str, provider: str | None, kind: str, today: dt.date) -> PriceAnswer | None:
    try:
        return rent(accelerator, provider=provider, kind=kind, today=today)
    except InputError as error:
        if error.field == "price" and provider is None and kind == "on-demand":
            return None
        raise


def _range(price: PriceAnswer) -> Range:
    return Range(price.low, price.point, price.high, "USD")
