"""Speed of a training run: model, machine, recipe and parallelism become seconds of a step with its ledger."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, ClassVar, Final

from foretell.arch._load import load_model
from foretell.arch.architecture import Architecture
from foretell.arch.workload import Workload
from foretell.core._device import check_precision, usual_precision
from foretell.core._notes import speed_notes
from foretell.core._validate import checked_run
from foretell.core.solver._result import Result
from foretell.cost.collectives import ALGORITHMS, SHAPES
from foretell.cost.routing import busiest_rank
from foretell.cost.software import interval_of, regime_of
from foretell.cost.step_time import Spent, StepTime
from foretell.cost.topology import Topology, congested, topology_of
from foretell.cost.training_time import Priced, price_run, training_time
from foretell.cost.utilisation import flat, overlapping, step_flops
from foretell.errors import InputError
from foretell.machine.fleet import Fleet, load_fleet
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.resolve import Run
from foretell.recipe.training import TrainingRecipe
from foretell.validation import choice, number

__all__ = ["CALIBRATED", "SpeedForecast", "checked_share", "speed"]

CALIBRATED: Final = "calibrated"
LIMITS: Final = {
    "compute": ("matmul", "experts", "attention"),
    "memory": ("stream", "optimizer"),
    "network": ("tensor_parallel", "expert_parallel", "context_parallel", "sharded_states", "gradients"),
    "bubble": ("bubble",),
    "host": ("host", "fixed", "data_loading", "stragglers"),
}
"""What holds a step up -> the terms of its ledger."""
_LONGEST_STEP_S: Final = 1e6
"""Longest measured step that is taken for one, about twelve days."""
_LEAST_SHARE: Final = 1e-6
"""Regime of what no measured run is like, as models that read images."""
SOURCES: Final = (
    "catalog/data/calibration/kernels.json",
    "catalog/data/calibration/collectives.json",
    "catalog/data/calibration/training.json",
)


@dataclass(frozen=True)
class SpeedForecast(Result):
    """What a step takes and where its time goes.  Seconds, tokens and samples of the whole job unless a name says per device."""

    title: ClassVar[str] = "step"

    step_s: float
    """One optimizer step."""
    interval_s: tuple[float, float]
    """90 % interval of the step."""
    samples_per_second: float
    tokens_per_second: float | None
    """None for models that read no tokens."""
    tokens_per_second_per_device: float | None
    mfu: float
    """Model FLOP/s utilisation, causal attention counted once (`6N + 6Lds` a token), over the peak of the products' format."""
    mfu_full_attention: float
    """The same by the convention that counts masked pairs too (`6N + 12Lds`)."""
    hfu: float
    """Hardware FLOP/s utilisation: everything that runs, recomputation included."""
    model_flops: float
    """FLOP of one step of the whole job, causal, without recomputation."""
    peak_flops_per_s: float
    """Of one device, that the utilisations are relative to."""
    breakdown: Mapping[str, float]
    """Term -> seconds of a step on the slowest rank; they sum to `step_s`."""
    bottleneck: str
    """compute, memory, network, bubble or host: the largest share."""
    shares: Mapping[str, float]
    """What holds the step up -> its share of it; they sum to 1."""
    bubble_s: float
    """Seconds in which a rank waits for the pipeline, the mean over ranks."""
    bubble_fraction: float
    communication_s: float
    """Seconds of all exchanges of a rank, hidden or not."""
    exposed_communication_s: float
    per_stage: tuple[Mapping[str, Any], ...]
    measured_step_s: float | None
    anchor: float | None
    """Measured seconds over forecast ones, by which everything was scaled; None where nothing was measured."""
    regime: str
    """Whose residuals the interval was set from."""
    notes: tuple[str, ...]
    assumed: tuple[str, ...]
    sources: tuple[str, ...] = SOURCES
    _time: StepTime | None = field(default=None, repr=False, compare=False)
    _run: Run | None = field(default=None, repr=False, compare=False)
    _priced: Priced | None = field(default=None, repr=False, compare=False)

    @property
    def run(self) -> Run:
        """The run with every choice made."""
        assert self._run is not None  # noqa: S101  # set by speed()
        return self._run

    @property
    def time(self) -> StepTime:
        """The step as the fold gave it, before stalls and anchors."""
        assert self._time is not None  # noqa: S101  # set by speed()
        return self._time

    @property
    def priced(self) -> Priced:
        """The run's passes on its machine."""
        assert self._priced is not None  # noqa: S101  # set by speed()
        return self._priced

    def explain(self) -> str:
        """Return the ledger as text."""
        lines = [f"{self.title} {self.step_s:.4g} s"]
        for name, spent in sorted(self.breakdown.items(), key=lambda item: -item[1]):
            if spent > 0:
                lines.append(f"  {name:18s} {spent:10.4g} s {100 * spent / self.step_s:5.1f} %")
        low, high = self.interval_s
        lines.append(f"90 % interval {low:.4g} to {high:.4g} s ({self.regime}); held up by {self.bottleneck}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def speed(
    workload: Workload | Architecture | str | os.PathLike[str] | Mapping[str, Any],
    hardware: HardwareNode | str | None = None,
    recipe: TrainingRecipe | None = None,
    parallelism: Parallelism | None = None,
    *,
    fleet: Fleet | str | None = None,
    topology: Topology | None = None,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    algorithm: str | None = None,
    efficiency: float | str = CALIBRATED,
    imbalance: float = 1.0,
    expert_spread: float = 0.0,
    jitter: float = 0.0,
    loader_s: float = 0.0,
    congestion: float = 1.0,
    overlap: float | None = None,
    straggler: float = 1.0,
    measured_step_s: float | None = None,
    explicit: Collection[str] = (),
) -> SpeedForecast:
    """Return how long a step of a training run takes, and what holds it up.

    `fleet` gives the machine and its network; `hardware` alone takes the reference network of its generation; `topology`
    comes before both.  `algorithm` forces one of the collectives' (ring, tree ...).

    `efficiency`: "calibrated" prices every kernel by its shape; a share of the peak (above 0, at most 1) replaces all kernels
    by their FLOP over that share, as the reference formula does.  `imbalance`: tokens of the busiest expert rank over the mean.
    `expert_spread`: coefficient of variation of the experts' loads, from which the busiest rank's is expected; the larger counts.
    `jitter`: relative standard deviation of a rank's step; the job waits for the slowest of its ranks.  `loader_s`: seconds in
    which the input pipeline delivers one step's batch: what is longer than the step is waited for.  `congestion` divides the
    network's bandwidth.  `overlap`: the largest share of gradients and parameters on their way that compute may hide, 0 to wait
    for every exchange (None: what the framework hides).  `straggler` multiplies the step.  `measured_step_s` re-scales everything
    to one measured step.

    Raises InputError or CombinationError for what cannot run.
    """
    model = load_model(workload)
    arch = model.architecture
    machine = load_fleet(fleet) if fleet is not None else None
    device = machine.accelerator if machine is not None and hardware is None else load_hardware(hardware or "h100")
    wanted = recipe if recipe is not None else TrainingRecipe(precision=usual_precision(device))
    run, _ = checked_run(arch, wanted, parallelism or Parallelism(), gpus=gpus, explicit=explicit)
    notes = list(check_precision(device, run.recipe.precision, run.recipe.compute_dtype))
    network = topology or topology_of(device, gpus_per_node, fleet=machine)
    slow = number(congestion, "congestion_factor", minimum=1.0)
    if slow > 1:
        network = congested(network, slow)
    if run.par.world > 1:
        notes += network.notes
    if algorithm is not None:
        choice(algorithm, "algorithm", (*ALGORITHMS, *SHAPES))
    hot = number(imbalance, "routing_imbalance_factor", minimum=1.0)
    uneven = number(expert_spread, "expert_spread", minimum=0.0, maximum=100.0)
    hot = max(hot, busiest_rank(uneven, arch.experts, run.par.ep))
    priced = price_run(arch, run, device, network, algorithm=algorithm, imbalance=hot)
    if efficiency != CALIBRATED:
        priced = flat(priced, checked_share(efficiency))
    found = _time(priced, run, overlap)
    slow = number(straggler, "straggler_factor", minimum=1.0) - 1.0
    slow += _slowest(number(jitter, "straggler", minimum=0.0, maximum=10.0), run.par.world)
    return _result(model, device.id, run, priced, found, slow, loader_s, measured_step_s, tuple(notes))


