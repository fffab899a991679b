"""Seconds of many training steps of one kind: passes priced for distinct sizes, steps put together for every row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from foretell.core.solver._profile import roof_columns
from foretell.core.solver._training import algorithm_of, hidden_share
from foretell.core.speed import CALIBRATED, checked_share
from foretell.cost.pass_time import Pass, Passes
from foretell.cost.stage_time import Reduction, StageCost, stage_works
from foretell.cost.step_time import step_time
from foretell.cost.topology import Topology, congested, topology_of
from foretell.cost.training_time import Priced, price_run, tp_overlap
from foretell.cost.utilisation import flat, overlapping, step_flops, step_roofs
from foretell.validation import number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.architecture import Architecture
    from foretell.core.solver._sizes import Sized
    from foretell.machine.fleet import Fleet
    from foretell.machine.hardware import HardwareNode
    from foretell.recipe.resolve import Run

__all__ = ["HEADROOM", "Knobs", "knobs_of", "timed"]

HEADROOM: Final = 0.10
"""Share of the available memory that a verdict of "fits" leaves free."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a step is timed with beside its run."""

    share: float | None
    """Of the peak; None: calibrated."""
    hide: float
    algorithm: str | None
    topology: Topology
    straggler: float
    imbalance: float


def knobs_of(settings: Mapping[str, Any], fleet: Fleet) -> Knobs:
    """Return checked knobs of settings."""
    efficiency = settings["efficiency"]
    slow = number(settings["congestion_factor"], "congestion_factor", minimum=1.0)
    network = topology_of(fleet.accelerator, fleet=fleet)
    if slow > 1:
        network = congested(network, slow)
    return Knobs(
        None if efficiency == CALIBRATED else checked_share(efficiency),
        hidden_share(settings),
        algorithm_of(settings),
        network,
        number(settings["straggler_factor"], "straggler_factor", minimum=1.0),
        number(settings["moe_routing_imbalance_factor"], "moe_routing_imbalance_factor", minimum=1.0),
    )


def timed(
    arch: Architecture, run: Run, sizes: Sized, place: NDArray[Any], accum: NDArray[Any], device: HardwareNode, knobs: Knobs
) -> dict[str, Any]:
    """Return the columns of rows whose sizes are those at `place`, with `accum` micro-batches each."""
    few = sizes.array_run(run, 1)
    priced = price_run(
        arch,
        few,
        device,
        knobs.topology,
        algorithm=knobs.algorithm,
        imbalance=knobs.imbalance,
        works=stage_works(arch, run),
    )
    if knobs.share is not None:
        priced = flat(priced, knobs.share)
    wide = priced if len(place) == sizes.rows else _spread(priced, place)  # places are in order: all are there once
    many = sizes.take(place).array_run(run, accum)
    soft = overlapping(priced.software(run), knobs.hide, flat=priced.flat)
    found = step_time(
        wide.costs,
        many,
        soft,
        wide.device,
        wide.efficiency,
        transfer=wide.transfer,
        micro_batches=accum,
        tp_overlap=tp_overlap(run),
        hide=knobs.hide,
    )
    step = found.total * knobs.straggler
    own, sent, world = found.slowest, found.exchanged, many.par.world
    peak = world * priced.device.low_peak
    flops, roofs = step_flops(wide, many), step_roofs(wide, many, found, knobs.share)
    return {
        "step_latency_total_s": step,
        "effective_throughput_per_s": many.recipe.micro_batch * accum * many.par.dp / step,
        "mfu": flops.model / (step * peak),
        "hfu": flops.executed / (step * peak),
        "scaling_efficiency": roofs.latency / step,
        "dp_communication_latency_s": sent.dp,
        "tp_communication_latency_s": sent.tp,
        "pp_communication_latency_s": sent.pp,
        "ep_communication_latency_s": sent.ep,
        "cp_communication_latency_s": sent.cp,
        "communication_latency_s": sent.dp + sent.tp + sent.pp + sent.ep + sent.cp,
        "exposed_communication_latency_s": accum * (own.tp + own.ep + own.cp + own.dp) + found.reduction,
        "pipeline_bubble_latency_s": found.bubble,
        "bubble_fraction": found.bubble / step,
    } | {f"node_{name}": values for name, values in roof_columns(roofs, device.tdp_w).items()}


def _spread(priced: Priced, place: NDArray[Any]) -> Priced:
    """Return passes of distinct sizes at the rows that have them; parts that are shared stay shared."""
    made: dict[int, Any] = {}

    def spread(part: Any) -> Any:
        if hasattr(part, "dtype"):
            if id(part) not in made:
                made[id(part)] = part[place]
        elif isinstance(part, tuple):
            return tuple(spread(item) for item in part)
        elif not isinstance(part, StageCost | Reduction | Passes | Pass):
            return part
        elif id(part) not in made:
            made[id(part)] = replace(part, **{f.name: spread(getattr(part, f.name)) for f in fields(part)})
        return made[id(part)]

    return replace(priced, costs=spread(priced.costs), transfer=spread(priced.transfer), pricer=None)
