"""Which shares of its datasheet a device's kernels reach: the calibration of kernels, by generation and device.

The numbers stand in ``catalog/data/calibration/kernels.json``, written by ``scripts/fit_kernels.py``.
"""

from __future__ import annotations

import functools
import json
import math
from importlib import resources
from typing import Any

from foretell.cost.kernels import Efficiency

__all__ = ["calibration", "efficiency", "generation", "interval"]

_GENERATIONS: dict[str, str] = {"7": "ampere", "8": "ampere", "9": "hopper", "10": "blackwell", "12": "ampere"}
"""First figure of the compute capability -> the generation whose shares a device takes.  Blackwell's cards without tensor memory
(12.x) run products as Ada does, warp by warp (PTX ISA, tcgen05 is of sm_100 alone)."""


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file of kernels."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/kernels.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def generation(compute_capability: str | None) -> str:
    """Name the generation whose shares a device takes; one that was never measured takes Hopper's.

    >>> generation("10.3"), generation("8.9"), generation("gfx942")
    ('blackwell', 'ampere', 'hopper')
    """
    return _GENERATIONS.get((compute_capability or "").split(".")[0], "hopper")


def efficiency(compute_capability: str | None, gpu: str = "") -> Efficiency:
    """Return the shares that a device's kernels reach; ``gpu`` is its catalog id.

    >>> efficiency("gfx942", "mi300x").matmul < efficiency("9.0").matmul
    True
    """
    data = calibration()
    values: dict[str, float] = data["generations"][generation(compute_capability)]
    own: dict[str, float] = data["devices"].get(gpu, {}).get("values", {})
    return Efficiency(**(values | own))


def interval(seconds: float, kind: str, compute_capability: str | None, gpu: str = "") -> tuple[float, float]:
    """Return the range that holds the measured time of nine kernels in ten.

    ``kind`` as rows have it (``gemm``).  A device of which no kernel was measured has the wider range of devices left out.
    """
    data = calibration()
    found, name = data["intervals"], f"{kind}.{generation(compute_capability)}"
    if gpu not in data["measured"]:
        name = "unmeasured"
    low, high = found.get(name, found["unmeasured"])["log_error"]
    return seconds * math.exp(low), seconds * math.exp(high)
