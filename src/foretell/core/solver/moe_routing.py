"""MoERoutingModel: what routed experts cost: the experts that a batch visits, the bytes it sends, and how long that takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from foretell.arch._load import load_model
from foretell.arch.architecture import Architecture
from foretell.arch.workload import Workload
from foretell.core.solver._result import Result
from foretell.cost.arrays import Value
from foretell.cost.collectives import interval
from foretell.cost.pass_time import Network
from foretell.cost.placement import Placement, place
from foretell.cost.routing import (
    PASSES,
    ExpertLayers,
    busiest_experts,
    busiest_parameters,
    exchanged_bytes,
    exchanged_seconds,
    expert_layers,
    unvisited_parameters,
    visited,
)
from foretell.cost.topology import Topology, topology_of
from foretell.dtypes import dtype
from foretell.errors import CombinationError, InputError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.validation import MAX_SEQUENCE, number, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["MoERoutingModel", "MoERoutingResult"]

COMBINED = 2.0
"""Bytes per element of results on their way back: they are summed, so they stay at 16 bits (DeepSeek-V3, arXiv 2412.19437,
section 3.3.3)."""


@dataclass(frozen=True)
class MoERoutingResult(Result):
    """Routed experts under one rank's batch.  Bytes and seconds; the names without `_s` and `_bytes` are pint quantities."""

    title: ClassVar[str] = "dispatch and combine"

    effective_active_experts: float
    """Experts' work for a token on the busiest rank: top-k times the imbalance, at most all of them."""
    effective_active_parameters: float
    """Parameters' work for a token on the busiest rank: what every token visits, and so many experts of each layer."""
    active_parameter_multiplier: float
    """That over the parameters that a token visits."""
    visited_experts: float
    """Of each layer, by any of the batch's tokens, on average: whose weights are read."""
    visited_parameters: float
    """Of the whole model: what every token visits, and those experts."""
    token_dispatch_bytes: float
    """What a rank sends to other ranks in a step: dispatch and combine, forward and backward, in every layer with experts."""
    all_to_all_latency_s: float | None
    """Of all those exchanges, one after the other; None without a fleet."""
    interval_s: tuple[float, float] | None
    """90 % interval of it."""
    exchanges: int
    """Collectives in a step."""
    expert_layers: int
    """Layers with routed experts."""
    experts: int
    """Of one layer."""
    experts_per_token: int
    """Top-k."""
    ep_size: int
    """Ranks that share the experts."""
    routing_imbalance_factor: float
    """Tokens of the busiest rank over the mean."""
    constraint_trace: list[str]
    """How the exchanges are counted."""
    notes: list[str]
    """Assumptions made, terms left out."""

    def explain(self) -> str:
        """Return what is sent and read as text."""
        lines = [
            f"{self.title}: {self.token_dispatch_bytes / 1e9:.4g} GB a rank and step in {self.exchanges} exchanges",
            f"  experts visited in a layer {self.visited_experts:.4g} of {self.experts}",
            f"  parameters of a token's work {self.effective_active_parameters:.4g}",
        ]
        if self.all_to_all_latency_s is not None:
            lines.insert(1, f"  {self.all_to_all_latency_s:.4g} s over {self.ep_size} ranks")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


class MoERoutingModel:
    """What do routed experts cost?

    `batch_size` is the number of sequences of `seq_len` tokens that each rank of the expert-parallel group routes at a time (its
    micro-batch).  Each of the layers with experts sends tokens to their experts and results back, forward and backward: four
    exchanges a layer.  `precision` is the width in which tokens are sent; results come back in 16 bits at least.
    `routing_imbalance_factor`: tokens of the busiest rank over the mean.  Without `fleet` there are bytes and no seconds.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        batch_size: int,
        seq_len: int,
        precision: str = "fp16",
        ep_size: int = 1,
        routing_imbalance_factor: float = 1.0,
        fleet: Fleet | str | os.PathLike[str] | None = None,
    ) -> MoERoutingResult:
        """Answer for one batch; InputError or CombinationError for what cannot be routed so."""
        workload = load_model(model)
        arch = workload.architecture
        system = None if fleet is None else load_fleet(fleet)
        batch = positive_int(batch_size, "batch_size")
        tokens = batch * positive_int(seq_len, "seq_len", maximum=MAX_SEQUENCE)
        ep = positive_int(ep_size, "ep_size")
        hot = number(routing_imbalance_factor, "routing_imbalance_factor", minimum=1.0)
        asked = Asked.of(arch, precision, system)
        for broken, why in asked.broken(ep):
            if broken:
                raise CombinationError(why, field="ep_size", value=ep)
        found = asked.figures(tokens, ep, hot)
        seconds = found.get("all_to_all_latency_s")
        one = asked.layers[0]
        trace = [f"{asked.exchanges} exchanges: {PASSES} x dispatch and combine in {asked.count} layers with experts"]
        return MoERoutingResult(
            effective_active_experts=found["effective_active_experts"],
            effective_active_parameters=found["effective_active_parameters"],
            active_parameter_multiplier=found["active_parameter_multiplier"],
            visited_experts=found["visited_experts"],
            visited_parameters=found["visited_parameters"],
            token_dispatch_bytes=found["token_dispatch_bytes"],
            all_to_all_latency_s=seconds,
            interval_s=None if seconds is None else asked.interval(seconds, ep),
            exchanges=asked.exchanges if ep > 1 else 0,
            expert_layers=asked.count,
            experts=one.experts,
            experts_per_token=one.top_k,
            ep_size=ep,
            routing_imbalance_factor=hot,
            constraint_trace=trace,
            notes=asked.notes(workload),
        )

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason.
        """
        from foretell.core.solver._routing_sweep import sweep  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep(load_model(model).architecture, axes, product=product)


