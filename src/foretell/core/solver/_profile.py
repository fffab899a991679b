"""PerformanceProfile: what one device does with its time, by its two roofs and what is lost beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from foretell.core.solver._result import Result, gib
from foretell.cost.roofline import Roofs
from foretell.machine.hardware import HardwareNode

__all__ = ["ROOFS", "PerformanceProfile", "profile_of", "roof_columns"]


@dataclass(frozen=True)
class PerformanceProfile(Result):
    """One device's time.  `latency` = the longer of compute and memory + overhead; seconds, bytes, joules; names without the
    unit are pint quantities."""

    title: ClassVar[str] = "latency"

    latency_s: float
    """Of one batch."""
    latency_compute_s: float
    """Arithmetic alone: FLOP over the share of the peak that is reached."""
    latency_memory_s: float
    """Traffic alone: bytes of device memory over the share of the bandwidth that is reached."""
    latency_overhead_s: float
    """What the longer of the two leaves out: launches, shapes that fill the device badly, kernels bound by the other roof."""
    throughput_per_s: float
    """Samples a second; what a sample is says `work_unit`."""
    bottleneck: str
    """Compute or Memory: the longer of the two."""
    arithmetic_intensity_flops_per_byte: float
    """Executed FLOP over bytes of device memory."""
    ridge_point_flops_per_byte: float
    """Intensity from which on arithmetic is the longer roof."""
    energy_j: float | None
    """Of the device; None where its rated power is not known."""
    memory_footprint_bytes: float
    """Inference: weights, keys and values, and the largest kernel's activations; training: all that the process holds."""
    available_memory_bytes: int
    """What processes can use of the device."""
    mfu: float
    """Model FLOP/s utilisation: the model's arithmetic over the peak, causal attention counted once."""
    hfu: float
    """Hardware FLOP/s utilisation: all that runs, recomputation included, over the peak."""
    feasible: bool
    """The footprint is within what a process can use."""
    work_unit: str
    """What one sample is: token, sequence, image ..."""
    precision: str
    """As given."""
    interval_s: tuple[float, float]
    """90 % interval of the latency."""
    constraint_trace: list[str]
    """What memory holds and whether that fits."""
    notes: list[str]
    """Assumptions made, terms left out."""

    def explain(self) -> str:
        """Return the two roofs and what is beside them as text."""
        lines = [f"{self.title} {self.latency_s:.4g} s a batch, {self.throughput_per_s:.4g} {self.work_unit}s a second"]
        parts = (("compute", self.latency_compute_s), ("memory", self.latency_memory_s), ("overhead", self.latency_overhead_s))
        lines += [f"  {name:10s} {spent:10.4g} s" for name, spent in parts]
        lines.append(
            f"  {self.arithmetic_intensity_flops_per_byte:.4g} FLOP/byte, ridge at {self.ridge_point_flops_per_byte:.4g}: "
            f"{self.bottleneck.lower()} decides"
        )
        lines.append(f"  memory {gib(self.memory_footprint_bytes)} of {gib(self.available_memory_bytes)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


ROOFS: Final = (
    "latency_s",
    "latency_compute_s",
    "latency_memory_s",
    "latency_overhead_s",
    "arithmetic_intensity_flops_per_byte",
    "mfu",
    "hfu",
    "energy_j",
)
"""What :func:`roof_columns` holds."""


def roof_columns(roofs: Roofs, tdp_w: float | None) -> dict[str, Any]:
    """Return the numbers of profiles, of one device or of arrays of them."""
    return {
        "latency_s": roofs.latency,
        "latency_compute_s": roofs.compute,
        "latency_memory_s": roofs.memory,
        "latency_overhead_s": roofs.overhead,
        "arithmetic_intensity_flops_per_byte": roofs.intensity,
        "mfu": roofs.mfu,
        "hfu": roofs.hfu,
        "energy_j": None if tdp_w is None else roofs.energy(tdp_w),
    }


def profile_of(
    roofs: Roofs,
    device: HardwareNode,
    *,
    samples: float,
    work_unit: str,
    precision: str,
    footprint: float,
    available: int,
    feasible: bool,
    spread: tuple[float, float],
    trace: list[str],
    notes: list[str],
) -> PerformanceProfile:
    """Return the profile of a device.  ``spread``: ends of the latency's interval as factors."""
    latency = roofs.latency
    return PerformanceProfile(
        **roof_columns(roofs, device.tdp_w),
        throughput_per_s=samples / latency,
        bottleneck="Compute" if roofs.compute >= roofs.memory else "Memory",
        ridge_point_flops_per_byte=roofs.ridge,
        memory_footprint_bytes=footprint,
        available_memory_bytes=available,
        feasible=feasible,
        work_unit=work_unit,
        precision=precision,
        interval_s=(latency * spread[0], latency * spread[1]),
        constraint_trace=trace,
        notes=notes,
    )
