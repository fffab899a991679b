"""What the solvers of serving share: a precision becomes formats and rates, a model and a device a deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from foretell.arch.workload import Workload
from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import regime_of
from foretell.core.speed import CALIBRATED, checked_share
from foretell.cost.inference_time import NumberFormat, number_format
from foretell.cost.kernels import Device
from foretell.cost.serving_host import interval_of
from foretell.cost.serving_step import step_prices
from foretell.dtypes import dtype
from foretell.errors import CombinationError, InputError
from foretell.machine.hardware import HardwareNode
from foretell.recipe.serving import ServingRecipe
from foretell.validation import MAX_SEQUENCE, number, positive_int

__all__ = [
    "BEYOND",
    "LAYOUT",
    "PRECISIONS",
    "around",
    "lengths",
    "positive_share",
    "precision_notes",
    "remarks",
    "served",
    "stored_formats",
]

PRECISIONS: Final = {
    # name: (weights, keys and values), as engines store them
    "fp32": ("fp32", "fp32"),
    "tf32": ("fp32", "fp32"),
    "bf16": ("bf16", "bf16"),
    "fp16": ("fp16", "fp16"),
    "fp8": ("fp8", "fp8"),
    "int8": ("int8", "int8"),
    "int4": ("int4", "int4"),
    "fp4": ("nvfp4", "nvfp4"),
}
"""Precision -> formats of served weights and of keys and values."""
_NAMES: Final = {"nvfp4": "fp4", "fp8-block": "fp8", "fp8-tile": "fp8"}
_STORED: Final = "precision='bf16' with weights='int4' stores 4 bits and multiplies in 16"
LAYOUT: Final[dict[str, Any]] = {
    "tp_size": 1,
    "pp_size": 1,
    "ep_size": 1,
    "engine": None,
    "engine_version": None,
    "weights": None,
    "kv_format": None,
}
"""Later parameters that all solvers of servers have, with their defaults."""
BEYOND: Final = "does not fit: times are those it would have if it did"


def stored_formats(precision: str, device: HardwareNode) -> tuple[NumberFormat, str, str]:
    """Return the rate of a precision and the formats of weights and of keys and values; InputError for what the device lacks."""
    name = dtype(precision, "precision").name
    name = _NAMES.get(name, name)
    if name not in PRECISIONS:
        problem = "is not a format that models are served in"
        raise InputError(problem, field="precision", value=precision, allowed=list(PRECISIONS), hint=_STORED)
    if name not in device.peak_flops:
        problem = f"has no known peak on {device.name}"
        instead = _STORED if "4" in name else None
        raise InputError(problem, field="precision", value=precision, allowed=list(device.peak_flops), hint=instead)
    return number_format(device, name), *PRECISIONS[name]


def served(
    workload: Workload,
    device: HardwareNode,
    precision: str,
    efficiency: float | str,
    layout: Mapping[str, Any],
    *,
    draft: Workload | None = None,
    **flags: Any,  # of ServingRecipe
) -> Deployment:
    """Return the deployment of a model on a group of devices, with the rates that its precision has.

    ``layout``: values of :data:`LAYOUT`.  InputError or CombinationError for what cannot be served so.
    """
    share = positive_share(efficiency)
    kind, weights, kept = stored_formats(precision, device)
    degrees: dict[str, Any] = {
        name: positive_int(layout[f"{name}_size"], f"{name}_size", maximum=65536) for name in ("tp", "pp", "ep")
    }
    recipe = ServingRecipe(
        engine="vllm" if layout["engine"] is None else layout["engine"],
        version=layout["engine_version"],
        weights=weights if layout["weights"] is None else layout["weights"],
        activations=weights,
        kv=kept if layout["kv_format"] is None else layout["kv_format"],
        **degrees,
        **flags,
    )
    try:
        found = deployment(workload, device, recipe, efficiency=share, draft=draft)
    except InputError as error:
        if error.field in ("tp", "pp", "ep", "kv"):  # as our signature names it
            error.field = "kv_format" if error.field == "kv" else f"{error.field}_size"
        raise
    return _rated(found, kind)


def _rated(found: Deployment, kind: NumberFormat) -> Deployment:
    """The deployment with the rates of its precision, where they are not those of the device's usual 16 bits."""
    steps, rate = found.steps, found.hardware.peak(kind.compute)
    if kind.low or steps.device.peak == rate:
        return found
    device = Device(rate, rate, steps.device.bandwidth, steps.device.processors)
    formats, engine = steps.formats, steps.engine
    if kind.wide:  # activations are twice as wide too
        formats, engine = replace(formats, unit=kind.bytes), replace(engine, fused=engine.fused * kind.bytes / 2.0)
    made = step_prices(
        steps.arch,
        device,
        steps.efficiency,
        steps.topology,
        steps.layout,
        formats,
        engine,
        eager=steps.eager,
        online=steps.online,
        share=steps.share,
    )
    return replace(found, steps=made)


def positive_share(efficiency: float | str) -> float | str:
    """Return "calibrated", or a share of the peak above 0 and at most 1."""
    return CALIBRATED if isinstance(efficiency, str) and efficiency == CALIBRATED else checked_share(efficiency)


def lengths(seq_len: object, max_seq_len: object, mean_request_tokens: object) -> tuple[int, float]:
    """Return the longest and the mean number of a request's tokens; ``max_seq_len`` is another name of ``seq_len``."""
    if seq_len is None and max_seq_len is None:
        raise InputError("is needed", field="seq_len", allowed=f"1 to {MAX_SEQUENCE}")
    given = {
        name: positive_int(value, name, maximum=MAX_SEQUENCE)
        for name, value in (("seq_len", seq_len), ("max_seq_len", max_seq_len))
        if value is not None
    }
    if len(set(given.values())) > 1:
        raise CombinationError("and seq_len name the same thing", field="max_seq_len", value=max_seq_len, allowed=[seq_len])
    longest = next(iter(given.values()))
    if mean_request_tokens is None:
        return longest, float(longest)
    return longest, number(mean_request_tokens, "mean_request_tokens", minimum=1.0, maximum=float(longest))


def around(value: float | None, found: Deployment, kind: str, metric: str) -> tuple[float, float] | None:
    """Return the 90 % interval of a calibrated time or rate; None where two roofs alone decide.

    ``kind``: of the load, whose measured runs say how far off it may be.
    """
    if value is None or found.steps.share is not None:
        return None
    low, high = interval_of(regime_of(found, Demand(kind, 1.0, 1.0)), metric)
    return value * low, value * high


def precision_notes(found: Deployment) -> list[str]:
    """Return how weights, keys and values are stored."""
    r = found.recipe
    out = [f"weights in {r.weights}, keys and values in {r.kv}"]
    if found.steps.formats.weight < 2.0 and found.steps.formats.head > found.steps.formats.weight:
        out[0] += "; embeddings, output projection and norms stay in 16 bits, as engines have them"
    return out


def remarks(found: Deployment) -> list[str]:
    """Return what was assumed and left out."""
    out = [*found.workload.notes, *precision_notes(found)]
    if found.steps.share is not None:
        left = "the serving software's own time" + (" and communication between devices" if found.recipe.devices > 1 else "")
        out.append(f"two roofs: a share of the peak for arithmetic, all of the bandwidth for traffic; {left} left out")
    out += [note for note in found.notes if note != "weights and KV of the draft model are not counted"]
    return list(dict.fromkeys(out))