def _time(priced: Priced, run: Run, overlap: float | None) -> StepTime:
    """Return the step with as much hidden as is asked for; a flat step hides what its compute allows."""
    if overlap is None:
        return training_time(priced, run)
    hide = number(overlap, "overlap_efficiency", maximum=1.0)
    soft = overlapping(priced.software(run), hide, flat=priced.flat)
    return training_time(priced, run, soft, hide=hide)


def checked_share(efficiency: float | str) -> float:
    """Return a share of the peak."""
    if isinstance(efficiency, str):
        problem = "is neither a share of the peak nor 'calibrated'"
        raise InputError(problem, field="efficiency", value=efficiency, allowed="above 0, at most 1; 'calibrated'")
    return number(efficiency, "efficiency", minimum=_LEAST_SHARE, maximum=1.0)


def _result(
    model: Workload,
    device: str | None,
    run: Run,
    priced: Priced,
    found: StepTime,
    slow: float,
    loader_s: float,
    measured: float | None,
    notes: tuple[str, ...],
) -> SpeedForecast:
    world = run.par.world
    late = found.total * slow
    wait = max(0.0, number(loader_s, "loader_s", minimum=0.0, maximum=_LONGEST_STEP_S) - found.total - late)
    step = found.total + late + wait
    anchor = None
    if measured is not None:
        anchor = number(measured, "measured_step", minimum=1e-9, maximum=_LONGEST_STEP_S) / step
    scale = anchor or 1.0
    terms = {name: scale * value for name, value in _terms(found, run, late, wait).items()}
    step *= scale
    flops = step_flops(priced, run)
    peak = priced.device.low_peak
    samples = run.recipe.micro_batch * run.recipe.grad_accum * run.par.dp
    mfu, hfu = (x / (step * world * peak) for x in (flops.model, flops.executed))
    if mfu > 1 and measured is not None:
        problem = f"would be a model FLOP/s utilisation of {mfu:.0%}, which no device reaches"
        hint = "Check the unit, the number of devices and the batch"
        raise InputError(problem, field="measured_step", value=measured, hint=hint)
    tokens = samples * run.recipe.seq_len / step if model.architecture.reads_tokens else None
    shares = {limit: sum(terms.get(name, 0.0) for name in names) / step for limit, names in LIMITS.items()}
    regime = regime_of(run, model.architecture, device)
    low, high = interval_of(regime, anchored=anchor is not None)
    exposed = sum(terms[name] for name in LIMITS["network"])
    return SpeedForecast(
        step_s=step,
        interval_s=(step * low, step * high),
        samples_per_second=samples / step,
        tokens_per_second=tokens,
        tokens_per_second_per_device=None if tokens is None else tokens / world,
        mfu=mfu,
        mfu_full_attention=flops.full / (step * world * peak),
        hfu=hfu,
        model_flops=flops.model,
        peak_flops_per_s=peak,
        breakdown=terms,
        bottleneck=max(shares, key=lambda name: shares[name]),
        shares=shares,
        bubble_s=scale * found.bubble,
        bubble_fraction=scale * found.bubble / step,
        communication_s=scale * found.communication,
        exposed_communication_s=exposed,
        per_stage=tuple(_stage(i, s, scale) for i, s in enumerate(found.passes)),
        measured_step_s=measured,
        anchor=anchor,
        regime=regime,
        notes=tuple(dict.fromkeys((*run.profile.notes, *speed_notes(run), *notes))),
        assumed=_assumed(run, priced),
        _time=found,
        _run=run,
        _priced=priced,
    )


