"""What a collective runs over: links inside a fast domain, rails of network cards between domains, and groups of ranks.

Rates are nominal, of one direction, in bytes/s; what of them is reached stands in ``catalog/data/calibration/collectives.json``.
A number may be a NumPy array (a sweep over machines or degrees).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.cost.arrays import Value, ceil, maximum, minimum, where
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, NetworkFabric
from foretell.machine.hardware import HardwareNode, Link

__all__ = ["Bridge", "Group", "Topology", "congested", "inter_family", "intra_family", "link_family", "topology_of"]

GBIT: Final = 1e9 / 8
"""Bytes/s of one Gbit/s."""
_FAMILIES: Final = (
    ("nvlink1", r"nvlink ?1"),
    ("nvlink2", r"nvlink ?2"),
    ("nvlink3", r"nvlink ?3"),
    ("nvlink4", r"nvlink ?4"),
    ("nvlink5", r"nvlink ?5"),
    ("nvlink5", r"nvlink"),  # a later one: as the newest that is known
    ("xgmi", r"xgmi|infinity fabric"),
    ("ici", r"\bici\b|torus"),
    ("neuronlink", r"neuronlink"),
    ("scale-up-ethernet", r"roce in the card|gbe inside"),
    ("hccs", r"hccs|mtlink|realscale|swarmx"),
    ("pcie", r"pcie"),
)
_NETWORKS: Final = (
    ("efa", r"efa"),
    ("ib", r"infiniband|\bib\b|ib-|rail optimi|omnipath"),
    ("roce", r"roce"),
    ("ethernet", r"ethernet|tcp|data-centre network|\bdcn\b"),
    ("net", r"^net"),
)
DEFAULT_NETWORKS: Final = {
    # accelerator's link -> (network, Gbit/s of a card, cards a node): the vendor's reference system of that generation
    "nvlink1": ("ib", 100, 4),  # DGX-1 (P100): 4 EDR
    "nvlink2": ("ib", 100, 4),  # DGX-1V: 4 EDR
    "nvlink3": ("ib", 200, 8),  # DGX A100: 8 HDR
    "nvlink4": ("ib", 400, 8),  # DGX H100: 8 NDR
    "nvlink5": ("ib", 400, 8),  # DGX B200: 8 NDR
    "xgmi": ("roce", 400, 8),  # MI300X platform: 8 x 400 GbE
    "ici": ("ethernet", 200, 1),  # between TPU pods
    "neuronlink": ("efa", 100, 16),
    "scale-up-ethernet": ("roce", 100, 6),  # Gaudi: ports left over for scale-out
    "hccs": ("roce", 200, 8),
    "pcie": ("ethernet", 100, 2),
}
UNSTATED: Final = (100, 2)
"""Gbit/s of a card and cards of a node of eight, where a measured run spans nodes and says nothing of its network."""
_PCIE_BYTES_PER_S: Final = 31.5e9
"""PCIe 4.0 x16, where the card's own rate is unknown."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A faster link between few cards of a node whose others reach each other over PCIe (NVLink bridges)."""

    family: str
    bytes_per_s: Value
    size: int


