"""The settings of the training solvers as a recipe, a parallelism and the parts of a speed forecast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Linear
from foretell.core._request import DEFAULTS, GivenInt, build
from foretell.core.levels import Levels
from foretell.core.solver._profile import PerformanceProfile, profile_of
from foretell.core.solver._result import gib
from foretell.core.speed import CALIBRATED, SpeedForecast
from foretell.cost.collectives import ALGORITHMS, SHAPES
from foretell.cost.software import interval_of
from foretell.cost.utilisation import step_roofs
from foretell.errors import CombinationError, InputError, nearest
from foretell.machine.hardware import HardwareNode
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import TrainingRecipe
from foretell.validation import choice, flag, number, positive_int

__all__ = [
    "KNOBS",
    "OVERRIDES",
    "check_names",
    "hidden_share",
    "memory_trace",
    "node_profile",
    "request_of",
    "steps_of",
    "unit_of",
]

KNOBS: Final[dict[str, Any]] = {
    # the reference's
    "batch_size": 1,
    "precision": "fp16",
    "efficiency": 0.5,
    "tp_size": 1,
    "pp_size": 1,
    "ep_size": 1,
    "v_stages": 1,
    "microbatch_count": 1,
    "topology_override": None,
    "zero_stage": DEFAULTS["zero_stage"],
    "is_lora": False,
    "activation_recomputation": False,
    "overlap_comm": False,
    "overlap_efficiency": 0.85,
    "congestion_factor": 1.0,
    "straggler_factor": 1.0,
    "moe_routing_imbalance_factor": 1.0,
    "gradient_accumulation_steps": 1,
    "seq_len": DEFAULTS["seq_len"],
    # ours
    "activation_checkpointing": None,
    "lora_rank": 16,
}
"""Settings of DistributedModel with their defaults, beside those that it shares with TrainingMemoryModel."""
_OWN: Final = ("micro_batch", "dp_size", "vpp_size")
"""Settings of TrainingMemoryModel that follow from others here."""
OVERRIDES: Final = tuple(name for name in (*ALGORITHMS, *SHAPES) if name != "deepep")
"""What `topology_override` may name: an algorithm of all collectives that have it, or the shape of the fabric."""
_FROZEN: Final = ("int8", "int4", "nf4")
"""Formats that weights are kept in, but not trained in."""
_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj")


def check_names(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the solver does not have."""
    for name, value in settings.items():
        if name not in KNOBS and (name not in DEFAULTS or name in _OWN):
            known = [*KNOBS, *(other for other in DEFAULTS if other not in _OWN and other not in KNOBS)]
            raise InputError("is not a setting", field=name, value=value, allowed=nearest(name, known) or known)


def steps_of(micro_batches: object, accumulation: object) -> int:
    """Return the micro-batches of a step from their two names; 1 leaves it to the other.

    >>> steps_of(8, 1), steps_of(1, 8), steps_of(8, 8)
    (8, 8, 8)
    """
    count = positive_int(micro_batches, "microbatch_count")
    steps = positive_int(accumulation, "gradient_accumulation_steps")
    if count > 1 and steps > 1 and count != steps:
        problem = f"is not microbatch_count = {count}: both name the micro-batches of a replica and step"
        raise CombinationError(problem, field="gradient_accumulation_steps", value=steps)
    return max(count, steps)


def replicas(world: int, tp: object, pp: object, cp: object) -> int:
    """Return the data-parallel degree that is left of a number of devices."""
    degrees = [positive_int(size, name) for size, name in ((tp, "tp_size"), (pp, "pp_size"), (cp, "cp_size"))]
    model = degrees[0] * degrees[1] * degrees[2]
    if world % model:
        problem = f"x pp x cp = {degrees[0]} x {degrees[1]} x {degrees[2]} = {model} must divide the fleet's {world} accelerators"
        raise CombinationError(problem, field="tp_size", value=degrees[0])
    return world // model


def check_batch(batch: object, dp: int, steps: int) -> None:
    """Refuse a global batch that does not give every replica and step the same whole micro-batch."""
    total = positive_int(batch, "batch_size")
    if total < dp:
        problem = f"is smaller than the data-parallel degree {dp}: a replica would have no sample"
        raise CombinationError(problem, field="batch_size", value=total)
    if total < dp * steps:
        problem = f"is more than the {total / dp:g} samples of a replica: a micro-batch would have none"
        raise CombinationError(problem, field="microbatch_count", value=steps)
    if total % (dp * steps):
        problem = f"leaves {total % (dp * steps)} samples over dp x micro-batches = {dp} x {steps}: all micro-batches are equal"
        raise CombinationError(problem, field="batch_size", value=total)


