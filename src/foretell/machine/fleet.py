"""From one accelerator to a cluster in a building on a grid. Plain numbers in SI units; unknown is None."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foretell.catalog import loader
from foretell.machine._fields import COUNT, coerce, gather_notes, read, table, unit
from foretell.machine.hardware import HardwareNode, Link, load_hardware
from foretell.validation import number, positive_int

if TYPE_CHECKING:
    import os

__all__ = ["Datacenter", "Fleet", "GridProfile", "NetworkFabric", "Node", "load_datacenter", "load_fleet"]

_NODE_KEYS = ("accelerator", "accelerators_per_node", "domain_gpus", "intra_link", "node_power_w")


@dataclass(frozen=True)
class Node:
    """One host and its accelerators."""

    accelerator: HardwareNode
    accelerators_per_node: int = field(default=8, metadata=COUNT)
    domain_gpus: int | None = field(default=None, metadata=COUNT)
    """Accelerators that share the fast link, more than a node's in an NVL72 or a TPU pod."""
    intra_link: str | None = None
    host_cpu: str | None = None
    host_cores: int | None = field(default=None, metadata=COUNT)
    """Physical cores of the node."""
    host_memory_bytes: int | None = field(default=None, metadata=unit("byte"))
    node_power_w: float | None = field(default=None, metadata=unit("W"))
    """Maximum of the node, watts."""

    def __post_init__(self) -> None:
        """Take text and pint quantities too."""
        coerce(self)

    @property
    def link(self) -> Link | None:
        """The accelerators' link, with this node's domain where it is known."""
        link = self.accelerator.link
        return replace(link, domain_size=self.domain_gpus) if link and self.domain_gpus else link


@dataclass(frozen=True)
class NetworkFabric:
    """The network between nodes."""

    nic_bytes_per_s: float | None = field(default=None, metadata=unit("byte/s"))
    """One NIC, one direction, bytes/s."""
    nics_per_node: int = field(default=1, metadata=COUNT)
    latency_s: float | None = field(default=None, metadata=unit("s"))
    topology: str = "fat-tree"
    oversubscription: float = 1.0
    """Bandwidth of the leaves over that of the spine; 1 is full bisection."""
    note: str | None = None

    def __post_init__(self) -> None:
        """Take text and pint quantities too."""
        coerce(self)
        ratio = number(self.oversubscription, "oversubscription", minimum=1.0)
        object.__setattr__(self, "oversubscription", ratio)

    @property
    def node_bytes_per_s(self) -> float | None:
        """All NICs of a node, one direction, bytes/s."""
        return None if self.nic_bytes_per_s is None else self.nic_bytes_per_s * self.nics_per_node


@dataclass(frozen=True)
class GridProfile:
    """The electricity of a region."""

    name: str
    carbon_intensity_g_per_kwh: float | None = None
    """Grams of CO2-equivalent per kWh delivered."""
    renewable_fraction: float | None = None
    id: str = ""
    sources: Any = field(default=(), hash=False)

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check(self, {"carbon_intensity_g_per_kwh": (0.0, 1e5), "renewable_fraction": (0.0, 1.0)})


@dataclass(frozen=True)
class Datacenter:
    """A building on a grid: what the accelerators' energy costs beyond itself."""

    name: str
    grid: GridProfile
    pue: float | None = None
    """Power usage effectiveness: the building's energy over that of its IT (ISO/IEC 30134-2), at least 1."""
    wue_l_per_kwh: float | None = None
    """Water usage effectiveness: litres on site per kWh of *IT* energy (ISO/IEC 30134-9)."""
    kwh_price_usd: float | None = None
    id: str = ""
    sources: Any = field(default=(), hash=False)

    def __post_init__(self) -> None:
        """Check the ranges."""
        _check(self, {"pue": (1.0, 10.0), "wue_l_per_kwh": (0.0, 1e3), "kwh_price_usd": (0.0, 1e3)})


@dataclass(frozen=True)
class Fleet:
    """Equal nodes on one fabric.

    >>> card = HardwareNode("card", 80e9, 2e12, {"bf16": 4e14})
    >>> Fleet("two", Node(card), nodes=2).total_accelerators
    16
    """

    name: str
    node: Node
    nodes: int = field(default=1, metadata=COUNT)
    fabric: NetworkFabric | None = None
    datacenter: Datacenter | None = None
    id: str = ""
    notes: dict[str, str] = field(default_factory=dict, hash=False)
    estimates: tuple[str, ...] = ()
    """Names of the values that are inferred rather than read."""
    sources: Any = field(default=(), hash=False)

    def __post_init__(self) -> None:
        """Check the count."""
        coerce(self)

    @property
    def accelerator(self) -> HardwareNode:
        """The accelerator that every node holds."""
        return self.node.accelerator

    @property
    def total_accelerators(self) -> int:
        """Accelerators of all nodes."""
        return self.nodes * self.node.accelerators_per_node


def load_fleet(ref: str | os.PathLike[str] | Fleet, nodes: int | None = None) -> Fleet:
    """Return the system of a catalog id or alias, or of a path; `nodes` overrides the count.

    >>> load_fleet("dgx-h100", nodes=4).total_accelerators
    32
    """
    fleet = ref if isinstance(ref, Fleet) else _read_fleet(ref)
    return fleet if nodes is None else replace(fleet, nodes=positive_int(nodes, "nodes"))


def load_datacenter(ref: str | os.PathLike[str] | Datacenter) -> Datacenter:
    """Return the grid or region profile of a catalog id or alias, or of a path, as a Datacenter."""
    if isinstance(ref, Datacenter):
        return ref
    data = loader.entry("grid", ref)
    where = f"grid {data.get('id', ref)}"
    data.pop("aliases", None)
    name = data.setdefault("name", data.get("id"))
    building: dict[str, Any] = {key: data.pop(key) for key in ("pue", "wue_l_per_kwh", "kwh_price_usd") if key in data}
    grid = read(GridProfile, data, where)
    building |= {"name": name, "grid": grid, "id": grid.id, "sources": grid.sources}
    return read(Datacenter, building, where)


def _read_fleet(ref: str | os.PathLike[str]) -> Fleet:
    """Read a system's entry: the node's keys lie flat in it, `[host]` and `[fabric]` are tables."""
    data = gather_notes(loader.entry("system", ref))
    where = f"system {data.get('id', ref)}"
    data.pop("aliases", None)
    node = {key: data.pop(key) for key in _NODE_KEYS if key in data}
    node |= {f"host_{key}": value for key, value in table(data.pop("host", {}), "host", where).items()}
    node["accelerator"] = load_hardware(node.get("accelerator", ""))
    made = {"name": data.get("id"), "nodes": data.pop("nodes_default", 1)} | data
    made["node"] = read(Node, node, where)
    made["estimates"] = tuple(data.get("estimates", ()))
    if "fabric" in data:
        made["fabric"] = read(NetworkFabric, table(data["fabric"], "fabric", where), f"{where}, fabric")
    return read(Fleet, made, where)


def _check(instance: GridProfile | Datacenter, ranges: dict[str, tuple[float, float]]) -> None:
    """Check that each known number lies in its range."""
    for name, (low, high) in ranges.items():
        value = getattr(instance, name)
        if value is not None:
            object.__setattr__(instance, name, number(value, name, minimum=low, maximum=high))
