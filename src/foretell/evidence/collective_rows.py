"""Rows of measured collectives: what was run, on which topology, and which number was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from foretell.cost.collectives import EP_SMS, bus_bytes, seconds
from foretell.cost.topology import Group, Topology
from foretell.evidence.fabric import fabric_topology
from foretell.evidence.row_run import Skip
from foretell.validation import number, positive_int

__all__ = ["METRICS", "CollectiveRow", "read_row"]

METRICS: Final = {
    # key of `measured` -> the unit's size in bytes/s or seconds; the first that a row has is scored (the rest follow from it)
    "time_us": 1e-6,
    "busbw_gb_per_s": 1e9,
    "busbw_asymptotic_gb_per_s": 1e9,
    "bottleneck_link_gb_per_s": 1e9,
}
LARGE: Final = 2.0**36
"""Bytes at which a bandwidth is asked for that is stated without a size: a peak."""
MOST: Final = 2.0**60
"""Bytes of the largest buffer that is taken for a meant one."""
COARSE: Final = 0.10
"""A time that was computed from a bandwidth printed with fewer digits than this share of it is no measurement."""
_KINDS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "p2p": "p2p",
    "send_recv": "p2p",
    "sendrecv": "p2p",
    "ep_dispatch": "all_to_all",
    "ep_combine": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measured collective."""

    kind: str
    size: float
    group: Group
    topology: Topology
    algorithm: str | None
    metric: str
    measured: float
    """Seconds, or bytes/s."""
    sms: float | None
    notes: tuple[str, ...] = ()

    def predict(self, known: Mapping[str, float] | None = None) -> float:
        """Return what the model says of the measured quantity, in its unit."""
        sms = EP_SMS if self.sms is None else self.sms
        time = float(seconds(self.kind, self.size, self.group, self.topology, algorithm=self.algorithm, sms=sms, known=known))
        if self.metric == "time_us":
            return time
        moved = self.size if self.metric.startswith("bottleneck") else bus_bytes(self.kind, self.size, self.group.ranks)
        return float(moved / time)


def read_row(row: Mapping[str, Any]) -> CollectiveRow:
    """Read a row; :class:`Skip` says why one cannot be predicted, InputError what is wrong with a value."""
    name = str(row.get("collective"))
    if name not in _KINDS:
        raise Skip(f"not-modelled: collective {name}")
    metric = next((key for key in METRICS if isinstance(row["measured"].get(key), int | float)), None)
    if metric is None:
        raise Skip(f"not-modelled: none of {', '.join(METRICS)} was measured")
    size = _size(row, metric)
    _check_digits(row, metric)
    algorithm = _algorithm(str(row.get("algorithm") or ""), name)
    ranks = positive_int(row["ranks"], "ranks", minimum=2)
    topology = fabric_topology(row["hardware"], unstated=True)
    group = _group(row, ranks, topology)
    notes = topology.notes if group.domains > 1 else ()
    return CollectiveRow(
        kind=_KINDS[name],
        size=size,
        group=group,
        topology=topology,
        algorithm=algorithm,
        metric=metric,
        measured=number(row["measured"][metric], f"measured.{metric}", minimum=1e-12) * METRICS[metric],
        sms=None if row.get("sms") is None else number(row["sms"], "sms", minimum=1),
        notes=notes,
    )


def _size(row: Mapping[str, Any], metric: str) -> float:
    given = row.get("size_bytes")
    if given is None and metric == "time_us":
        raise Skip("underspecified: size_bytes is absent")
    return LARGE if given is None else number(given, "size_bytes", minimum=1, maximum=MOST)


def _check_digits(row: Mapping[str, Any], metric: str) -> None:
    """Leave out a time that was computed from a bandwidth with too few digits to say it."""
    measured = row["measured"]
    shown = measured.get("busbw_gb_per_s")
    if metric == "time_us" and "time_us" in (measured.get("derived") or ()) and shown and COARSE * shown < 0.005:
        raise Skip(f"underspecified: the time follows from a bus bandwidth printed as {shown} GB/s (two decimals)")


def _group(row: Mapping[str, Any], ranks: int, topology: Topology) -> Group:
    """Place the ranks: those of one node, or of the whole domain where it is larger than a node."""
    per_node = row.get("ranks_per_node")
    if per_node is None:
        nodes = positive_int(row.get("nodes", 1), "nodes")
        per_node = -(-ranks // nodes)
    per_node = positive_int(per_node, "ranks_per_node")
    whole = topology.domain if topology.domain > topology.gpus_per_node else per_node
    return Group(ranks=ranks, local=min(ranks, int(max(whole, per_node))))


def _algorithm(text: str, name: str) -> str | None:
    """What the row forces; None where the library chose (also where NVLS was merely enabled)."""
    low = text.casefold()
    if "low" in low and "latency" in low:
        raise Skip("not-modelled: DeepEP's low-latency kernels")
    if low.startswith("deepep") or name.startswith("ep_"):
        return "deepep"
    if low in ("ring", "no sharp") or low.startswith("ring (nvls off"):
        return "ring"
    return "tree" if low == "tree" else None