def adapter_names(arch: Architecture) -> tuple[str, ...]:
    """Return what LoRA is put on: the projections of attention, or every matrix where they have other names."""
    ops = {op.name.rsplit(".", 1)[-1] for block, _ in arch.blocks() for op in block.ops if isinstance(op, Linear)}
    return tuple(name for name in _PROJECTIONS if name in ops) or ("all-linear",)


def request_of(arch: Architecture, given: Mapping[str, Any], dp: int, steps: int) -> tuple[TrainingRecipe, Parallelism]:
    """Return the recipe and the parallelism of settings (KNOBS over DEFAULTS)."""
    check_batch(given["batch_size"], dp, steps)
    recipe, par = build(memory_settings(arch, given) | {"dp_size": dp, "gradient_accumulation_steps": steps})
    if recipe.precision in _FROZEN and recipe.adapter is None and recipe.trainable_fraction == 1:
        raise CombinationError(
            "is too narrow to train all weights in: it stores weights that stay as they are",
            field="precision",
            value=recipe.precision,
            allowed=["fp32", "bf16", "fp16", "fp8"],
            hint="is_lora=True trains adapters on such weights",
        )
    return recipe, par


def memory_settings(arch: Architecture, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of DistributedModel as those of TrainingMemoryModel, sizes aside."""
    again = flag(given["activation_recomputation"], "activation_recomputation")
    mode = given["activation_checkpointing"]
    if mode is None:
        mode = "full" if again else "none"
    elif again and mode == "none":
        raise CombinationError("is not activation_recomputation=True", field="activation_checkpointing", value=mode)
    made = DEFAULTS | {name: given[name] for name in DEFAULTS if name in given}
    made |= {"activation_checkpointing": mode, "vpp_size": given["v_stages"], "micro_batch": None}
    lora = flag(given["is_lora"], "is_lora")
    made["lora_rank"] = given["lora_rank"] if lora else None
    if lora and not made["lora_targets"]:
        made["lora_targets"] = adapter_names(arch)
    if isinstance(made["seq_len"], GivenInt) and not arch.reads_tokens:
        made["seq_len"] = 1
    return made


def hidden_share(given: Mapping[str, Any]) -> float:
    """Return the largest share of gradients and parameters on their way that may be hidden."""
    share = number(given["overlap_efficiency"], "overlap_efficiency", maximum=1.0)
    return share if flag(given["overlap_comm"], "overlap_comm") else 0.0


def algorithm_of(given: Mapping[str, Any]) -> str | None:
    """Return the forced algorithm or shape."""
    name = given["topology_override"]
    return None if name is None else choice(name, "topology_override", OVERRIDES)


def unit_of(arch: Architecture) -> str:
    """Return what one sample of training is."""
    if arch.reads_tokens:
        return "sequence"
    return "clip" if arch.family == "audio" else "image"


def memory_trace(found: Levels, pp: int, available: float) -> list[str]:
    """Say where memory is highest and whether that is within what a process can use."""
    peak = found.peak
    top, fits = peak.memory.peak, peak.total <= available
    return [
        f"memory peaks in phase {top.phase} at {top.operator}, pipeline rank {peak.memory.stage} of {pp}",
        f"total {gib(peak.total)} {'within' if fits else 'over'} the {gib(available)} that is available",
    ]


def node_profile(
    found: SpeedForecast,
    device: HardwareNode,
    arch: Architecture,
    memory: Levels,
    available: int,
    efficiency: float | str,
    notes: list[str],
) -> PerformanceProfile:
    """Return what one device of a training job does between its exchanges: passes and the optimizer's step."""
    recipe, total = found.run.recipe, memory.peak.total
    return profile_of(
        step_roofs(found.priced, found.run, found.time, None if efficiency == CALIBRATED else float(efficiency)),
        device,
        samples=recipe.micro_batch * recipe.grad_accum,
        work_unit=unit_of(arch),
        precision=recipe.precision,
        footprint=total,
        available=available,
        feasible=total <= available,
        spread=interval_of(found.regime),
        trace=memory_trace(memory, found.run.par.pp, available),
        notes=notes,
    )
