"""A forward pass on a named device: the format's peak, the two roofs, and the bytes that are held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foretell.arch.architecture import Architecture
from foretell.cost import kernel_shares
from foretell.cost.arrays import Value, maximum
from foretell.cost.inference import Forward, forward_pass
from foretell.cost.kernels import Device
from foretell.cost.overheads import context_bytes
from foretell.cost.roofline import Roofs
from foretell.dtypes import dtype
from foretell.errors import InputError
from foretell.machine.hardware import HardwareNode

__all__ = ["Inferred", "NumberFormat", "counted", "inferred", "number_format"]

_STORED: Final = ("nf4", "nf4-dq")
"""Formats that weights are only stored in: products run in 16 bits."""
_LOW: Final = ("fp8", "int8", "int4", "fp4")
_WIDE: Final = ("fp32", "tf32", "fp64")


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """Weights of one width, products of one format."""

    name: str
    compute: str
    """Whose peak products have."""
    bytes: float
    """Per element of weights, keys and values."""

    @property
    def wide(self) -> bool:
        """Activations are fp32."""
        return self.compute in _WIDE

    @property
    def low(self) -> bool:
        """Products run in a format below 16 bits."""
        return self.compute in _LOW


@dataclass(frozen=True, slots=True)
class Inferred:
    """One forward pass of a batch on a device."""

    roofs: Roofs
    weights: float
    cache: Value
    working: Value
    context: float
    """Bytes of the process before the first tensor, which the footprint does not hold."""

    @property
    def footprint(self) -> Value:
        """Bytes of weights, of what is kept of earlier tokens, and of the activations of the largest kernel."""
        return self.weights + self.cache + self.working


def number_format(hardware: HardwareNode, precision: str) -> NumberFormat:
    """Return the format of a precision; InputError, with what the device has, where it has no such peak."""
    kind = dtype(precision, "precision")
    compute = kind.name
    if compute in _STORED:
        compute = "bf16" if "bf16" in hardware.peak_flops else "fp16"
    if compute.startswith("fp8") and "fp8" in hardware.peak_flops:
        compute = "fp8"
    if compute not in hardware.peak_flops:
        hint = "nf4 stores weights in 4 bits and computes in 16" if compute in ("int4", "fp4") else None
        problem = f"has no known peak on {hardware.name}"
        raise InputError(problem, field="precision", value=precision, allowed=list(hardware.peak_flops), hint=hint)
    return NumberFormat(kind.name, compute, float(kind.bytes_per_element))


def inferred(
    arch: Architecture,
    hardware: HardwareNode,
    kind: NumberFormat,
    *,
    batch: Value,
    seq_len: Value,
    share: float | None,
    longest: int | None = None,
) -> Inferred:
    """Return one forward pass of a batch (``batch``, ``seq_len``, ``longest``: see :func:`foretell.cost.inference.forward_pass`).

    ``share``: of the peak for arithmetic, with all of the bandwidth for traffic and the floor of each launch on top; None prices
    every kernel by its shape.
    """
    peak = hardware.peak(kind.compute)
    processors = float(hardware.sm_count or round(peak / 7e12) or 1)
    device = Device(peak, peak, hardware.memory_bandwidth_bytes_per_s, processors)
    e = kernel_shares.efficiency(hardware.compute_capability, hardware.id)
    found = forward_pass(
        arch, device, e, batch=batch, seq_len=seq_len, weight=kind.bytes, wide=kind.wide, low=kind.low, longest=longest
    )
    return _held(found, hardware, kind, arch.parameters, share)


def counted(
    parameters: float, flops: float, hardware: HardwareNode, kind: NumberFormat, *, batch: Value, share: float | None
) -> Inferred:
    """As :func:`inferred`, of a model that is known by its counts alone: arithmetic of a sample, and weights read once."""
    e = kernel_shares.efficiency(hardware.compute_capability, hardware.id)
    moved = parameters * kind.bytes
    arithmetic = flops * batch / (hardware.peak(kind.compute) * e.matmul)
    spent = maximum(arithmetic, moved / (hardware.memory_bandwidth_bytes_per_s * e.memory))
    return _held(Forward(flops * batch, moved, spent), hardware, kind, parameters, share)


def _held(found: Forward, hardware: HardwareNode, kind: NumberFormat, parameters: float, share: float | None) -> Inferred:
    e = kernel_shares.efficiency(hardware.compute_capability, hardware.id)
    peak, bandwidth = hardware.peak(kind.compute), hardware.memory_bandwidth_bytes_per_s
    spent = found.seconds
    if share is not None:
        spent = maximum(found.flops / (peak * share), found.moved / bandwidth) + e.floor * found.launches
    roofs = Roofs(
        flops=found.flops,
        model_flops=found.flops,
        moved=found.moved,
        spent=spent,
        peak=peak,
        share=e.matmul * (e.low if kind.low else 1.0) if share is None else share,
        bandwidth=bandwidth,
        memory_share=e.operand_memory if share is None else 1.0,
    )
    context = context_bytes(hardware) if hardware.cuda_like else 0.0
    return Inferred(roofs, parameters * kind.bytes, found.cache, found.working, context)
