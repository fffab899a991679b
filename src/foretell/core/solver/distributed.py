"""DistributedModel: a training step on a fleet, its seconds and whether it fits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core._request import DEFAULTS, GivenInt
from foretell.core._verdict import fits_and_fails, regime_of, verdict_of
from foretell.core.levels import levels
from foretell.core.solver._profile import PerformanceProfile
from foretell.core.solver._result import Result
from foretell.core.solver._training import (
    KNOBS,
    algorithm_of,
    check_names,
    hidden_share,
    memory_trace,
    node_profile,
    replicas,
    request_of,
    steps_of,
)
from foretell.core.speed import CALIBRATED, SpeedForecast, speed
from foretell.cost.overheads import available_bytes
from foretell.cost.power import NOTE
from foretell.errors import InfeasibleError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.validation import flag, number

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["DistributedModel", "DistributedResult"]

HEADROOM = 0.10


@dataclass(frozen=True)
class DistributedResult(Result):
    """One optimizer step of a job on a fleet.  Seconds and bytes; the names without `_s` and `_bytes` are pint quantities."""

    title: ClassVar[str] = "step"

    feasible: bool
    """Every rank's total is within what a process can use (see `verdict` for the interval)."""
    step_latency_total_s: float
    """One optimizer step."""
    interval_s: tuple[float, float]
    """90 % interval of the step."""
    node_profile: PerformanceProfile
    """What one device does between its exchanges."""
    dp_communication_latency_s: float
    """Gradients and parameters, seconds of a rank's exchanges in a step, hidden or not; so are the next four."""
    tp_communication_latency_s: float
    """Activations of layers whose matrices are divided, forward, backward and computed again."""
    pp_communication_latency_s: float
    """Activations and gradients that a rank sends to its neighbouring stages."""
    ep_communication_latency_s: float
    """Dispatch and combine of routed tokens, forward and backward, in every layer with experts."""
    cp_communication_latency_s: float
    """Keys and values that pass round the ranks of one sequence."""
    communication_latency_s: float
    """Sum of the five."""
    exposed_communication_latency_s: float
    """What of it no compute hides; what ranks wait for between stages is part of the bubble."""
    pipeline_bubble_latency_s: float
    """Seconds in which a rank waits for the pipeline, the mean over ranks, transfers included."""
    bubble_fraction: float
    """Of the step."""
    scaling_efficiency: float
    """A device's own work over the step."""
    effective_throughput_per_s: float
    """Samples a second of the whole job."""
    tokens_per_second: float | None
    """None for models that read no tokens."""
    tokens_per_second_per_device: float | None
    """The same over the fleet's accelerators."""
    mfu: float
    """Model FLOP/s utilisation: causal attention counted once, no recomputation (`6N + 6Lds` a token), over the peak."""
    mfu_full_attention: float
    """The same with masked pairs counted (`6N + 12Lds`), as Megatron-LM and PaLM report it."""
    hfu: float
    """Hardware FLOP/s utilisation: all that runs, recomputation included."""
    bottleneck: str
    """compute, memory, network, bubble or host: the largest share of the step."""
    breakdown_s: Mapping[str, float]
    """Term -> seconds on the slowest rank; they sum to the step."""
    total_memory_bytes: float
    """Of the process on the rank that needs most."""
    available_memory_bytes: int
    """What processes can use of a device."""
    memory_utilization: float
    """Total over available."""
    verdict: str
    """fits, uncertain or does_not_fit: the memory's interval and 10 % headroom considered."""
    micro_batch: int
    """Samples of a replica at a time."""
    micro_batches: int
    """Of each replica in a step."""
    efficiency: float | str
    """The share of the peak that was given, or calibrated."""
    parallelism: Mapping[str, int]
    """Degrees: dp, tp, pp, cp, ep and the world."""
    constraint_trace: list[str]
    """Where memory peaks, whether it fits, and what holds the step up."""
    notes: list[str]
    """Assumptions made, terms left out."""
    assumed: tuple[str, ...]
    """Choices that were not given, with what was taken."""
    sources: tuple[str, ...]
    """Files of the constants."""
    _speed: SpeedForecast | None = field(default=None, repr=False, compare=False)

    def explain(self) -> str:
        """Return the step's ledger as text, then memory."""
        timed = self._speed.explain() if self._speed is not None else super().explain()
        return "\n".join([timed, *self.constraint_trace])