@dataclass(frozen=True, slots=True)
class Asked:
    """A model, a format and a fleet, ready for numbers or arrays of tokens, ranks and imbalance."""

    arch: Architecture
    layers: tuple[ExpertLayers, ...]
    dispatch: float
    combine: float
    topology: Topology | None
    world: int | None

    @classmethod
    def of(cls, arch: Architecture, precision: str, fleet: Fleet | None) -> Asked:
        """Check what does not depend on numbers."""
        layers = expert_layers(arch)
        if not layers:
            raise InputError("has no routed experts", field="model", value=arch.name)
        unit = float(dtype(precision, "precision").bytes_per_element)
        topology = None if fleet is None else topology_of(fleet.accelerator, fleet=fleet)
        world = None if fleet is None else fleet.total_accelerators
        return cls(arch, layers, unit, max(unit, COMBINED), topology, world)

    @property
    def count(self) -> int:
        """Layers with experts."""
        return sum(layer.layers for layer in self.layers)

    @property
    def exchanges(self) -> int:
        """Collectives in a step."""
        return 2 * PASSES * self.count

    def broken(self, ep: Value) -> list[tuple[Value, str]]:
        """Return each rule, and where it is broken."""
        counts = sorted({layer.experts for layer in self.layers})
        out: list[tuple[Value, str]] = [(count % ep != 0, f"must divide the model's {count} experts") for count in counts]
        if self.world is not None:
            out.append((self.world % ep != 0, f"must divide the fleet's {self.world} accelerators"))
        return out

    def groups(self, ep: Value) -> Placement:
        """Return the groups of the fleet's ranks, experts side by side."""
        assert self.topology is not None  # noqa: S101  # asked for where there is a fleet
        return place(self.topology, ep=ep, dp=self.world)

    def figures(self, tokens: Value, ep: Value, hot: Value) -> dict[str, Any]:
        """Return the numbers of the answer."""
        one, active, every = self.layers[0], float(self.arch.active_parameters), float(self.arch.parameters)
        busy = busiest_parameters(self.layers, active, hot)
        out = {
            "effective_active_experts": busiest_experts(one, hot),
            "effective_active_parameters": busy,
            "active_parameter_multiplier": busy / active,
            "visited_experts": visited(float(one.experts), float(one.top_k), tokens),
            "visited_parameters": every - unvisited_parameters(self.layers, tokens),
            "token_dispatch_bytes": exchanged_bytes(self.layers, tokens, ep, hot, self.dispatch, self.combine),
        }
        if self.topology is not None:
            groups = self.groups(ep)
            network = Network(self.topology, groups, deduplicated=True)
            out["all_to_all_latency_s"] = exchanged_seconds(
                self.layers, tokens, hot, self.dispatch, self.combine, network, groups.ep
            )
        return out

    def interval(self, seconds: float, ep: int) -> tuple[float, float]:
        """Return the 90 % interval of a time on the fleet."""
        assert self.topology is not None  # noqa: S101
        return interval(seconds, self.groups(ep).ep, self.topology)

    def notes(self, workload: Workload) -> list[str]:
        """Return what was assumed."""
        out = ["a token's experts are drawn evenly, so that a layer's visits follow E (1 - (1 - k/E)^T)"]
        if self.topology is None:
            out.append("no fleet given: bytes without seconds")
        else:
            out += [*self.topology.notes, "across domains a token is sent once to each domain that holds one of its experts"]
        return [*workload.notes, *out]
