"""What a job runs on: an accelerator, a node, a fleet with its fabric, the grid and building around it.

Imports catalog and the leaf modules (errors, units, dtypes, validation).
"""

from foretell.machine.datacenter import CarbonIntensity, Datacenter, GridProfile, load_datacenter
from foretell.machine.fleet import Fleet, NetworkFabric, Node, load_fleet
from foretell.machine.hardware import HardwareNode, Link, Pcie, load_hardware

__all__ = [
    "CarbonIntensity",
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
