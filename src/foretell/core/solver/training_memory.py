"""TrainingMemoryModel: the reference's memory question, answered by the fold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core._request import DEFAULTS, GivenInt, build, untouched
from foretell.core.forecast import Forecast, forecast
from foretell.core.solver._result import Result, Term, gib
from foretell.errors import InfeasibleError, InputError, nearest
from foretell.machine.hardware import HardwareNode

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["TrainingMemoryModel", "TrainingMemoryResult"]

_ALWAYS = (
    "weights",
    "gradients",
    "optimizer_state",
    "activations",
    "logits_and_loss",
    "communication_buffers",
    "framework_overhead",
)
_OVERHEADS = ("allocator_slack", "library_workspaces", "cuda_context", "nccl")


@dataclass(frozen=True)
class TrainingMemoryResult(Result):
    """What a training step holds on one device.  Bytes; the names without `_bytes` are pint quantities."""

    title: ClassVar[str] = "total per device"

    total_memory_bytes: float
    """Of the process on the pipeline rank that needs most."""
    available_memory_bytes: int
    """What the processes on one device can use."""
    feasible: bool
    """total <= available (no headroom: see `verdict`)."""
    memory_utilization: float
    breakdown_bytes: Mapping[str, float]
    """Term -> bytes at the peak; they sum to the total.  master weights are part of optimizer_state."""
    peak_phase: str
    peak_operator: str
    timeline: tuple[Mapping[str, Any], ...]
    per_stage: tuple[Mapping[str, Any], ...]
    allocated_memory_bytes: float
    reserved_memory_bytes: float
    interval_bytes: tuple[float, float]
    verdict: str
    p_oom: float
    micro_batch: int
    precision: str
    optimizer: str
    activation_checkpointing: str
    parallelism: Mapping[str, int]
    constraint_trace: list[str]
    notes: list[str]
    assumed: tuple[str, ...]
    sources: tuple[str, ...]
    _forecast: Forecast | None = field(default=None, repr=False, compare=False)

    def terms(self) -> list[Term]:
        """Return the ledger, overheads one by one."""
        return self._forecast.terms() if self._forecast is not None else []

    def explain(self) -> str:
        """Return the ledger as text."""
        return self._forecast.explain() if self._forecast is not None else super().explain()


class TrainingMemoryModel:
    """Does training fit, and what is each byte for?

    `batch_size` is the global batch (samples an optimizer step); micro-batch = batch_size / (dp x
    gradient_accumulation_steps) must be whole.  World size is dp x tp x pp x cp; experts are carved out of
    dp x cp (x tp).  Without a framework the reference's accounting holds: 2 + 2 + 12 bytes a parameter under
    "fp16" or "bf16", `communication_buffer_fraction` of the gradients as buffer.

    The defaults are those of the reference's signature: sequence 2048, fp16, Adam, selective checkpointing,
    and a `gradient_accumulation_steps` of 1 that means 1 even where a pipeline stays unfilled.  The command
    line has defaults of its own (sequence 4096, bf16 where the device has it, AdamW, no checkpointing, enough
    micro-batches to fill the pipeline).  What was left at its default is listed in `assumed`.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        batch_size: int,
        seq_len: int = DEFAULTS["seq_len"],
        precision: str = DEFAULTS["precision"],
        optimizer: str = DEFAULTS["optimizer"],
        activation_checkpointing: str = DEFAULTS["activation_checkpointing"],
        tp_size: int = 1,
        pp_size: int = 1,
        dp_size: int = 1,
        ep_size: int = 1,
        zero_stage: int = DEFAULTS["zero_stage"],
        gradient_accumulation_steps: int = DEFAULTS["gradient_accumulation_steps"],
        trainable_fraction: float = 1.0,
        communication_buffer_fraction: float = DEFAULTS["communication_buffer_fraction"],
        *,
        headroom: float = 0.10,
        raise_errors: bool = False,
        **more: Any,  # the settings of DEFAULTS that the reference lacks
    ) -> TrainingMemoryResult:
        """Answer for one run.

        Further settings: micro_batch, framework, cp_size, etp_size, vpp_size, sequence_parallel, sharding,
        hsdp_replicas, schedule, pp_layout (layers of each stage), reshard, attention, loss, recompute_scope, recompute_layers,
        recompute_modules, optimizer_impl, compile, dropout, lora_rank, lora_targets, quantization, offload,
        encoder_seq_len, expandable_segments.
        """
        given = DEFAULTS | {
            "batch_size": batch_size,
            "seq_len": seq_len,
            "precision": precision,
            "optimizer": optimizer,
            "activation_checkpointing": activation_checkpointing,
            "tp_size": tp_size,
            "pp_size": pp_size,
            "dp_size": dp_size,
            "ep_size": ep_size,
            "zero_stage": zero_stage,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "trainable_fraction": trainable_fraction,
            "communication_buffer_fraction": communication_buffer_fraction,
        }
        check_names(more)
        given |= more
        if given["seq_len"] is None:
            given["seq_len"] = DEFAULTS["seq_len"]
        implicit = isinstance(given["seq_len"], GivenInt)
        recipe, par = build(given)
        workload = load_model(model)
        if implicit and not workload.architecture.reads_tokens:
            recipe = recipe.with_(seq_len=1)
            given["seq_len"] = 1
        found = forecast(
            workload,
            hardware,
            recipe,
            par,
            headroom,
            explicit=() if implicit else ("seq_len",),
            host=False,
        )
        result = _result(found, given)
        if raise_errors and not result.feasible:
            raise InfeasibleError(
                result.constraint_trace[-1],
                required_bytes=result.total_memory_bytes,
                available_bytes=result.available_memory_bytes,
            )
        return result

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        headroom: float = 0.10,
        breakdown: bool = True,
        **axes: Any,  # any setting of `solve`, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason.  `breakdown=False` leaves the terms out.
        """
        from foretell.core.solver._sweep import sweep  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        check_names(axes)
        return sweep(model, hardware, axes, product=product, headroom=headroom, terms=breakdown)


def check_names(settings: Mapping[str, Any]) -> None:
    """Refuse a setting that the solver does not have."""
    for name, value in settings.items():
        if name not in DEFAULTS:
            near = nearest(name, DEFAULTS) or list(DEFAULTS)
            raise InputError("is not a setting", field=name, value=value, allowed=near)


def _plain(text: Any) -> Any:  # a name, or what was given in its place
    return str(text) if isinstance(text, str) else text


def _result(found: Forecast, given: Mapping[str, Any]) -> TrainingMemoryResult:
    terms = dict.fromkeys(_ALWAYS, 0.0)
    for name, size in found.breakdown.items():
        key = "framework_overhead" if name in _OVERHEADS else name
        terms[key] = terms.get(key, 0.0) + size
    par, total, available = found.run.par, found.total_bytes, found.available_bytes
    feasible = total <= available
    trace = [
        f"peak in phase {found.peak_phase} at {found.peak_operator}, pipeline rank {found.stage} of {par.pp}",
        f"total {gib(total)} {'within' if feasible else 'over'} the {gib(available)} that is available",
    ]
    return TrainingMemoryResult(
        total_memory_bytes=total,
        available_memory_bytes=available,
        feasible=feasible,
        memory_utilization=total / available,
        breakdown_bytes=terms,
        peak_phase=found.peak_phase,
        peak_operator=found.peak_operator,
        timeline=found.timeline,
        per_stage=found.per_stage,
        allocated_memory_bytes=found.allocated_bytes,
        reserved_memory_bytes=found.reserved_bytes,
        interval_bytes=found.interval_bytes,
        verdict=found.verdict,
        p_oom=found.p_oom,
        micro_batch=found.run.recipe.micro_batch,
        precision=_plain(given["precision"]),
        optimizer=_plain(given["optimizer"]),
        activation_checkpointing=_plain(given["activation_checkpointing"]),
        parallelism={"dp": par.dp, "tp": par.tp, "pp": par.pp, "cp": par.cp, "ep": par.ep, "world": par.world},
        constraint_trace=trace,
        notes=list(found.notes),
        assumed=tuple(dict.fromkeys((*untouched(given), *found.assumed))),
        sources=found.sources,
        _forecast=found,
    )
