"""What a run's checkpoints are: the states that it saves, from a request in the memory solver's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from foretell.arch.workload import Workload
from foretell.core._request import DEFAULTS, build
from foretell.core._validate import completed
from foretell.cost.checkpoint import CheckpointTerms, checkpoint_terms
from foretell.machine.hardware import HardwareNode

__all__ = ["SETTINGS", "copy_rate", "saved_terms"]

SETTINGS: Final = ("precision", "framework", "zero_stage", "lora_rank", "lora_targets", "quantization", "trainable_fraction")
"""Settings of a run, beside the optimizer, on which the bytes of a checkpoint depend."""
_PCIE_4: Final = 31.5e9
"""Bytes a second of PCIe 4.0 x16, one direction, where a device's link is unknown."""


def saved_terms(model: Workload, optimizer: str, settings: Mapping[str, Any], content: str) -> CheckpointTerms:
    """Return the bytes that one checkpoint holds, `settings` among SETTINGS; InputError names one that cannot be used."""
    if "framework" in settings and "precision" not in settings:  # fp16 is the generic accounting's; not every framework has it
        settings = {"precision": "bf16", **settings}
    given = (
        DEFAULTS | {"batch_size": 1, "seq_len": 1, "activation_checkpointing": "none", "optimizer": optimizer} | dict(settings)
    )
    recipe, par = build(given)
    run, _ = completed(model.architecture, recipe, par, explicit=())
    return checkpoint_terms(model.architecture, run, content)


def copy_rate(device: HardwareNode) -> tuple[float, tuple[str, ...]]:
    """Return the rate to the host's memory, bytes a second and one way, and what was assumed."""
    if device.pcie is not None and device.pcie.bytes_per_s:
        return float(device.pcie.bytes_per_s), ()
    return _PCIE_4, (f"link of {device.name} to its host unknown: PCIe 4.0 x16 taken",)