class DistributedModel:
    """How long does a training step take on a fleet, what of it is communication and bubble, and does it fit?

    `batch_size` is the global batch (samples an optimizer step).  The data-parallel degree is what tp, pp and cp leave of the
    fleet's accelerators; experts are carved out of dp x cp (x tp).  `microbatch_count` and `gradient_accumulation_steps` name
    the same thing, the micro-batches of a replica in a step: micro-batch = batch_size / (dp x count) must be whole.

    `efficiency`: a share of the peak that all kernels reach, as the reference's formula has it; "calibrated" prices each by its
    shape.
    `overlap_comm=False` waits for every exchange; True hides up to `overlap_efficiency` of gradients and parameters on
    their way, and no more than there is compute to hide them behind.  `topology_override` forces an algorithm (ring, tree,
    nvls, hierarchical) on collectives that have it, or the shape of the fabric (fat-tree, torus).  `congestion_factor`
    divides the network's bandwidth, `straggler_factor` multiplies the step; `is_lora` trains adapters of rank `lora_rank` on
    the attention's projections; `activation_recomputation` runs every layer's forward pass again.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        fleet: Fleet | str | os.PathLike[str],
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        tp_size: int = 1,
        pp_size: int = 1,
        ep_size: int = 1,
        v_stages: int = 1,
        microbatch_count: int = 1,
        topology_override: str | None = None,
        zero_stage: int = DEFAULTS["zero_stage"],
        is_lora: bool = False,
        activation_recomputation: bool = False,
        overlap_comm: bool = False,
        overlap_efficiency: float = 0.85,
        congestion_factor: float = 1.0,
        straggler_factor: float = 1.0,
        moe_routing_imbalance_factor: float = 1.0,
        gradient_accumulation_steps: int = 1,
        seq_len: int = DEFAULTS["seq_len"],
        *,
        raise_errors: bool = False,
        **more: Any,  # the settings of TrainingMemoryModel that the reference lacks
    ) -> DistributedResult:
        """Answer for one run.

        Further settings: activation_checkpointing (none, selective, full: replaces activation_recomputation), lora_rank,
        and those of TrainingMemoryModel: framework, optimizer, cp_size, etp_size, sequence_parallel, sharding, schedule ...
        Raises InputError or CombinationError for what cannot run, InfeasibleError for what does not fit where asked to.
        """
        given = DEFAULTS | KNOBS | {
            "batch_size": batch_size,
            "precision": precision,
            "efficiency": efficiency,
            "tp_size": tp_size,
            "pp_size": pp_size,
            "ep_size": ep_size,
            "v_stages": v_stages,
            "topology_override": topology_override,
            "zero_stage": zero_stage,
            "is_lora": is_lora,
            "activation_recomputation": activation_recomputation,
            "overlap_comm": overlap_comm,
            "overlap_efficiency": overlap_efficiency,
            "seq_len": seq_len,
        }  # fmt: skip
        check_names(more)
        given |= more
        system, workload = load_fleet(fleet), load_model(model)
        arch, device = workload.architecture, system.accelerator
        dp = replicas(system.total_accelerators, tp_size, pp_size, given["cp_size"])
        recipe, par = request_of(arch, given, dp, steps_of(microbatch_count, gradient_accumulation_steps))
        found = speed(
            workload,
            recipe=recipe,
            parallelism=par,
            fleet=system,
            algorithm=algorithm_of(given),
            efficiency=efficiency,
            imbalance=number(moe_routing_imbalance_factor, "moe_routing_imbalance_factor", minimum=1.0),
            congestion=congestion_factor,
            straggler=straggler_factor,
            overlap=hidden_share(given),
            explicit=() if isinstance(seq_len, GivenInt) else ("seq_len",),
        )
        memory, available = levels(arch, found.run, device), available_bytes(device)
        total = memory.peak.total
        spread = regime_of(workload, found.run, device)
        result = _result(
            found,
            profile=node_profile(found, device, arch, memory, available, efficiency, [NOTE]),
            total=total,
            available=available,
            verdict=verdict_of(*fits_and_fails(total, spread, available, HEADROOM)),
            trace=[*memory_trace(memory, par.pp, available), _held_up(found)],
            efficiency=efficiency,
            waits=not overlap_comm,
        )
        if raise_errors and not result.feasible:
            raise InfeasibleError(result.constraint_trace[1], required_bytes=total, available_bytes=available)
        return result

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        fleet: Fleet | str | os.PathLike[str],
        *,
        product: bool = True,
        profile: bool = False,
        **axes: Any,  # any setting of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason, those that do not fit are not `feasible`.  `profile=True` adds
        the numbers of `node_profile` as columns `node_...`.
        """
        from foretell.core.solver._distributed_sweep import sweep  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        check_names(axes)
        return sweep(model, fleet, axes, product=product, profile=flag(profile, "profile"))


