"""Seconds of one collective over a topology: latency, hops, and bytes over the slower of link and network.

Sizes are those of nccl-tests (doc/PERFORMANCE.md): the whole buffer, which is the gathered output of an all-gather, the input
of a reduce-scatter, what one rank sends in all (its own part included) of an all-to-all, and the message of a broadcast or
p2p.  Bus bandwidth is the same document's: bytes x 2(n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and
all-to-all, over seconds.

The model is Hockney's alpha-beta with a ramp: ``kernel + hops x latency + x + x^(1-q) tau^q`` with ``x = bytes on the slowest
wire / rate reached``, and never less than the host needs to launch one (Thakur, Rabenseifner, Gropp 2005 for steps and
volumes; NCCL src/graph/tuning.cc for the hops of each algorithm and for when it takes which).  The ramp is what pipelines lose
at medium sizes.  All constants stand in ``catalog/data/calibration/collectives.json`` with where they come from.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any, Final

from foretell.cost.arrays import Value, log2, maximum, minimum, power, where
from foretell.cost.topology import Group, Topology, check_group
from foretell.errors import InputError

__all__ = [
    "ALGORITHMS",
    "EP_SMS",
    "KINDS",
    "SHAPES",
    "bus_bytes",
    "calibration",
    "constants",
    "interval",
    "regime",
    "seconds",
    "timings",
]

Constants = Mapping[str, float]
KINDS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p")
ALGORITHMS: Final = ("ring", "tree", "nvls", "hierarchical", "deepep")
"""What may be forced; a kind that has no such algorithm keeps its own."""
SHAPES: Final = ("fat-tree", "torus")
"""Shapes of a fabric, in place of an algorithm: the cheapest algorithm on that shape is taken."""
_REDUCED: Final = ("all_reduce", "all_gather", "reduce_scatter")
EP_SMS: Final = 24.0
"""Multiprocessors that DeepEP's kernels take by default (deep_ep/buffer.py)."""


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/collectives.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@functools.lru_cache(maxsize=1)
def constants() -> Constants:
    """Values of the calibration file by name."""
    return {name: entry["value"] for name, entry in calibration()["constants"].items()}


def seconds(
    kind: str,
    size: Value,
    group: Group,
    topology: Topology,
    *,
    algorithm: str | None = None,
    queued: bool = False,
    sms: Value = EP_SMS,
    known: Constants | None = None,
) -> Value:
    """Time of one collective of ``size`` bytes, in seconds; nothing for a group of one rank.

    ``algorithm`` forces one of ALGORITHMS (or names one of SHAPES); None takes the cheapest of those that NCCL would consider.
    ``queued``: the kernel was launched ahead, only what runs on the device counts.  ``sms``: multiprocessors of DeepEP's kernels.
    ``known`` replaces the calibrated constants (fits).  Raises InputError for a kind or algorithm that does not exist.

    >>> pair = Topology("nvlink4", 450e9, 8, 8, "ib", 50e9, 8)
    >>> ideal = dict.fromkeys(constants(), 0.0) | {"efficiency.nvlink4": 1, "network.efficiency.ib": 1, "ramp.exponent": 0.5}
    >>> round(seconds("all_reduce", 900e9, Group(2, 2), pair, algorithm="ring", known=ideal), 6)
    2.0
    """
    found = timings(kind, size, group, topology, algorithm=algorithm, queued=queued, sms=sms, known=known)
    return functools.reduce(minimum, found.values())


def timings(
    kind: str,
    size: Value,
    group: Group,
    topology: Topology,
    *,
    algorithm: str | None = None,
    queued: bool = False,
    sms: Value = EP_SMS,
    known: Constants | None = None,
) -> dict[str, Value]:
    """Seconds by algorithm: those considered, or the one that is forced; infinite where it does not apply."""
    if kind not in KINDS:
        raise InputError("is no collective that is modelled", field="kind", value=kind, allowed=KINDS)
    if algorithm is not None and algorithm not in (*ALGORITHMS, *SHAPES):
        raise InputError("is not known", field="topology_override", value=algorithm, allowed=[*ALGORITHMS, *SHAPES])
    check_group(group)
    if algorithm == "torus":
        topology = replace(topology, torus=topology.torus or 3)
    have = _of(kind)
    taken = [algorithm] if algorithm in have else [name for name in have if name not in ("hierarchical", "deepep")]
    k = constants() if known is None else known
    floor = 0.0 if queued else k["launch.host_s"]
    out = {}
    for name in taken:
        work = _Work(kind, size, group, topology, k, sms, forced=algorithm == name)
        time = maximum(k["launch.queued_s" if queued else "launch.kernel_s"] + have[name](work), floor)
        out[name] = where(group.ranks > 1, where(size > 0, time, 0.0), 0.0)
    if taken == ["nvls"]:
        if not topology.nvls:
            problem = "needs switches that reduce (NVSwitch of Hopper and later)"
            raise InputError(problem, field="topology_override", value=algorithm)
        usual = seconds(kind, size, group, topology, queued=queued, known=known)
        out["nvls"] = where(group.local > 1, out["nvls"], usual)  # a rank alone in its domain: as if nothing were forced
    return out


