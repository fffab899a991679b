"""From one accelerator to a cluster in a building. Plain numbers in SI units; unknown is None."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from foretell.catalog import loader
from foretell.machine._fields import COUNT, coerce, gather_notes, read, table, unit
from foretell.machine.datacenter import Datacenter
from foretell.machine.hardware import HardwareNode, Link, load_hardware
from foretell.validation import number, positive_int

if TYPE_CHECKING:
    import os

__all__ = ["Fleet", "NetworkFabric", "Node", "load_fleet"]

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
    mtbf_s: float | None = field(default=None, metadata=unit("s", positive=True))
    """Mean time between failures that stop a job on the whole fleet, where it is known, seconds."""
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

    Twice the nodes fail twice as often: a known `mtbf_s` of the whole goes with the count.

    >>> load_fleet("dgx-h100", nodes=4).total_accelerators
    32
    >>> hourly = replace(load_fleet("dgx-h100", nodes=4), mtbf_s=3600.0)
    >>> load_fleet(hourly, nodes=8).mtbf_s
    1800.0
    """
    fleet = ref if isinstance(ref, Fleet) else _read_fleet(ref)
    if nodes is None:
        return fleet
    count = positive_int(nodes, "nodes")
    mtbf = None if fleet.mtbf_s is None else fleet.mtbf_s * fleet.nodes / count  # any node stops the job
    return replace(fleet, nodes=count, mtbf_s=mtbf)


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
