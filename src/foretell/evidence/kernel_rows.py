"""Rows of measured kernels: which kernel ran on which device, and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from foretell.cost.kernel_shares import efficiency, generation
from foretell.cost.kernels import Device, Efficiency, attention, matmul
from foretell.evidence.row_run import Skip
from foretell.machine.hardware import load_hardware
from foretell.validation import number

__all__ = ["KINDS", "KernelRow", "predict_all", "read_row"]

KINDS: Final = ("attention_bwd", "attention_fwd", "gemm", "grouped_gemm")
_LARGEST: Final = 1e12
"""Largest size, and longest time in us, that is taken for a measured one."""
_HALF: Final = ("bf16", "fp16")
_BYTES: Final = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0, "fp8": 1.0}
_UNSTATED: Final = 3.0
"""Bytes of a main gradient whose format is not stated: between half and single precision."""
_PASSES: Final = {
    # pass of a grouped product -> which of (m, n, k) stand for rows, columns and inner dimension
    "fwd": "mnk",
    "bwd-grad-act": "mkn",
    "bwd-grad-w": "nkm",
}


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One measured kernel."""

    kind: str
    gpu: str
    compute_capability: str | None
    device: Device
    sizes: Mapping[str, float]
    """Arguments of the kernel's function."""
    measured: float
    """Seconds."""
    notes: tuple[str, ...] = ()

    @property
    def generation(self) -> str:
        """Generation whose shares its device takes."""
        return generation(self.compute_capability)

    def predict(self, known: Efficiency | None = None) -> float:
        """Return the seconds that the model gives."""
        shares = efficiency(self.compute_capability, self.gpu) if known is None else known
        return float(_seconds(self.kind, self.sizes, self.device, shares))


def predict_all(rows: Sequence[KernelRow], known: Efficiency) -> list[float]:
    """Return the seconds of rows of one generation, computed as arrays: what a fit calls some hundred times."""
    import numpy as np  # noqa: PLC0415

    out = [0.0] * len(rows)
    for kind in KINDS:
        places = [i for i, row in enumerate(rows) if row.kind == kind]
        if not places:
            continue
        some = [rows[i] for i in places]
        sizes = {name: np.array([row.sizes[name] for row in some]) for name in some[0].sizes}
        device: Any = {f.name: np.array([getattr(row.device, f.name) for row in some]) for f in fields(Device)}
        for i, seconds in zip(places, _seconds(kind, sizes, Device(**device), known).tolist(), strict=True):
            out[i] = seconds
    return out


def _seconds(kind: str, sizes: Mapping[str, Any], device: Device, shares: Efficiency) -> Any:
    if kind.startswith("attention"):
        return attention(device=device, e=shares, backward=kind == "attention_bwd", alone=True, **sizes)
    return matmul(device=device, e=shares, **sizes)


def read_row(row: Mapping[str, Any]) -> KernelRow:
    """Read a row; :class:`Skip` says why one cannot be predicted, a ForetellError what is wrong with a value."""
    kind = str(row.get("kind"))
    if kind not in KINDS:
        raise Skip(f"not-modelled: kernel {kind}")
    selection = str(row.get("selection", "as-run"))
    if selection != "as-run":
        raise Skip(
            f"not-modelled: {selection}: the fastest of many shapes in a short burst bounds the rate, it is no shape's time"
        )
    if not isinstance(row["measured"].get("time_us"), int | float):
        raise Skip("not-modelled: time_us was not measured")
    format_ = str(row.get("dtype"))
    if format_ not in (*_HALF, "fp8"):
        raise Skip(f"not-modelled: kernels in {format_}")
    gpu = str(row["hardware"]["gpu"])
    hardware = load_hardware(gpu)
    peak = hardware.peak("bf16" if format_ == "fp8" else format_)
    if hardware.sm_count is None:
        raise Skip(f"not-modelled: the number of processors of {gpu} is not known")
    device = Device(
        peak=peak,
        low_peak=hardware.peak("fp8") if format_ == "fp8" else peak,
        bandwidth=hardware.memory_bandwidth_bytes_per_s,
        processors=float(hardware.sm_count),
    )
    sizes, notes = _attention(row) if kind.startswith("attention") else _product(row, kind == "grouped_gemm", format_)
    measured = number(row["measured"]["time_us"], "measured.time_us", minimum=1e-3, maximum=_LARGEST) * 1e-6
    return KernelRow(kind, hardware.id or gpu, hardware.compute_capability, device, sizes, measured, notes)


def _size(row: Mapping[str, Any], name: str) -> float:
    shape = row["shape"]
    if name not in shape:
        raise Skip(f"underspecified: shape.{name} is absent")
    return number(shape[name], f"shape.{name}", minimum=1, maximum=_LARGEST)


def _product(row: Mapping[str, Any], grouped: bool, format_: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the arguments of ``matmul``."""
    notes: tuple[str, ...] = ()
    result = _BYTES.get(str(row.get("out_dtype", "bf16")))
    if result is None:
        raise Skip(f"not-modelled: results in {row['out_dtype']}")
    size = {name: _size(row, "m_per_group" if grouped and name == "m" else name) for name in "mnk"}
    batch = _size(row, "groups") if grouped else number(row["shape"].get("batch", 1), "shape.batch", minimum=1, maximum=_LARGEST)
    order = "mnk"
    if grouped:
        stage = str(row.get("stage"))
        if stage not in _PASSES:
            raise Skip(f"underspecified: stage {stage} is none of {', '.join(_PASSES)}")
        order = _PASSES[stage]
        if stage == "bwd-grad-w":
            main = row.get("main_grad_dtype")
            result = _BYTES.get(str(main), _UNSTATED)
            if main is None:
                notes = ("the format of the main gradient is not stated: between half and single precision",)
    m, n, k = (size[name] for name in order)
    return {
        "m": m,
        "n": n,
        "k": k,
        "batch": batch,
        "operand": _BYTES[format_],
        "result": result,
        "accumulate": float(row.get("accumulate") is True),
        "low": float(format_ == "fp8"),
        "grouped": float(grouped),
    }, notes


def _attention(row: Mapping[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the arguments of ``attention``."""
    if row.get("dtype") == "fp8":
        raise Skip("not-modelled: attention in fp8")
    length, batch = _size(row, "seq_len"), _size(row, "batch")
    causal = row["shape"].get("causal")
    if causal is None:
        raise Skip("underspecified: shape.causal is absent")
    return {
        "pairs": batch * length * length * (0.5 if causal else 1.0),
        "queries": batch * length,
        "heads": _size(row, "heads"),
        "head_dim": _size(row, "qk_head_dim"),
        "v_dim": _size(row, "v_head_dim"),
    }, ()
