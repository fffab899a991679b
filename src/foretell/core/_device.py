"""Whether a device computes in the format that a run asks for."""

from __future__ import annotations

from typing import Final

from foretell.errors import CombinationError
from foretell.machine.hardware import HardwareNode

__all__ = ["check_precision", "usual_precision"]

_NEEDS: Final = {
    "fp8": ("fp8",),
    "mxfp8": ("mxfp8", "fp4"),
    "nvfp4": ("nvfp4", "fp4"),
}
"""Precision -> peaks of which a device must have one: block-scaled formats came with the units for 4 bits."""


def usual_precision(device: HardwareNode) -> str:
    """Return what mixed precision means on a device where nothing is said: bf16, or fp16 where that is all it has."""
    return "fp16" if "fp16" in device.peak_flops and "bf16" not in device.peak_flops else "bf16"


def check_precision(device: HardwareNode, precision: str, compute: str | None = None) -> tuple[str, ...]:
    """Return notes on a precision that the device only emulates; refuse one that nothing emulates.

    A device whose peaks are unknown is not judged.
    """
    peaks = device.peak_flops
    for name in (precision, compute or precision):
        wanted = _NEEDS.get(name)
        if peaks and wanted is not None and not any(peak in peaks for peak in wanted):
            raise CombinationError(
                f"needs units that {device.name} lacks",
                field="precision",
                value=name,
                allowed=[peak for peak in peaks if peak in ("fp32", "fp16", "bf16", "fp8")],
            )
    if precision.removesuffix("-true") == "bf16" and usual_precision(device) == "fp16":
        return (f"{device.name} has no bf16 units: bf16 is emulated there, slowly; fp16 is what it is fast in",)
    return ()
