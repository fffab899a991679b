"""The levels above allocated memory, and how sure a level is.

allocated -> reserved: the caching allocator's rounding and unused blocks.
reserved -> process: what the driver, NCCL and libraries take outside the allocator (what nvidia-smi shows).
Every constant stands in ``catalog/data/calibration/memory.json`` with where it comes from.
"""

from __future__ import annotations

import bisect
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from foretell.machine.hardware import HardwareNode
from foretell.recipe.resolve import Run

__all__ = [
    "Overheads",
    "Regime",
    "available_bytes",
    "calibration",
    "communicator_bytes",
    "communicators",
    "context_bytes",
    "interval",
    "overheads",
    "p_oom",
    "regime",
    "regime_names",
]


LAZY_KERNELS = "2022-10"
"""Since then a CUDA context holds only the kernels that ran (CUDA 11.7 lazy loading, PyTorch 1.13)."""


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/memory.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a run holds above allocated memory on a device; all constants in bytes."""

    slack_fraction: float
    """Reserved and unused, of the allocated bytes that are not resident between steps."""
    slack_floor: float
    context: float
    """CUDA (or HIP) context."""
    nccl: float
    """Buffers of the communicators, outside the allocator."""
    cuda_like: bool
    notes: tuple[str, ...] = ()
    pooled_fraction: float = 0.0
    """As ``slack_fraction``, on top of reserved memory that follows from stream pools (segment granules, kernels' own
    workspaces)."""

    @property
    def outside(self) -> float:
        """Bytes of the process outside the allocator."""
        return self.context + self.nccl


def communicators(run: Run) -> int:
    """Return how many NCCL communicators a rank joins: one for each kind of parallelism above one.

    FSDP, DDP and ZeRO use the data-parallel group; context parallelism its own ring, and the states' group
    spans both; a pipeline has its p2p group; experts have theirs.
    """
    p = run.par
    groups = [p.dp * p.cp > 1, p.tp > 1, p.cp > 1, p.pp > 1, p.ep > 1, p.hsdp_replicas > 1]
    return sum(groups)


def overheads(run: Run, hardware: HardwareNode) -> Overheads:
    """Return the overheads of a run on a device."""
    if not hardware.cuda_like:
        note = f"{hardware.name} is not CUDA-like: allocated memory only, its runtime's own is not modelled"
        return Overheads(0.0, 0.0, 0.0, 0.0, cuda_like=False, notes=(note,))
    data = calibration()
    slack = data["slack"]["expandable" if run.expandable else "native"]
    nccl = 0.0
    if run.par.world > 1:
        nccl = communicator_bytes(communicators(run))
        if run.par.ep > 1:
            nccl += float(data["nccl_bytes"]["all_to_all"]["value"])
    return Overheads(
        float(slack["fraction"]),
        float(slack["floor_bytes"]),
        context_bytes(hardware, run.recipe.date),
        nccl,
        cuda_like=True,
        pooled_fraction=float(data["slack"]["pooled"]["fraction"]),
    )


def context_bytes(hardware: HardwareNode, date: str | None = None) -> float:
    """Return the bytes of a CUDA context on a device, with the software of a date (None: of today)."""
    data = calibration()
    family = hardware.compute_capability or "default"
    if date and date < LAZY_KERNELS:
        return _family(data["context_bytes_eager"], family)
    known = hardware.context_bytes
    return _family(data["context_bytes"], family) if known is None else float(known)


def communicator_bytes(count: int) -> float:
    """Return the bytes that NCCL takes for so many communicators of a rank."""
    return count * float(calibration()["nccl_bytes"]["communicator"]["value"])


def available_bytes(hardware: HardwareNode) -> int:
    """Return what the processes on one device (as a framework shows it) can use, contexts included, bytes."""
    if hardware.logical_devices > 1:
        if hardware.usable_memory_per_logical_device_bytes is not None:
            return hardware.usable_memory_per_logical_device_bytes
        return hardware.available_bytes // hardware.logical_devices
    return hardware.available_bytes


def _family(table: Mapping[str, Any], family: str) -> float:
    return float(table.get(family, table["default"])["value"])


# -- how sure ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Regime:
    """Quantiles of ln(measured / predicted) of the replayed rows that a prediction resembles."""

    name: str
    p: tuple[float, ...]
    log_error: tuple[float, ...]
    rows: int = 0
    """Rows behind the quantiles; 0 for a prior."""


def regime_names(framework: str, level: str, confidence: int) -> list[str]:
    """Regimes that may stand for a prediction, nearest first.

    What a process takes was measured for few frameworks.  For another, what its own reserved memory was off by comes
    next, then the spread of every level above allocated memory (``process-elsewhere``).
    """
    names = [f"{framework}/{level}/{confidence}"]
    if level == "process":
        names += [f"{framework}/reserved/{confidence}", f"{framework}/reserved/2"]
        names += [f"process-elsewhere/{confidence}", "process-elsewhere"]
    else:
        names.append(f"{level}/{confidence}")
    return [*names, level, "default"]


def regime(framework: str, level: str, confidence: int = 3, *, cuda_like: bool = True, linear: bool = False) -> Regime:
    """Return the nearest regime that the calibration knows, by framework, level and confidence.

    `linear`: reserved memory came from the slack fraction although the framework's allocations can be replayed.
    """
    table = calibration()["regimes"]
    names = regime_names(framework, f"{level}-linear" if linear and level != "allocated" else level, confidence)
    return _regime(next(n for n in names if n in table) if cuda_like else "not-cuda")


@functools.lru_cache(maxsize=64)
def _regime(name: str) -> Regime:
    found = calibration()["regimes"][name]
    return Regime(name, tuple(found["p"]), tuple(found["log_error"]), int(found.get("rows", 0)))


def interval(point: Any, spread: Regime, coverage: float = 0.90) -> tuple[Any, Any]:
    """Return the (low, high) of a level of `point` bytes that hold `coverage` of measurements.

    >>> low, high = interval(100.0, Regime("x", (0.05, 0.95), (-0.1, 0.1)))
    >>> round(low, 1), round(high, 1)
    (90.5, 110.5)
    """
    tail = (1 - coverage) / 2
    low, high = (math.exp(_interpolate(q, spread.p, spread.log_error)) for q in (tail, 1 - tail))
    return point * low, point * high


def p_oom(point: float, available: float, spread: Regime) -> float:
    """Return the probability that a level predicted at `point` bytes needs more than `available`.

    Between quantiles it is interpolated; beyond the last one it falls off as the last stretch does.

    >>> p_oom(100.0, 100.0, Regime("x", (0.05, 0.5, 0.95), (-0.1, 0.0, 0.1)))
    0.5
    """
    if point <= 0:
        return 0.0
    if available <= 0:
        return 1.0
    x, xs, ps = math.log(available / point), spread.log_error, spread.p
    if x >= xs[-1]:
        scale = max(xs[-1] - xs[-2], 1e-6) / math.log((1 - ps[-2]) / (1 - ps[-1]))
        return (1 - ps[-1]) * math.exp(-min(700.0, (x - xs[-1]) / scale))
    if x <= xs[0]:
        scale = max(xs[1] - xs[0], 1e-6) / math.log(ps[1] / ps[0])
        return 1.0 - ps[0] * math.exp(-min(700.0, (xs[0] - x) / scale))
    return 1.0 - _interpolate(x, xs, ps)


def _interpolate(x: float, xs: tuple[float, ...], ys: tuple[float, ...]) -> float:
    i = min(max(bisect.bisect_right(xs, x), 1), len(xs) - 1)
    span = xs[i] - xs[i - 1]
    share = (x - xs[i - 1]) / span if span else 0.0
    return ys[i - 1] + min(max(share, 0.0), 1.0) * (ys[i] - ys[i - 1])