def bus_bytes(kind: str, size: Value, ranks: Value) -> Value:
    """Bytes that nccl-tests divides by the time to get the bus bandwidth.

    >>> bus_bytes("all_reduce", 8e9, 8), bus_bytes("all_gather", 8e9, 8), bus_bytes("p2p", 8e9, 2)
    (14000000000.0, 7000000000.0, 8000000000.0)
    """
    if kind == "all_reduce":
        return size * 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return size * (ranks - 1) / ranks
    return size


class _Work:
    """One collective, with the rates and latencies that its formulas need."""

    def __init__(
        self, kind: str, size: Value, group: Group, topology: Topology, known: Constants, sms: Value, *, forced: bool
    ) -> None:
        self.forced = forced
        self.kind, self.size, self.group, self.topology, self.known, self.sms = kind, size, group, topology, known, sms
        self.ranks, self.domains = group.ranks, group.domains
        self.local = group.ranks / group.domains
        bridge = topology.bridge
        family = topology.family
        self.efficiency: Value = known[f"efficiency.{family}"]
        self.hop: Value = known["hop.link_s"]
        self.ramp: Value = known.get(f"ramp.link_s.{family}", known["ramp.link_s"])
        if bridge is not None:
            self.efficiency = where(group.span <= bridge.size, known[f"efficiency.{bridge.family}"], self.efficiency)
        self.net_ramp: Value = known.get(f"ramp.network_s.{topology.network}", known["ramp.network_s"])
        self.net_efficiency = known[f"network.efficiency.{topology.network}"]
        own = known[f"network.hop_s.{topology.network}"]
        self.net_hop: Value = own if topology.latency_s is None else maximum(own, topology.latency_s)

    @property
    def inside(self) -> Value:
        """Rate that a rank reaches inside its domain."""
        return self.topology.inside(self.group) * self.efficiency

    @property
    def outside(self) -> Value:
        """Rate that a domain's ranks of the group reach towards the other domains, together."""
        return self.topology.between(self.group) * self.net_efficiency

    @property
    def sent(self) -> Value:
        """Times that a tree sends the buffer out of a domain: up and down, but between two domains once each way.

        That takes a card for every accelerator: two DGX A100 with four cards reach 86 to 91 of 100 GB/s, a ring's
        (nccl-tests/issues/100 and 175; nccl/issues/1357 of H100).
        """
        own = self.topology.nics_per_node >= self.topology.gpus_per_node
        return where(self.domains > 2, 2.0, where(own, 1.0, 2.0))

    def transfer(self, size: Value, rate: Value, tau: Value) -> Value:
        """Seconds of ``size`` bytes at a rate that medium sizes do not reach."""
        ideal, q = size / rate, self.known["ramp.exponent"]
        return ideal + power(ideal, 1 - q) * tau**q

    def within(self, size: Value, rate: Value | None = None) -> Value:
        """Seconds on the link of a domain; none for a group with one rank in each domain."""
        return where(self.local > 1, self.transfer(size, self.inside if rate is None else rate, self.ramp), 0.0)

    def across(self, size: Value, share: float = 1.0) -> Value:
        """Seconds on the network of ``size`` bytes that one domain's ranks send together; none inside one domain."""
        return where(self.domains > 1, self.transfer(size, self.outside * share, self.net_ramp), 0.0)


def _ring(w: _Work) -> Value:
    """Ring over all ranks, as many as the domain has network cards: each edge carries the whole bus volume.

    2(n-1) steps for an all-reduce, n-1 for its halves (Thakur et al. 2005, section 4), of which 2(k-1) or k-1 between domains.
    Beyond one domain every step waits for the network's proxy (NCCL: net overhead).
    """
    steps, crossings = w.ranks - 1, w.domains - 1
    if w.kind == "all_reduce":
        steps, crossings = 2 * steps, 2 * crossings
    wire = bus_bytes(w.kind, w.size, w.ranks)
    hop = where(w.domains > 1, maximum(w.hop, w.known["network.step_s"]), w.hop)
    latency = (steps - crossings) * hop + crossings * w.net_hop
    return latency + maximum(w.within(wire), w.across(wire))


def _tree(w: _Work) -> Value:
    """Double binary tree of domains, a chain inside each (NCCL 2.4 and later; Sanders, Speck, Traeff 2009).

    A domain sends the buffer up and down: once in each direction between two, twice when it has two children.
    """
    latency = 2 * ((w.local - 1) * w.hop + log2(w.domains) * w.net_hop)
    share = w.known["tree.share"]
    inside = w.within(2 * w.size, w.inside * w.known["tree.link_share"])
    return latency + maximum(inside, w.across(w.size * w.sent, share))


