"""What a job runs on: an accelerator, a node, a fleet with its fabric, the grid and building around it.

Imports catalog and the leaf modules (errors, units, dtypes, validation).
"""

from foretell.machine.fleet import (
    Datacenter,
    Fleet,
    GridProfile,
    NetworkFabric,
    Node,
    load_datacenter,
    load_fleet,
)
from foretell.machine.hardware import HardwareNode, Link, Pcie, load_hardware

__all__ = [
    "Datacenter",
    "Fleet",
    "GridProfile",
    "HardwareNode",
    "Link",
    "NetworkFabric",
    "Node",
    "Pcie",
    "load_datacenter",
    "load_fleet",
    "load_hardware",
]