def _held_up(found: SpeedForecast) -> str:
    share = found.shares[found.bottleneck]
    return f"step {found.step_s:.4g} s, held up by {found.bottleneck} ({share:.0%}); bubble {found.bubble_fraction:.0%}"


def _result(
    found: SpeedForecast,
    *,
    profile: PerformanceProfile,
    total: float,
    available: int,
    verdict: str,
    trace: list[str],
    efficiency: float | str,
    waits: bool,
) -> DistributedResult:
    run, step, sent = found.run, found.step_s, found.time.exchanged
    par = run.par
    notes = [*found.notes, NOTE]
    if efficiency != CALIBRATED:
        notes.append("every kernel runs at the stated share of the peak; the interval takes that share as given")
    if waits and par.world > 1:
        notes.append("overlap_comm=False waits for every exchange; frameworks hide some: True hides as much as compute allows")
    return DistributedResult(
        feasible=total <= available,
        step_latency_total_s=step,
        interval_s=found.interval_s,
        node_profile=profile,
        dp_communication_latency_s=sent.dp,
        tp_communication_latency_s=sent.tp,
        pp_communication_latency_s=sent.pp,
        ep_communication_latency_s=sent.ep,
        cp_communication_latency_s=sent.cp,
        communication_latency_s=sent.dp + sent.tp + sent.pp + sent.ep + sent.cp,
        exposed_communication_latency_s=found.exposed_communication_s,
        pipeline_bubble_latency_s=found.bubble_s,
        bubble_fraction=found.bubble_fraction,
        scaling_efficiency=profile.latency_s / step,
        effective_throughput_per_s=found.samples_per_second,
        tokens_per_second=found.tokens_per_second,
        tokens_per_second_per_device=found.tokens_per_second_per_device,
        mfu=found.mfu,
        mfu_full_attention=found.mfu_full_attention,
        hfu=found.hfu,
        bottleneck=found.bottleneck,
        breakdown_s=found.breakdown,
        total_memory_bytes=total,
        available_memory_bytes=available,
        memory_utilization=total / available,
        verdict=verdict,
        micro_batch=run.recipe.micro_batch,
        micro_batches=run.recipe.grad_accum,
        efficiency=efficiency,
        parallelism={"dp": par.dp, "tp": par.tp, "pp": par.pp, "cp": par.cp, "ep": par.ep, "world": par.world},
        constraint_trace=trace,
        notes=list(dict.fromkeys(notes)),
        assumed=found.assumed,
        sources=found.sources,
        _speed=found,
    )