def _slowest(jitter: float, ranks: int) -> float:
    """Expected excess of the slowest of so many normal ranks over the mean, as a share of it (Blom 1958's scores).

    >>> round(_slowest(0.02, 1024), 3)
    0.065
    """
    if not jitter or ranks < 2:
        return 0.0
    return jitter * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _terms(found: StepTime, run: Run, late: float, wait: float) -> dict[str, float]:
    """Seconds of a step by what the slowest rank spends them on; the pipeline's rest is its bubble."""
    slowest = found.slowest
    m = run.recipe.grad_accum
    names = {
        "matmul": slowest.matmul,
        "experts": slowest.experts,
        "attention": slowest.attention,
        "stream": slowest.stream,
        "host": slowest.host,
        "tensor_parallel": slowest.tp,
        "expert_parallel": slowest.ep,
        "context_parallel": slowest.cp,
        "sharded_states": slowest.dp,
    }
    out = {name: float(m * spent) for name, spent in names.items()}
    out["bubble"] = max(0.0, found.pipeline - sum(out.values()))
    out |= {"gradients": found.reduction, "optimizer": found.optimizer, "fixed": found.fixed}
    return out | {"stragglers": late, "data_loading": wait}


def _stage(index: int, spent: Spent, scale: float) -> dict[str, Any]:
    return {"stage": index, "micro_batch_s": scale * spent.total}


def _assumed(run: Run, priced: Priced) -> tuple[str, ...]:
    """Choices that were left open, with what was taken for each."""
    out = []
    if run.recipe.date == "":
        out.append("software of today")
    if run.par.tp > 1 and run.recipe.tp_comm_overlap is None:
        out.append(f"tensor-parallel overlap {'on' if run.profile.tp_comm_overlap else 'off'} ({run.profile.name}'s default)")
    if run.par.ep > 1 and (priced.pricer is None or priced.pricer.imbalance == 1):
        out.append("tokens spread evenly over the experts")
    return tuple(out)
