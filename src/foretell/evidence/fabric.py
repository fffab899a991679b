"""Topology of a measured run: the ``hardware`` block of a row (gpu, gpus_per_node, fabric) as collectives see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from foretell.cost.topology import DEFAULT_NETWORKS, GBIT, UNSTATED, Topology, inter_family, link_family, topology_of
from foretell.errors import InputError
from foretell.evidence.row_run import Skip
from foretell.machine import load_hardware
from foretell.machine.hardware import HardwareNode
from foretell.validation import number, positive_int

__all__ = ["fabric_topology"]

_LINK_BYTES_PER_S: Final = {
    # one accelerator, one direction: what the row's link has where the accelerator's entry names another
    "nvlink1": 80e9,
    "nvlink2": 150e9,
    "nvlink3": 300e9,
    "nvlink4": 450e9,
    "nvlink5": 900e9,
    "pcie": 31.5e9,
}


def fabric_topology(hardware: Mapping[str, Any], node: HardwareNode | None = None, *, unstated: bool = False) -> Topology:
    """Return the topology of a row's ``hardware`` block; each thing that it does not state is a note.

    Where the block states no network, it is the generation's reference network; with ``unstated``, one of its own kind.

    >>> found = fabric_topology({"gpu": "h100-sxm-80gb", "gpus_per_node": 8, "fabric": {"inter": "roce400", "nics_per_node": 4}})
    >>> found.network, found.node_bytes_per_s, found.notes
    ('roce', 200000000000.0, ())
    """
    node = load_hardware(hardware["gpu"]) if node is None else node
    fabric = hardware.get("fabric") or {}
    if not isinstance(fabric, Mapping):
        raise InputError("is no object", field="hardware.fabric", value=fabric)
    per_node = hardware.get("gpus_per_node")
    per_node = None if per_node is None else positive_int(per_node, "hardware.gpus_per_node")
    domain = fabric.get("domain_gpus")
    found = topology_of(node, per_node, domain=None if domain is None else positive_int(domain, "hardware.fabric.domain_gpus"))
    return _network(_link(found, node, fabric), fabric, unstated)


def _link(found: Topology, node: HardwareNode, fabric: Mapping[str, Any]) -> Topology:
    """Take the row's link where it is not the one that the accelerator's entry has."""
    name = fabric.get("intra")
    if name is None:
        return found
    family = link_family(str(name))
    if family is None:
        raise Skip(f"underspecified: hardware.fabric.intra {name!r} is no link that is known")
    own = found.bridge.family if found.bridge else found.family
    if family == own:
        return found
    rate = _LINK_BYTES_PER_S.get(family)
    if family == "pcie" and node.pcie and node.pcie.bytes_per_s:
        rate = node.pcie.bytes_per_s
    if rate is None:
        return replace(found, notes=(*found.notes, f"link {name}: as {found.family} of the accelerator's entry"))
    return replace(
        found, family=family, bytes_per_s=rate, per_peer_bytes_per_s=None, bridge=None, nvls=found.nvls and family != "pcie"
    )


def _network(found: Topology, fabric: Mapping[str, Any], unstated: bool) -> Topology:
    """Take the network that the row states: its kind from ``inter``, its rate from numbers or the name's own."""
    name = fabric.get("inter")
    if name is None and fabric.get("node_gbps") is None and fabric.get("nic_gbps") is None:
        return _unstated(found) if unstated else found
    if name == "tpu-ici":
        return found
    network, usual, cards = DEFAULT_NETWORKS[found.family]
    notes = []
    network = inter_family(str(name)) if name is not None else "net"
    count = _count(fabric) or max(1, int(cards * found.gpus_per_node) // 8)
    per_card = _gbit(fabric, str(name), count)
    if per_card is None:
        per_card = float(usual)
        notes.append(f"rate of {name} not stated: {count} x {usual} Gbit/s a node, as in the generation's reference system")
    return replace(found, network=network, nic_bytes_per_s=per_card * GBIT, nics_per_node=count, notes=tuple(notes))


def _unstated(found: Topology) -> Topology:
    """Take a plain network, and say so."""
    gbit, cards = UNSTATED
    count = max(1, int(cards * found.gpus_per_node) // 8)
    note = f"network not stated: taken as {count} x {gbit} Gbit/s a node, reached as little as in other runs that do not say"
    return replace(found, network="unstated", nic_bytes_per_s=gbit * GBIT, nics_per_node=count, notes=(note,))


def _count(fabric: Mapping[str, Any]) -> int | None:
    given = fabric.get("nics_per_node")
    if given is not None:
        return positive_int(given, "hardware.fabric.nics_per_node")
    if fabric.get("node_gbps") is not None and fabric.get("nic_gbps") is not None:
        return max(1, round(float(fabric["node_gbps"]) / float(fabric["nic_gbps"])))
    return None


def _gbit(fabric: Mapping[str, Any], name: str, count: int) -> float | None:
    """Rate of one card, Gbit/s."""
    if fabric.get("nic_gbps") is not None:
        return number(fabric["nic_gbps"], "hardware.fabric.nic_gbps", minimum=1e-3)
    if fabric.get("node_gbps") is not None:
        return number(fabric["node_gbps"], "hardware.fabric.node_gbps", minimum=1e-3) / count
    rate = re.search(r"(\d{2,4})$", name)
    return float(rate[1]) if rate else None