@dataclass(frozen=True, slots=True)
class Topology:
    """Links of a machine as collectives see them; rates of one direction, bytes/s."""

    family: str
    """Kind of the link inside a domain (nvlink4, xgmi, ici, pcie ...): its efficiency is looked up by it."""
    bytes_per_s: Value
    """One accelerator's, to all others of its domain together."""
    domain: Value
    """Accelerators that reach one another over it; more than a node's in an NVL72 or a TPU pod."""
    gpus_per_node: Value
    network: str
    """Kind of the network between domains (ib, roce, efa, ethernet, net, unstated)."""
    nic_bytes_per_s: Value
    nics_per_node: Value
    per_peer_bytes_per_s: Value | None = None
    """To one other, where the links are point to point (a mesh): fewer ranks then use fewer links."""
    oversubscription: Value = 1.0
    """Of the network beyond the leaf switches; 1 is full bisection."""
    latency_s: Value | None = None
    """Of one hop between nodes as stated; it counts where it is longer than what the library needs for one (None: not stated)."""
    nvls: bool = False
    """Whether the domain's switches reduce (NVLink SHARP, NVLS)."""
    torus: int | None = None
    """Axes of a torus (TPU), where not every pair is one hop apart."""
    bridge: Bridge | None = None
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def node_bytes_per_s(self) -> Value:
        """All cards of a node."""
        return self.nic_bytes_per_s * self.nics_per_node

    def between(self, group: Group) -> Value:
        """Rate at which one group's ranks of one domain reach other domains, bytes/s.

        A rank drives the card beside it, or its share of the cards where there are more cards than ranks; groups that
        communicate at the same time divide the domain's cards.
        """
        share = self.node_bytes_per_s / self.gpus_per_node
        own = group.local * maximum(self.nic_bytes_per_s, share)
        return minimum(own, share * self.domain / group.sharing) / self.oversubscription

    def inside(self, group: Group) -> Value:
        """Rate of one rank towards the group's other ranks of its domain, bytes/s."""
        rate = self.bytes_per_s
        if self.per_peer_bytes_per_s is not None:
            rate = minimum(rate, self.per_peer_bytes_per_s * maximum(group.local - 1, 1))
        if self.bridge is not None:
            rate = where(group.span <= self.bridge.size, self.bridge.bytes_per_s, rate)
        return rate


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of one communicator, and where they sit."""

    ranks: Value
    local: Value
    """Of them inside one fast domain."""
    sharing: Value = 1
    """Groups of the same kind that use one domain's network cards at the same time."""
    reach: Value | None = None
    """Consecutive accelerators that the local ranks span (None: they are neighbours)."""

    @property
    def domains(self) -> Value:
        """Domains that the group touches."""
        return ceil(self.ranks / self.local)

    @property
    def span(self) -> Value:
        """Consecutive accelerators that the local ranks span."""
        return self.local if self.reach is None else self.reach


def intra_family(name: str) -> str:
    """Return the kind of link of a name.

    >>> intra_family("NVLink3 bridge"), intra_family("ICI 3D torus"), intra_family("pcie4")
    ('nvlink3', 'ici', 'pcie')
    """
    return link_family(name) or "pcie"


def link_family(name: str) -> str | None:
    """Return the kind of link of a name, None where it names none that is known."""
    return next((family for family, pattern in _FAMILIES if re.search(pattern, name.casefold())), None)


def inter_family(name: str) -> str:
    """Return the kind of network of a name.

    >>> inter_family("fat-tree (EFA)"), inter_family("ib-ndr400"), inter_family("net400")
    ('efa', 'ib', 'net')
    """
    return next((family for family, pattern in _NETWORKS if re.search(pattern, name.casefold())), "net")