def _nvls(w: _Work) -> Value:
    """Switches reduce and multicast: inside a domain the buffer is sent about once (NCCL's NVLS; NVLS-tree beyond one domain).

    Its rate grows with (n-1)/n as NCCL's own model has it; a rack's switches stay below ``nvls.rack_bus`` of the link.
    """
    k, local, family = w.known, w.local, w.topology.family
    nominal = w.topology.inside(w.group)
    part = (local - 1) / local
    rate = nominal * k["nvls.efficiency"] * part
    if family == "nvlink5":
        rate = minimum(rate, nominal * k["nvls.rack_bus"] / maximum(2 * part, 1.0))
    least = 2 if w.forced else k.get(f"nvls.min_ranks.{family}", 2)
    fits = (local >= least) if w.topology.nvls else (local < 0)
    inside = w.within(w.size, maximum(rate, 1.0))
    outside = w.across(w.size * w.sent, k["tree.share"])
    latency = k["nvls.latency_s"] + 2 * log2(w.domains) * w.net_hop
    return where(fits, latency + maximum(inside, outside), math.inf)


def _hierarchical(w: _Work) -> Value:
    """Phases one after the other: inside the domain, between domains on 1/local of the buffer a rank, inside again.

    Of the bus volume, (k-1)/(n-1) crosses the network where a flat ring sends all of it over every edge (BlueConnect, Cho et
    al. 2019); groups in one domain, or with one rank in each, are left with a plain ring.
    """
    passes = 2 if w.kind == "all_reduce" else 1
    inner, outer = w.local, w.domains
    wire_in = passes * w.size * (inner - 1) / inner
    wire_out = passes * w.size * (outer - 1) / outer
    latency = passes * ((inner - 1) * w.hop + (outer - 1) * w.net_hop)
    return latency + w.within(wire_in) + w.across(wire_out)


def _direct(w: _Work) -> Value:
    """Every rank sends to every other at once (grouped send and receive): link and network work side by side.

    On a torus each byte passes d/4 links along each of its axes of d chips.
    """
    n, local = w.ranks, w.local
    inside = w.size * (local - 1) / n
    outside = local * w.size * (n - local) / n
    share = w.known["all_to_all.share"]
    rate = w.inside * share
    if w.topology.torus:
        axes = w.topology.torus
        rate = rate / maximum(axes * power(local * 1.0, 1 / axes) / 4, 1.0)
    latency = (local - 1) * w.hop + (n - local) / local * w.net_hop
    return latency + maximum(w.within(inside, rate), w.across(outside, share))


def _two_hops(w: _Work) -> Value:
    """All-to-all in two phases: to the rank's peers in the other domains, then inside the domain."""
    share = w.known["all_to_all.share"]
    inner, outer = w.local, w.domains
    latency = (inner - 1) * w.hop + (outer - 1) * w.net_hop
    inside = w.within(w.size * (inner - 1) / inner, w.inside * share)
    return latency + inside + w.across(inner * w.size * (outer - 1) / outer, share)


def _deepep(w: _Work) -> Value:
    """Expert dispatch or combine by DeepEP's kernels: over the network to the rank of the same place, forwarded on the link.

    ``size`` counts what a rank sends in all, as DeepEP's own bandwidths do: of it (k-1)/k crosses the network.
    """
    k, outer = w.known, w.domains
    busy = w.sms / (w.sms + k["deepep.half_sms"])
    link = w.topology.inside(w.group) * k["deepep.link_efficiency"] * busy
    outside = w.transfer(
        w.local * w.size * (outer - 1) / outer,
        w.topology.between(w.group) * k["deepep.network_efficiency"],
        w.net_ramp,
    )
    inside = w.transfer(w.size, link, w.ramp)
    latency = w.hop + where(outer > 1, w.net_hop, 0.0)
    return latency + maximum(inside, where(outer > 1, outside, 0.0))


def _chain(w: _Work) -> Value:
    """Broadcast down a pipelined chain, or one message: the buffer passes each edge once."""
    steps, crossings = w.ranks - 1, w.domains - 1
    return (steps - crossings) * w.hop + crossings * w.net_hop + maximum(w.within(w.size), w.across(w.size))


def _of(kind: str) -> dict[str, Callable[[_Work], Value]]:
    """Algorithms of a kind, the usual one first."""
    if kind == "all_reduce":
        return {"ring": _ring, "tree": _tree, "nvls": _nvls, "hierarchical": _hierarchical}
    if kind in _REDUCED:
        return {"ring": _ring, "hierarchical": _hierarchical}
    if kind == "all_to_all":
        return {"direct": _direct, "hierarchical": _two_hops, "deepep": _deepep}
    return {"ring": _chain}


def regime(group: Group, topology: Topology) -> str:
    """Name the kind of error that a prediction has: ``link`` inside a domain, ``network`` beyond it, ``unstated`` network."""
    if group.domains <= 1:
        return "link"
    return "unstated" if topology.network == "unstated" else "network"


def interval(time: float, group: Group, topology: Topology) -> tuple[float, float]:
    """Return the 90 % interval of a prediction, from the residuals of measured runs of its kind."""
    low, high = calibration()["regimes"][regime(group, topology)]["log_error"]
    return time * math.exp(low), time * math.exp(high)
