"""SingleNodeModel: one device, one batch: which roof decides, and how long it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from foretell.arch._load import load_model
from foretell.arch.workload import Workload
from foretell.core._request import DEFAULTS
from foretell.core.levels import levels
from foretell.core.solver._profile import PerformanceProfile, profile_of
from foretell.core.solver._result import gib
from foretell.core.solver._training import KNOBS, node_profile, request_of, unit_of
from foretell.core.speed import CALIBRATED, checked_share, speed
from foretell.cost import kernel_shares
from foretell.cost.inference import autoregressive
from foretell.cost.inference_time import Inferred, counted, inferred, number_format
from foretell.cost.overheads import available_bytes
from foretell.cost.power import NOTE
from foretell.errors import CombinationError, InfeasibleError, InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.validation import MAX_SEQUENCE, flag, positive_int

if TYPE_CHECKING:
    from foretell.core.solver._table import Table

__all__ = ["PerformanceProfile", "SingleNodeModel"]

TRAINED: Final = 2048
"""Tokens of a sequence in training where nothing is said, as in the reference's signatures."""
ENCODED: Final = 512
"""... of a sequence that an encoder reads, or its own limit where that is shorter."""


class SingleNodeModel:
    """What one device does with one batch: compute or memory, how long, how much energy, and does it fit?

    Inference: for autoregressive language models one sample is one token of one sequence, which reads the keys and values of
    the `seq_len` tokens that it sees (1, the default: only its own); for encoders one sequence, for vision one image.
    `is_training=True`: one sample is one sequence (image) of a training step.

    `precision` is the width of weights and of what is kept of earlier tokens, and chooses the peak; activations are 16 bits (32
    under fp32).  `efficiency`: a share of the peak for arithmetic, while traffic has all of the bandwidth; "calibrated" prices
    every kernel by its shape.
    """

    def solve(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        batch_size: int = 1,
        precision: str = "fp16",
        efficiency: float | str = 0.5,
        raise_errors: bool = False,
        seq_len: int | None = None,
        is_training: bool = False,
        activation_recomputation: bool = False,
        is_lora: bool = False,
    ) -> PerformanceProfile:
        """Answer for one batch.

        Raises InputError or CombinationError for what cannot run (a precision that the device lacks), InfeasibleError for what
        does not fit where `raise_errors` asks for it.
        """
        workload, device = load_model(model), load_hardware(hardware)
        batch = positive_int(batch_size, "batch_size")
        tokens = None if seq_len is None else positive_int(seq_len, "seq_len", maximum=MAX_SEQUENCE)
        again, lora = flag(activation_recomputation, "activation_recomputation"), flag(is_lora, "is_lora")
        share = None if efficiency == CALIBRATED else checked_share(efficiency)
        if flag(is_training, "is_training"):
            result = _trained(workload, device, batch, tokens, precision, share, again=again, lora=lora)
        else:
            for name, given in (("activation_recomputation", again), ("is_lora", lora)):
                if given:
                    raise CombinationError("means nothing in inference", field=name, value=given, hint="is_training=True")
            result = _inferred(workload, device, batch, tokens, precision, share)
        if flag(raise_errors, "raise_errors") and not result.feasible:
            raise InfeasibleError(
                result.constraint_trace[-1],
                required_bytes=result.memory_footprint_bytes,
                available_bytes=result.available_memory_bytes,
            )
        return result

    def sweep(
        self,
        model: Workload | str | os.PathLike[str] | Mapping[str, Any],
        hardware: HardwareNode | str,
        *,
        product: bool = True,
        **axes: Any,  # any parameter of `solve` but raise_errors, as one value or as a sequence of values
    ) -> Table:
        """Answer for every combination of the axes (`product=False`: broadcast against one another).

        Combinations that cannot run are marked with their reason, those that do not fit are not `feasible`.
        """
        from foretell.core.solver._single_sweep import sweep  # noqa: PLC0415  # numpy costs 100 ms: only for sweeps

        return sweep(load_model(model), load_hardware(hardware), axes, product=product)