def topology_of(
    hardware: HardwareNode,
    gpus_per_node: int | None = None,
    fabric: NetworkFabric | None = None,
    *,
    fleet: Fleet | None = None,
    domain: int | None = None,
) -> Topology:
    """Topology of an accelerator's machine; what is not given is the reference system's of its generation, with a note.

    A ``fleet`` gives the node, its domain and the network; the other arguments come before it.

    >>> from foretell.machine import load_fleet
    >>> found = topology_of(load_fleet("gb200-nvl72").accelerator, fleet=load_fleet("gb200-nvl72"))
    >>> found.family, found.domain, found.gpus_per_node, found.network, found.node_bytes_per_s
    ('nvlink5', 72, 4, 'ib', 200000000000.0)
    """
    link = hardware.link
    notes: list[str] = []
    if fleet is not None:
        gpus_per_node = gpus_per_node or fleet.node.accelerators_per_node
        domain = domain or fleet.node.domain_gpus
        fabric = fabric or fleet.fabric
    gpus_per_node = gpus_per_node or _usual_node(link)
    family = intra_family(link.name) if link and link.bandwidth_bytes_per_s else "pcie"
    domain = domain or _usual_domain(link, gpus_per_node)
    bridged = link is not None and bool(link.bandwidth_bytes_per_s) and domain < gpus_per_node and _joins_cards(link)
    if fabric is not None and fabric.nic_bytes_per_s:
        network, nic, cards = inter_family(fabric.topology), fabric.nic_bytes_per_s, fabric.nics_per_node
    else:
        network, gbit, cards = DEFAULT_NETWORKS["pcie" if bridged else family]
        nic, cards = gbit * GBIT, max(1, cards * gpus_per_node // 8)
        notes.append(f"network not stated: {cards} x {gbit} Gbit/s {network} a node, as in the generation's reference system")
    base = Topology(
        family=family,
        bytes_per_s=(link.bandwidth_bytes_per_s if link else None) or _pcie(hardware, notes),
        domain=domain,
        gpus_per_node=gpus_per_node,
        network=network,
        nic_bytes_per_s=nic,
        nics_per_node=cards,
        per_peer_bytes_per_s=link.per_peer_bytes_per_s if link else None,
        oversubscription=fabric.oversubscription if fabric else 1.0,
        latency_s=_stated_latency(fabric, fleet),
        nvls=has_nvls(family, link),
        torus=_axes(link),
        notes=tuple(notes),
    )
    return _bridged(base, hardware, domain) if bridged else base


def congested(topology: Topology, factor: Value) -> Topology:
    """Return a topology whose links and network others use too: rates divided by ``factor``, 1 or more."""
    return replace(topology, nic_bytes_per_s=topology.nic_bytes_per_s / factor, bytes_per_s=topology.bytes_per_s / factor)


def _stated_latency(fabric: NetworkFabric | None, fleet: Fleet | None) -> float | None:
    """Latency of the network, unless the catalog's entry says that it only guesses it."""
    guessed = fleet is not None and fabric is fleet.fabric and "fabric.latency_s" in fleet.estimates
    return None if fabric is None or guessed else fabric.latency_s


def has_nvls(family: str, link: Link | None) -> bool:
    """Whether the switches reduce: third-generation NVSwitch and later (Hopper), not bridges."""
    return family in ("nvlink4", "nvlink5") and not (link and "bridge" in link.name.casefold())


def _axes(link: Link | None) -> int | None:
    """Axes of a torus, from the link's name ("ICI 3D torus")."""
    found = re.search(r"(\d)d torus", link.name.casefold()) if link else None
    return int(found[1]) if found else None


def _usual_node(link: Link | None) -> int:
    """Accelerators of a node where nobody says: a board's eight, four of a rack or pod, or the whole of a small domain."""
    size = link.domain_size if link and link.domain_size else 8
    if size > 16:
        return 4
    return 8 if size == 2 else min(8, size)  # two: a bridge between cards


def _joins_cards(link: Link) -> bool:
    """Whether a link is a bridge between two or four cards; boards with switches reach each other over the network."""
    return "bridge" in link.name.casefold() or (link.domain_size or 8) <= 4


def _usual_domain(link: Link | None, gpus_per_node: int) -> int:
    """Accelerators of the fast domain: the link's own, but for boards no more than the node has."""
    if link is None or not link.bandwidth_bytes_per_s or not link.domain_size:
        return gpus_per_node
    return link.domain_size if link.domain_size > 16 else min(link.domain_size, gpus_per_node)


def _bridged(base: Topology, hardware: HardwareNode, pair: int) -> Topology:
    """Return the topology of a node in which only some cards share the link: the others go over PCIe."""
    notes = list(base.notes)
    return replace(
        base,
        family="pcie",
        bytes_per_s=_pcie(hardware, notes),
        domain=base.gpus_per_node,
        per_peer_bytes_per_s=None,
        nvls=False,
        bridge=Bridge(base.family, base.bytes_per_s, pair) if pair > 1 else None,
        notes=tuple(notes),
    )


def _pcie(hardware: HardwareNode, notes: list[str]) -> float:
    if hardware.pcie and hardware.pcie.bytes_per_s:
        return hardware.pcie.bytes_per_s
    notes.append("PCIe rate not known: 4.0 x16")
    return _PCIE_BYTES_PER_S


def check_group(group: Group) -> None:
    """Refuse a group that no machine has: fewer than one rank, or more local ranks than ranks."""
    fields: dict[str, Any] = {"ranks": group.ranks, "local": group.local, "sharing": group.sharing}
    for name, value in fields.items():
        low = value.min() if hasattr(value, "min") else value
        if not low >= 1:
            raise InputError("must be at least 1", field=name, value=low)
    over = group.local > group.ranks
    if over.any() if hasattr(over, "any") else over:
        raise InputError("is more than the group's ranks", field="local", value=group.local, allowed="at most ranks")
