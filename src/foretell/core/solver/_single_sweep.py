"""The question of SingleNodeModel for many batches at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver import _distributed_sweep as distributed
from foretell.core.solver._axes import Axes
from foretell.core.solver._profile import ROOFS, roof_columns
from foretell.core.solver._rows import Reasons, check_axes, parts, tabulate
from foretell.core.solver.single_node import context_of, forward_of, training_settings
from foretell.core.speed import CALIBRATED, checked_share
from foretell.cost.overheads import available_bytes
from foretell.cost.roofline import Roofs
from foretell.cost.training_memory import windows
from foretell.errors import CombinationError
from foretell.machine.fleet import Fleet, Node
from foretell.validation import flag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.arch.workload import Workload
    from foretell.core.solver._table import Table
    from foretell.machine.hardware import HardwareNode

__all__ = ["sweep"]

ARRAYS: Final = ("batch_size", "seq_len")
DEFAULTS: Final[dict[str, Any]] = {
    "batch_size": 1,
    "precision": "fp16",
    "efficiency": 0.5,
    "seq_len": None,
    "is_training": False,
    "activation_recomputation": False,
    "is_lora": False,
}
_BOTTLENECKS: Final = ["Memory", "Compute"]


def sweep(workload: Workload, device: HardwareNode, given: Mapping[str, Any], *, product: bool) -> Table:
    """Return the table of every batch that the axes make."""
    check_axes(given, DEFAULTS)
    axes = Axes({"batch_size": 1} | dict(given), product=product, arrays=ARRAYS)
    work = _Sweep(workload, device, axes)
    return tabulate(axes, work.answer, DEFAULTS, work.reasons, by="latency_s", texts={"bottleneck": _BOTTLENECKS})


class _Sweep:
    def __init__(self, workload: Workload, device: HardwareNode, axes: Axes) -> None:
        self.workload, self.device, self.axes, self.reasons = workload, device, axes, Reasons()
        self.available = float(available_bytes(device))

    def answer(self, settings: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
        """Return the columns of one kind's rows."""
        share = None if settings["efficiency"] == CALIBRATED else checked_share(settings["efficiency"])
        again, lora = (flag(settings[name], name) for name in ("activation_recomputation", "is_lora"))
        batch = self.axes.size("batch_size", rows, 1)
        if flag(settings["is_training"], "is_training"):
            return self.trained(settings, rows, batch)
        for name, given in (("activation_recomputation", again), ("is_lora", lora)):
            if given:
                raise CombinationError("means nothing in inference", field=name, value=given)
        return self.inferred(settings, rows, batch, share)

    def inferred(
        self, settings: Mapping[str, Any], rows: NDArray[Any], batch: NDArray[Any], share: float | None
    ) -> dict[str, Any]:
        """Forward passes: those that exceed the same attention windows together."""
        given = "seq_len" in self.axes
        longest = int(self.axes.table["seq_len"].max()) if given else None
        default, _ = context_of(self.workload, longest)
        tokens = self.axes.size("seq_len", rows, default)
        bounds = windows(self.workload.architecture) if self.workload.has_shapes else ()
        out: dict[str, Any] = {"reason": np.zeros(len(rows), np.int16), "feasible": np.zeros(len(rows), bool)}
        for part in parts(np.searchsorted(bounds, tokens)) if bounds else [np.arange(len(rows))]:
            size, context = batch[part].astype(float), tokens[part].astype(float)
            found = forward_of(self.workload, self.device, settings["precision"], share, size, context, int(tokens[part].max()))
            columns = self.columns(found.roofs, size, found.footprint)
            columns["feasible"] = found.footprint + found.context <= self.available
            for name, values in columns.items():
                out.setdefault(name, np.zeros(len(rows)))[part] = values
        return out

    def trained(self, settings: Mapping[str, Any], rows: NDArray[Any], batch: NDArray[Any]) -> dict[str, Any]:
        """Training steps: those of a fleet of one device."""
        own = training_settings(self.workload, 1, None, settings["precision"])
        tokens = self.axes.size("seq_len", rows, own["seq_len"])
        walked = {name: settings[name] for name in ("precision", "efficiency", "activation_recomputation", "is_lora")}
        sizes: dict[str, Any] = {"batch_size": batch}
        if self.workload.architecture.reads_tokens or "seq_len" in self.axes:
            sizes["seq_len"] = tokens
        fleet = Fleet("one", Node(self.device, accelerators_per_node=1))
        table = distributed.sweep(self.workload, fleet, {**sizes, **walked}, product=False, profile=True)
        codes = {reason: 0 if reason == "does not fit" else self.reasons.code(reason) for reason in set(table["reason"].tolist())}
        why = np.array([codes[reason] for reason in table["reason"]], np.int16)
        latency = table["node_latency_s"]
        out = {name: table[f"node_{name}"] for name in ROOFS if f"node_{name}" in table.columns}
        return out | {
            "throughput_per_s": batch / latency,
            "memory_footprint_bytes": table["total_memory_bytes"],
            "bottleneck": (out["latency_compute_s"] >= out["latency_memory_s"]).astype(np.int8),
            "feasible": table["feasible"],
            "reason": why,
        }

    def columns(self, roofs: Roofs, samples: NDArray[Any], footprint: Any) -> dict[str, Any]:
        """Return the numbers of profiles."""
        found = roof_columns(roofs, self.device.tdp_w)
        return {name: values for name, values in found.items() if values is not None} | {
            "throughput_per_s": samples / roofs.latency,
            "memory_footprint_bytes": footprint,
            "bottleneck": (roofs.compute >= roofs.memory).astype(np.int8),
        }