def context_of(workload: Workload, tokens: int | None) -> tuple[int, str]:
    """Return the tokens of a sample and what a sample is; InputError for a length that means nothing."""
    if not workload.has_shapes:
        if tokens not in (None, 1):
            raise InputError("means nothing for a model known by its counts", field="seq_len", value=tokens)
        return 1, "sample"
    arch = workload.architecture
    if not arch.reads_tokens:
        if tokens not in (None, 1):
            raise InputError("means nothing for this model: it reads no sequence of tokens", field="seq_len", value=tokens)
        return 1, unit_of(arch)
    if autoregressive(arch):
        return tokens or 1, "token"
    return tokens or min(ENCODED, arch.max_positions or ENCODED), "sequence"


def forward_of(
    workload: Workload,
    device: HardwareNode,
    precision: str,
    share: float | None,
    batch: Any,  # a number or an array
    seq_len: Any,
    longest: int | None = None,
) -> Inferred:
    """Return the forward pass of a workload."""
    kind = number_format(device, precision)
    if workload.has_shapes:
        return inferred(workload.architecture, device, kind, batch=batch, seq_len=seq_len, share=share, longest=longest)
    flops = getattr(workload, "inference_flops", None)
    if flops is None:
        raise InputError("is known by its parameters only; this question needs inference_flops or its layers", field="model")
    return counted(workload.parameters, float(flops), device, kind, batch=batch, share=share)


def _inferred(
    workload: Workload, device: HardwareNode, batch: int, tokens: int | None, precision: str, share: float | None
) -> PerformanceProfile:
    """One forward pass."""
    context, unit = context_of(workload, tokens)
    found = forward_of(workload, device, precision, share, batch, context)
    available, footprint = available_bytes(device), found.footprint
    feasible = footprint + found.context <= available
    parts = (("weights", found.weights), ("cache", found.cache), ("activations", found.working), ("context", found.context))
    trace = [
        ", ".join(f"{name} {gib(size)}" for name, size in parts),
        f"total {gib(footprint + found.context)} {'within' if feasible else 'over'} the {gib(available)} that is available",
    ]
    notes = [NOTE, "interval: of single kernels; the serving software's own time is left out"]
    if unit == "token":
        notes.append(f"one token of each of {batch} sequences, which sees {context} tokens, itself included")
    elif unit == "sequence":
        notes.append(f"sequences of {context} tokens")
    if not workload.has_shapes:
        notes.append("known by its counts only: activations are left out")
    return profile_of(
        found.roofs,
        device,
        samples=batch,
        work_unit=unit,
        precision=precision,
        footprint=footprint,
        available=available,
        feasible=feasible,
        spread=kernel_shares.interval(1.0, "gemm", device.compute_capability, device.id),
        trace=trace,
        notes=notes,
    )


def training_settings(workload: Workload, batch: int, tokens: int | None, precision: str, **flags: bool) -> dict[str, Any]:
    """Return the settings of a training step on one device."""
    reads = workload.architecture.reads_tokens
    own = {"batch_size": batch, "precision": precision, "seq_len": tokens or (TRAINED if reads else 1)}
    return DEFAULTS | KNOBS | own | flags


def _trained(
    workload: Workload,
    device: HardwareNode,
    batch: int,
    tokens: int | None,
    precision: str,
    share: float | None,
    *,
    again: bool,
    lora: bool,
) -> PerformanceProfile:
    """One training step of the whole batch at once."""
    arch = workload.architecture
    given = training_settings(workload, batch, tokens, precision, is_lora=lora, activation_recomputation=again)
    recipe, par = request_of(arch, given, 1, 1)
    explicit = () if tokens is None else ("seq_len",)
    efficiency: float | str = CALIBRATED if share is None else share
    found = speed(workload, device, recipe, par, efficiency=efficiency, explicit=explicit)
    notes = [*found.notes, NOTE, "a training step with its optimizer, all of the batch at once"]
    return node_profile(found, device, arch, levels(arch, found.run, device), available_bytes(device), efficiency, notes)
