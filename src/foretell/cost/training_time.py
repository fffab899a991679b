"""Training time of one run: works priced for a machine, then put together as a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from foretell.arch.architecture import Architecture
from foretell.cost.arrays import Value
from foretell.cost.evaluate import Basis
from foretell.cost.kernels import Device, Efficiency
from foretell.cost.pass_time import Network, Pricer
from foretell.cost.placement import place
from foretell.cost.software import Software, efficiency, software
from foretell.cost.stage_time import StageCost, StageWorks, low_format, price, stage_works
from foretell.cost.step_time import StepTime, step_time
from foretell.cost.topology import Topology
from foretell.cost.training_memory import sizes_of
from foretell.cost.weights import unit
from foretell.machine.hardware import HardwareNode
from foretell.recipe.resolve import Run

__all__ = ["Priced", "clock_loss", "device_of", "price_run", "tp_overlap", "training_time"]

_STORED = {"fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Which peak a low-precision format has."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A run's passes on a machine, before software adds to them."""

    costs: tuple[StageCost, ...]
    device: Device
    efficiency: Efficiency
    transfer: Value
    """Seconds of sending one micro-batch's activations to the next stage."""
    compute_capability: str | None
    pricer: Pricer | None = field(default=None, repr=False, compare=False)
    """What priced the kernels."""
    clock: float = 1.0
    """Seconds of arithmetic over those of the generation's reference board, for want of power."""
    flat: bool = False
    """Kernels are FLOP over one rate: software's corrections of them do not apply."""

    def software(self, run: Run, known: Mapping[str, float] | None = None) -> Software:
        """Return the constants of a run on this machine."""
        soft = software(run, self.compute_capability, known)
        if self.flat:
            return replace(soft, matmul=1.0, maturity=1.0, launch=0.0, call=0.0, checkpoint=0.0, route=0.0, fixed=0.0)
        low = soft.low if self.device.low_peak != self.device.peak else 1.0  # experts run in the low format too
        return replace(soft, matmul=soft.matmul * self.clock, attention=soft.attention * self.clock, experts=soft.experts * low)


def device_of(hardware: HardwareNode, run: Run) -> Device:
    """Return the rates that a run's kernels have; InputError where the device lacks the format."""
    compute = run.formats.compute
    peak = hardware.peak("tf32" if compute == "fp32" and "tf32" in hardware.peak_flops else compute)
    low = low_format(run)
    low_peak = hardware.peak(_STORED[low]) if low else peak
    processors = float(hardware.sm_count or round(peak / 7e12) or 1)
    return Device(peak, low_peak, hardware.memory_bandwidth_bytes_per_s, processors)


WATTS_PER_FLOPS = {"9": 700.0 / 989.4e12, "10": 1000.0 / 2250e12}
"""Board power over the dense half-precision peak of the boards that kernels were measured on (H100 SXM, B200)."""
POWER_EXPONENT = 0.4
"""Clock over power near the limit: power grows with clock times voltage squared, so with the clock to the 2 to 3."""


def clock_loss(hardware: HardwareNode) -> float:
    """Return seconds of arithmetic over those of a board with the reference's power.

    Products run at the power limit from Hopper on; a board of the same silicon with fewer watts for its nominal peak (H100 PCIe,
    350 W) clocks lower under load.
    """
    reference = WATTS_PER_FLOPS.get((hardware.compute_capability or "").split(".")[0])
    peak = hardware.peak_flops.get("bf16")
    if reference is None or hardware.tdp_w is None or not peak:
        return 1.0
    return float(max(1.0, reference * peak / hardware.tdp_w) ** POWER_EXPONENT)


def price_run(
    arch: Architecture,
    run: Run,
    hardware: HardwareNode,
    topology: Topology,
    *,
    algorithm: str | None = None,
    imbalance: float = 1.0,
    works: Sequence[StageWorks] | None = None,
) -> Priced:
    """Price every pass of a run.  With the ``works`` of a run of its kind, its sizes and degrees may be arrays.

    ``imbalance``: tokens of the busiest expert rank over the mean.  ``algorithm`` forces one of the collectives'.
    """
    par, recipe = run.par, run.recipe
    sizes = sizes_of(run)
    basis = Basis(sizes)
    groups = place(topology, tp=par.tp, cp=par.cp, ep=par.ep, dp=par.dp, pp=par.pp, etp=par.expert_tp, replicas=par.hsdp_replicas)
    limit = arch.config.get("topk_group")
    network = Network(
        topology,
        groups,
        algorithm,
        deduplicated=recipe.dispatcher != "alltoall",
        flex=recipe.dispatcher == "flex",
        limit=int(limit) if isinstance(limit, int) else 0,
    )
    device = device_of(hardware, run)
    share = efficiency(hardware.compute_capability, hardware.id)
    pricer = Pricer(
        device,
        share,
        sizes,
        basis,
        network,
        gradient=unit(run.formats.grad) if run.style.main_grad_fusion else unit(run.formats.wgrad),
        accumulate=1.0 if run.style.main_grad_fusion else 0.0,
        low=1.0 if low_format(run) else 0.0,
        imbalance=imbalance,
    )
    costs = price(stage_works(arch, run) if works is None else works, run, pricer)
    transfer: Value = 0.0
    if par.pp > 1:
        whole = basis["T/1"] * arch.hidden * run.style.residual
        # Megatron scatters what it sends over its tensor group, and so does DeepSpeed's engine (``pipe_partitioned``)
        split = par.tp if par.sp or run.profile.megatron or run.profile.pipe_buffers else 1.0
        transfer = network.seconds("p2p", whole / split, groups.pp)
        if not par.sp and split is par.tp:
            transfer = transfer + network.seconds("all_gather", whole, groups.tp)
    return Priced(costs, device, share, transfer, hardware.compute_capability, pricer, clock_loss(hardware))


def tp_overlap(run: Run) -> bool:
    """Whether tensor-parallel exchanges are pipelined with the products beside them: only under sequence parallelism."""
    given = run.recipe.tp_comm_overlap
    wanted = run.profile.tp_comm_overlap if given is None else given
    return bool(wanted and run.par.sp and run.par.tp > 1)


def training_time(priced: Priced, run: Run, soft: Software | None = None, *, hide: Value = 1.0) -> StepTime:
    """Return the seconds of a step of a priced run (``hide``: see ``step_time``)."""
    return step_time(
        priced.costs,
        run,
        soft or priced.software(run),
        priced.device,
        priced.efficiency,
        transfer=priced.transfer,
        micro_batches=run.recipe.grad_accum,
        tp_overlap=tp_overlap(run),
        hide=hide,
    )
