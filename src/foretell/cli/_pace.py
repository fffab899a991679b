"""From the options of `train` to a pace: the network, and how evenly the ranks run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from foretell.cli._efficiency import efficiency_of
from foretell.cli._values import duration, one_of, real, share, whole
from foretell.cost.collectives import ALGORITHMS, SHAPES
from foretell.cost.topology import GBIT, topology_of
from foretell.plan.pace import Pace

if TYPE_CHECKING:
    from foretell.cli._request import Request
    from foretell.cost.topology import Topology

__all__ = ["pace_of"]

_LARGEST_RATIO: Final = 1e4
"""Largest congestion or imbalance that is taken for a meant one."""
_FASTEST_GBPS: Final = 1e6


def pace_of(made: Request, options: dict[str, Any]) -> Pace:
    """Return the pace that the options describe; InputError names the option that cannot be used."""
    network = _network(made, options)
    launch = replace(made.launch, gpus_per_node=int(network.gpus_per_node))
    return Pace(
        launch,
        network,
        algorithm=one_of(options["algorithm"], "algorithm", (*ALGORITHMS, *SHAPES)),
        efficiency=efficiency_of(options["efficiency"]),
        imbalance=_ratio(options["imbalance"], "imbalance"),
        expert_spread=real(options["expert_spread"], "expert_spread", minimum=0.0, maximum=100.0) or 0.0,
        jitter=share(options["jitter"], "jitter") or 0.0,
        loader_s=duration(options["loader_time"], "loader_time") or 0.0,
        congestion=_ratio(options["congestion"], "congestion"),
    )


def _network(made: Request, options: dict[str, Any]) -> Topology:
    """Return the topology of the machine, with the network cards that were given."""
    found = topology_of(made.launch.hardware, whole(options["gpus_per_node"], "gpus_per_node"), fleet=made.fleet)
    rate = real(options["nic_gbps"], "nic_gbps", minimum=1e-3, maximum=_FASTEST_GBPS)
    cards = whole(options["nics_per_node"], "nics_per_node", maximum=10**4)
    if rate is None and cards is None:
        return found
    notes = found.notes
    if rate is not None:
        found = replace(found, nic_bytes_per_s=rate * GBIT)
    if cards is not None:
        found = replace(found, nics_per_node=cards)
    stated = f"network of {found.nics_per_node} x {found.nic_bytes_per_s / GBIT:g} Gbit/s a node, taken to be {found.network}"
    return replace(found, notes=(*(note for note in notes if not note.startswith("network ")), stated))


def _ratio(text: str | None, field: str) -> float:
    """Return a factor of at least one."""
    return real(text, field, minimum=1.0, maximum=_LARGEST_RATIO) or 1.0
