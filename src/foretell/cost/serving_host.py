"""What a serving engine adds to its kernels: the host's time, its own collectives, how it fuses; by engine and version."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Final

__all__ = ["EngineTime", "calibration", "engine_time", "family_of", "interval_of"]


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds and shares of one engine at one version."""

    step_s: float
    """Host time of a step that the device waits for: scheduling, sampling, handing out tokens."""
    sequence_s: float
    """... for each sequence of it."""
    stream_s: float
    """... to stream its tokens to clients, beside the device: the next step waits for it where the device is quicker."""
    product: float
    """Seconds of products that arithmetic bounds, inside a step, over those of the best kernels alone."""
    eager_layer_s: float
    """Host time to launch the kernels of one layer where no CUDA graph holds them: the device waits when it is quicker."""
    prefill_layer_s: float
    """... in steps that read prompts, which run without graphs or with pieces of them."""
    request_s: float
    """From a client's request to the scheduler, and from the first token back to the client."""
    kernel_s: float
    """What a kernel of a CUDA graph takes beside its work."""
    fused: float
    """Share of the unfused traffic of everything that is neither product nor attention."""
    cache_share: float
    """Share of the bandwidth at which decoding attention reads keys and values."""
    expert_share: float
    """Rate of routed experts' products over that of dense ones of their shape."""
    expert_layer_s: float
    """What a layer with routed experts takes beside its products: choosing, sorting and adding up, kernel by kernel."""
    unpack: float
    """Seconds of products that unpack their weights over those that need not, where arithmetic decides."""
    reduce_s: float
    """What a sum over tensor-parallel ranks takes beside the transfer: waiting for each other, launching."""
    link_share: float
    """Share of the links' rate that the engine's own kernels for it reach."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the numbers."""
        return tuple(f.name for f in fields(cls))


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file of serving engines."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/serving.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


_FAMILIES: Final[tuple[tuple[str, str, tuple[int, ...]], ...]] = (
    # engine, family, first version of it; newest first
    ("vllm", "vllm-v1", (0, 8)),
    ("vllm", "vllm-v0", (0, 3)),
    ("vllm", "vllm-2023", (0,)),
    ("tensorrt-llm", "tensorrt-llm-pytorch", (0, 19)),
    ("tensorrt-llm", "tensorrt-llm-cpp", (0,)),
    ("sglang", "sglang", (0,)),
    ("lmdeploy", "lmdeploy", (0,)),
)
_STAND_IN: Final = "vllm-v1"
"""Family whose constants an engine takes of which no run was measured."""


def family_of(engine: str, version: str) -> tuple[str, bool]:
    """Name the family of an engine's version, and say whether runs of it were measured.

    >>> family_of("vllm", "0.6.0"), family_of("tgi", "3.0")
    (('vllm-v0', True), ('vllm-v1', False))
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)) or (999,)
    for name, family, since in _FAMILIES:
        if name == engine and numbers >= since:
            return family, True
    return _STAND_IN, False


@functools.lru_cache(maxsize=64)
def engine_time(family: str) -> EngineTime:
    """Return the constants of a family of engines."""
    data = calibration()
    values = {name: entry["value"] for name, entry in (data["shared"] | data["families"][family]).items()}
    return EngineTime(**values)


def interval_of(regime: str, metric: str) -> tuple[float, float]:
    """Return the ends of the 90 % interval of a metric as factors, from the residuals of measured runs of its kind.

    Regimes: ``single``, ``static``, ``closed``, ``open``, ``offline``; with `` experts`` for models that route tokens, and with
    `` elsewhere`` for engines or devices that no run was measured on.
    """
    data = calibration()
    found = data["intervals"]
    near = regime.removesuffix(" elsewhere")
    names = (f"{near} {metric}", f"{near.split()[0]} {metric}", metric)
    low, high = next(found[name] for name in names if name in found)
    wider = 1.0 if near == regime else float(data["elsewhere"])
    return math.exp(wider * low), math.exp(wider * high)
