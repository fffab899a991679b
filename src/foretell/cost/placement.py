"""Which ranks form which group, and how many of them share a fast domain.

Ranks are numbered along the order of Megatron-Core (``tp-cp-ep-dp-pp``, ``core/parallel_state.py``): the first kind of the order
holds neighbours.  The meshes of FSDP2 and HSDP (``[pp, replicate, shard, cp, tp]``, last innermost) are the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.cost.arrays import Value, maximum, minimum, where
from foretell.cost.topology import Group, Topology
from foretell.errors import InputError

__all__ = ["ORDER", "Placement", "place"]

ORDER: Final = "tp-cp-ep-dp-pp"
_KINDS: Final = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True, slots=True)
class Placement:
    """The groups of one rank."""

    tp: Group
    cp: Group
    dp: Group
    """Data parallelism without context parallelism."""
    dp_cp: Group
    """Ranks that hold the same dense weights: gradients are reduced over them."""
    shard: Group
    """Of them, the ranks that shard states (all, but for HSDP)."""
    replicate: Group
    """Replicas of a sharded group (HSDP); one rank otherwise."""
    ep: Group
    expert_dp: Group
    """Ranks that hold the same experts."""
    pp: Group
    """A pair of neighbouring stages (send and receive), the slowest of the pipeline."""


def place(
    topology: Topology,
    *,
    tp: Value = 1,
    cp: Value = 1,
    ep: Value = 1,
    dp: Value = 1,
    pp: Value = 1,
    etp: Value | None = None,
    replicas: Value = 1,
    order: str = ORDER,
) -> Placement:
    """Groups of a job of ``tp x cp x dp x pp`` ranks; experts divide ``tp x cp x dp`` by ``etp x ep`` (``etp``: as ``tp``).

    All groups of a kind communicate at once, as they do in training: ``sharing`` counts those of one domain.

    >>> from foretell.machine import load_hardware
    >>> from foretell.cost.topology import topology_of
    >>> groups = place(topology_of(load_hardware("h100")), tp=4, dp=16)
    >>> groups.tp.ranks, groups.tp.local, groups.dp.local, groups.dp.sharing
    (4, 4, 2, 4)
    """
    dims = order.split("-")
    if sorted(dims) != sorted(_KINDS):
        raise InputError("is no order of the five kinds of parallelism", field="order", value=order, allowed=ORDER)
    etp = tp if etp is None else etp
    world = tp * cp * dp * pp
    expert_dp = maximum(tp * cp * dp // (etp * ep), 1)
    dense = _strides(dims, {"tp": tp, "cp": cp, "dp": dp, "pp": pp, "ep": 1})
    sparse = _strides(dims, {"tp": etp, "cp": 1, "ep": ep, "dp": expert_dp, "pp": pp})

    def group(ranks: Value, stride: Value) -> Group:
        return _group(ranks, stride, topology.domain, world)

    shard = maximum(dp * cp // replicas, 1)
    inner = minimum(dense["cp"], dense["dp"])
    edge = minimum(dense["pp"], topology.domain)
    near = dense["pp"] * pp <= topology.domain
    return Placement(
        tp=group(tp, dense["tp"]),
        cp=group(cp, dense["cp"]),
        dp=group(dp, dense["dp"]),
        dp_cp=group(dp * cp, inner),
        shard=group(shard, inner),
        replicate=group(replicas, inner * shard),
        ep=group(ep, sparse["ep"]),
        expert_dp=group(expert_dp, sparse["dp"]),
        pp=Group(ranks=minimum(pp, 2), local=where(near, minimum(pp, 2), 1), sharing=where(near, 1, edge), reach=dense["pp"] + 1),
    )


def _strides(dims: list[str], sizes: dict[str, Value]) -> dict[str, Value]:
    """Distance between neighbours of each kind."""
    out: dict[str, Value] = {}
    stride: Value = 1
    for name in dims:
        out[name] = stride
        stride = stride * sizes[name]
    return out


def _group(ranks: Value, stride: Value, domain: Value, world: Value) -> Group:
    """Return the group of ``ranks`` at a distance of ``stride`` in domains of consecutive ranks."""
    local = minimum(ranks, maximum(domain // stride, 1))
    sharing = maximum(minimum(domain, world) // local, 1)
    return Group(ranks=ranks, local=local, sharing=sharing, reach=stride * (local - 1) + 1)
