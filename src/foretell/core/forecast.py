"""Training memory of a run: model, device, recipe and parallelism become a verdict with its ledger."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args

from foretell.arch._load import load_model
from foretell.arch.architecture import Architecture
from foretell.arch.workload import Workload
from foretell.core._device import check_precision, usual_precision
from foretell.core._notes import assumptions, host_notes, run_notes
from foretell.core._terms import TERMS, formula, merged
from foretell.core._validate import checked_run
from foretell.core._verdict import fits_and_fails, regime_of, verdict_of
from foretell.core.levels import Levels, StageLevels, levels
from foretell.core.solver._result import Result, Term, gib, wrapped
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.host_memory import Load, default_load, host_memory
from foretell.cost.memory import StageFold
from foretell.cost.overheads import available_bytes, interval, p_oom
from foretell.cost.training_memory import fold_run, highest, sizes_of
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.resolve import Run
from foretell.recipe.training import TrainingRecipe
from foretell.validation import choice, flag, number, positive_int

__all__ = ["Forecast", "forecast"]

VERDICTS: Final = ("fits", "does_not_fit", "uncertain")
_RANKS_PER_NODE = 8


@dataclass(frozen=True)
class Forecast(Result):
    """What a run will hold on its devices.  Bytes; `total` is what a process takes (nvidia-smi's figure)."""

    title: ClassVar[str] = "total per device"

    verdict: str
    """fits: the point plus headroom and the interval's upper end are within what is available; does_not_fit:
    its lower end is above it; uncertain: neither."""
    fits: bool
    p_oom: float
    """Probability that the process needs more than is available."""
    total_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    interval_bytes: tuple[float, float]
    """90 % interval of the total."""
    available_bytes: int
    """What the processes on one device can use, before headroom."""
    headroom_bytes: float
    peak_phase: str
    peak_operator: str
    stage: int
    """Pipeline rank that needs most."""
    breakdown: Mapping[str, float]
    """Term -> bytes at the peak; they sum to `total_bytes`."""
    per_stage: tuple[Mapping[str, Any], ...]
    timeline: tuple[Mapping[str, Any], ...]
    """Highest allocated bytes of each phase on the rank that needs most."""
    host_memory_bytes: float | None
    """Of one node, highest of loading and training; None where it was not asked for."""
    host: Mapping[str, float]
    """Term -> bytes of one node while training."""
    regime: str
    """Whose residuals the interval was set from."""
    notes: tuple[str, ...]
    assumed: tuple[str, ...]
    """Choices that were not given, with what was taken."""
    sources: tuple[str, ...]
    suggestions: tuple[Mapping[str, Any], ...] = ()
    _levels: Levels | None = field(default=None, repr=False, compare=False)
    _run: Run | None = field(default=None, repr=False, compare=False)
    _architecture: Architecture | None = field(default=None, repr=False, compare=False)

    @property
    def slack_scale(self) -> float:
        """Slack of this answer over that of the linear rule: what to hand on to forecasts of similar runs."""
        peak = self.levels.peak
        if not self.levels.replayed:
            return 1.0
        linear = self.levels.above.slack_fraction * max(0.0, peak.memory.peak.bytes - peak.memory.states)
        return (peak.reserved - peak.allocated) / linear if linear > 0 else 1.0

    @property
    def run(self) -> Run:
        """The run with every choice made."""
        assert self._run is not None  # noqa: S101  # set by forecast()
        return self._run

    @property
    def levels(self) -> Levels:
        """The levels of every pipeline rank."""
        assert self._levels is not None  # noqa: S101  # set by forecast()
        return self._levels

    def terms(self) -> list[Term]:
        """Return the ledger: each term at the peak with its formula and source."""
        formulas = _formulas(self)
        out = []
        for name, size in self.breakdown.items():
            about = TERMS.get(name)
            what, source = about if about is not None else (name.replace("_", " "), "")
            out.append(Term(name, size, formulas.get(name, ""), what, source))
        return out

    def explain(self) -> str:
        """Return the ledger as text."""
        low, high = self.interval_bytes
        limits = f"available {gib(self.available_bytes)}, headroom {gib(self.headroom_bytes)}"
        lines = [
            super().explain(),
            f"peak: phase {self.peak_phase}, operator {self.peak_operator}, pipeline rank {self.stage}",
            f"90 % interval {gib(low)} to {gib(high)} ({self.regime}), {limits}",
            f"verdict: {self.verdict} (probability of running out {self.p_oom:.0%})",
        ]
        lines = [lines[0], *(part for line in lines[1:] for part in wrapped(line))]
        return "\n".join([*lines, *(part for note in self.notes for part in wrapped(f"note: {note}"))])


def forecast(
    workload: Workload | Architecture | str | os.PathLike[str] | Mapping[str, Any],
    hardware: HardwareNode | str,
    recipe: TrainingRecipe | None = None,
    parallelism: Parallelism | None = None,
    headroom: float = 0.10,
    *,
    gpus: int | None = None,
    gpus_per_node: int | None = None,
    explicit: Collection[str] = (),
    host: bool = True,
    load: Load | None = None,
    loader_workers: int = 2,
    allocator: Literal["linear", "replay"] = "linear",
    slack_scale: float = 1.0,
) -> Forecast:
    """Return what a training run will hold on its devices, and whether it fits.

    `headroom`: share of the available bytes to keep free.  `gpus`: how many there are, checked against the
    degrees.  `explicit`: names of settings that the user gave, so that one without meaning here is refused.
    `host=False` leaves host memory out.

    `allocator`: how reserved memory is found.  "linear": a calibrated fraction of what is not resident between
    steps, times `slack_scale`; "replay": the rank's allocations through a model of PyTorch's caching allocator,
    where the framework's profile knows their order (else linear): tens of milliseconds, and closer.

    Raises InputError or CombinationError for what cannot run.
    """
    model, device = load_model(workload), load_hardware(hardware)
    arch = model.architecture
    share = number(headroom, "headroom", maximum=1)
    wanted = recipe if recipe is not None else TrainingRecipe(precision=usual_precision(device))
    run, facts = checked_run(arch, wanted, parallelism or Parallelism(), gpus=gpus, explicit=explicit)
    notes = check_precision(device, run.recipe.precision, run.recipe.compute_dtype)
    if allocator not in ("linear", "replay"):
        raise InputError("is not a way", field="allocator", value=allocator, allowed=["linear", "replay"])
    found = levels(arch, run, device, replay=allocator == "replay", slack_scale=slack_scale)
    peak, available = found.peak, available_bytes(device)
    spread = regime_of(model, run, device, replayed=found.replayed)
    verdict = verdict_of(*fits_and_fails(peak.total, spread, available, share))
    node = None
    if flag(host, "host"):
        most = _RANKS_PER_NODE if gpus_per_node is None else positive_int(gpus_per_node, "gpus_per_node")
        workers = positive_int(loader_workers, "loader_workers", minimum=0, maximum=1024)
        if load is not None:
            choice(load, "load", get_args(Load))
        ranks = min(run.par.world, most)
        # bitsandbytes quantises each shard on its way to the device: no rank ever holds the model in full
        load = load or ("meta" if run.recipe.quantization is not None else default_load(run.profile.name))
        node = host_memory(arch, run, ranks, load=load, workers=workers)
        notes += host_notes(run, ranks, load, workers)
    return Forecast(
        verdict=verdict,
        fits=verdict == "fits",
        p_oom=p_oom(peak.total, available, spread),
        total_bytes=peak.total,
        allocated_bytes=peak.allocated,
        reserved_bytes=peak.reserved,
        interval_bytes=interval(peak.total, spread),
        available_bytes=available,
        headroom_bytes=share * available,
        peak_phase=peak.memory.peak.phase,
        peak_operator=peak.memory.peak.operator,
        stage=peak.memory.stage,
        breakdown=_breakdown(found),
        per_stage=tuple(_stage(s) for s in found.stages),
        timeline=_timeline(peak, _weights(arch, run, peak)),
        host_memory_bytes=None if node is None else node.total,
        host={} if node is None else node.terms,
        regime=spread.name if spread.rows else f"{spread.name} (prior)",
        notes=tuple(dict.fromkeys((*run_notes(model, run, facts), *found.above.notes, *notes))),
        assumed=assumptions(arch, run, recipe, found.above),
        sources=(*run.profile.sources, run.optimizer.source, "catalog/data/calibration/memory.json"),
        _levels=found,
        _run=run,
        _architecture=arch,
    )


def _breakdown(found: Levels) -> dict[str, float]:
    """Return the terms of the peak; a fold's own slack and the levels' are one term."""
    out = merged(found.peak.memory.peak.terms)
    for name, size in found.above_terms().items():
        out[name] = out.get(name, 0.0) + size
    return out


def _stage(s: StageLevels) -> dict[str, Any]:
    m = s.memory
    return {
        "stage": m.stage,
        "layers": m.layers,
        "total_bytes": s.total,
        "allocated_bytes": s.allocated,
        "reserved_bytes": s.reserved,
        "states_bytes": m.states,
        "peak_phase": m.peak.phase,
        "peak_operator": m.peak.operator,
    }


def _fold_of(arch: Architecture, run: Run, stage: int) -> StageFold:
    """Return the fold of one pipeline rank."""
    return next(f for f in fold_run(arch, run) if f.stage.index == stage)


def _weights(arch: Architecture, run: Run, peak: StageLevels) -> float:
    """Return the bytes of a rank's weights alone: what is there when the model has been loaded."""
    fold = _fold_of(arch, run, peak.memory.stage)
    return float(evaluate(fold.base.weights.by_monomial(), Basis(sizes_of(run))))


def _timeline(peak: StageLevels, weights: float) -> tuple[dict[str, Any], ...]:
    """Return the phases in the order of a step; between steps the states alone are left.

    A sharded checkpoint is written from the states where they lie (DCP, Megatron dist-checkpointing), so
    that phase holds what is there between steps.
    """
    rows: list[dict[str, Any]] = [{"phase": "load", "operator": "", "allocated_bytes": weights}]
    rows += [
        {"phase": name, "operator": level.operator, "allocated_bytes": level.bytes + peak.workspace}
        for name, level in peak.memory.phases.items()
    ]
    rest = peak.memory.states + peak.workspace
    rows.append({"phase": "between_steps", "operator": "", "allocated_bytes": rest})
    rows.append({"phase": "checkpoint_save", "operator": "", "allocated_bytes": rest})
    return tuple(rows)


def _formulas(result: Forecast) -> dict[str, str]:
    """Return term -> formula at the peak, from the fold's linear form."""
    arch = result._architecture  # noqa: SLF001  # our own
    if arch is None:
        return {}
    run = result.run
    basis = Basis(sizes_of(run))
    fold = _fold_of(arch, run, result.stage)
    point, _ = highest(fold.phases[result.peak_phase], basis)
    return {name: formula(point.size, name, basis) for name in result.breakdown}
