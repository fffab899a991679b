"""What a framework's software adds to the kernels: launches, fusion, overlap, and how it matures on a new device.

The numbers are fitted (``catalog/data/calibration/training.json``); each is physical and bounded.  A family is a group of
frameworks that share an execution engine.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Attention, Scan
from foretell.cost import kernel_shares
from foretell.cost.kernels import Efficiency
from foretell.recipe.resolve import Run

__all__ = [
    "FAMILIES",
    "GENERATIONS",
    "Software",
    "calibration",
    "efficiency",
    "family",
    "generation",
    "interval_of",
    "regime_of",
    "software",
]

FAMILIES: dict[str, str] = {
    "megatron-core": "megatron",
    "megatron-bridge": "megatron",
    "nanotron": "megatron",
    "generic": "megatron",
    "megatron-deepspeed": "deepspeed",
    "deepspeed": "deepspeed",
}
"""Framework -> family; all others run PyTorch's own engine (``eager``), or its compiler (``compiled``)."""
GENERATIONS: dict[str, tuple[str, str]] = {
    # first figure of the compute capability -> (name, month when the first systems shipped)
    "7": ("volta", "2017-12"),
    "8": ("ampere", "2020-06"),
    "9": ("hopper", "2023-03"),
    "10": ("blackwell", "2025-01"),
}


CAPTURED: dict[str, float] = {"none": 0.0, "partial": 0.5, "layer": 0.9, "full": 0.98}
"""Share of a step's launches that CUDA graphs take from the host: a graph is launched as one."""


@dataclass(frozen=True, slots=True)
class Software:
    """Constants of one run, chosen by its framework's family, its device's generation and its date."""

    matmul: float
    """Seconds of matrix products inside a step over those alone."""
    low: float
    """... of low-precision ones, on top."""
    experts: float
    """... of grouped ones, on top."""
    attention: float
    """Seconds of the family's attention kernel over the best one's."""
    stream: float
    """Bytes that the family's kernels move over those of its operators apart (fusion makes it less than one)."""
    launch: float
    """Host seconds of one kernel launch."""
    call: float
    """Host seconds of one collective."""
    checkpoint: float
    """Host seconds of one recomputed block: the random state is kept and put back."""
    route: float
    """Host seconds of one dispatch of routed tokens."""
    tp_hidden: float
    """Share of tensor-parallel exchanges hidden where the framework pipelines them with the products."""
    cp_hidden: float
    """Share of attention's time that can hide the keys and values on their way."""
    ep_hidden: float
    """Share of the experts' exchanges that is hidden."""
    dp_hidden: float
    """Share of a pass that can hide gradients and parameters on their way."""
    interference: float
    """Seconds that one second of a hidden exchange takes from the compute it hides behind."""
    p2p: float
    """Share of a pipeline transfer that the sending rank waits for."""
    maturity: float
    """Seconds over those of software that has matured on the device and leaves no gaps between kernels."""
    fixed: float
    """Seconds a step beside all passes: loss logging, scheduler, first launches."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the constants."""
        return tuple(f.name for f in fields(cls))


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file of training steps."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/training.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def generation(compute_capability: str | None) -> str:
    """Name the generation whose constants a device takes; one that was never measured takes Hopper's shares.

    >>> generation("10.0"), generation("8.9"), generation("gfx942")
    ('blackwell', 'ampere', 'hopper')
    """
    major = (compute_capability or "").split(".")[0]
    found = GENERATIONS.get(major, ("hopper", ""))[0]
    return "ampere" if found == "volta" else found


def efficiency(compute_capability: str | None, gpu: str = "") -> Efficiency:
    """Return the shares of its datasheet that a device's kernels reach; ``gpu`` is its catalog id."""
    return kernel_shares.efficiency(compute_capability, gpu)


def family(run: Run) -> str:
    """Return the execution engine of a run's framework."""
    found = FAMILIES.get(run.profile.name)
    if found is None:
        return "compiled" if run.recipe.compile else "eager"
    return found


def software(run: Run, compute_capability: str | None, known: Mapping[str, float] | None = None) -> Software:
    """Return the constants of a run.  ``known`` replaces the calibrated ones (fits)."""
    k = {name: entry["value"] for name, entry in calibration()["constants"].items()} if known is None else known
    gen, kind = generation(compute_capability), family(run)

    def of(name: str, *keys: str) -> float:
        return k[next((full for key in keys if (full := f"{name}.{key}") in k), name)]

    attention = "flash1" if run.profile.name == "llm-foundry" else kind
    launched = 1.0 - CAPTURED[run.recipe.cuda_graphs]
    return Software(
        matmul=of("matmul", gen),
        low=of("low", gen),
        experts=of("experts", gen),
        attention=of("attention", f"{attention}.{gen}", attention),
        stream=of("stream", kind),
        launch=of("launch", kind) * launched,
        call=of("call", kind) * launched,
        checkpoint=of("checkpoint", kind),
        route=0.0 if _sync_free(run, gen) else of("route", kind),
        tp_hidden=k["tp_hidden"],
        cp_hidden=k["cp_hidden"],
        ep_hidden=k["ep_hidden"] if _exchanges_overlap(run) else 0.0,
        dp_hidden=of("dp_hidden", kind),
        interference=k["interference"],
        p2p=k["p2p"],
        maturity=_maturity(run, compute_capability, k) * (k["gaps"] if kind in ("eager", "compiled") else 1.0),
        fixed=k["fixed"],
    )


SYNC_FREE = "2026-06"
"""Since when Megatron's experts run without the host learning how many tokens each got, on Blackwell (Megatron-Bridge 26.06)."""


def _exchanges_overlap(run: Run) -> bool:
    """Whether one micro-batch's experts exchange tokens while another computes: Megatron-Core's 1F1B overlap wants virtual
    stages, DualPipe pairs a forward with a backward pass (arXiv 2412.19437, section 3.2.1)."""
    return run.par.pp > 1 and (run.par.vpp > 1 or run.schedule == "dualpipe")


def _sync_free(run: Run, gen: str) -> bool:
    """Whether the host never waits for the sizes of routed batches."""
    return family(run) == "megatron" and gen == "blackwell" and (not run.recipe.date or run.recipe.date >= SYNC_FREE)


def _maturity(run: Run, compute_capability: str | None, k: Mapping[str, float]) -> float:
    """Seconds over those of matured software: 1 + a exp(-age / tau), by the months since the device's systems shipped."""
    date, major = run.recipe.date, (compute_capability or "").split(".")[0]
    shipped = GENERATIONS.get(major, ("", ""))[1]
    if not date or not shipped:
        return 1.0
    months = max(0, _months(date) - _months(shipped))
    return 1.0 + k["maturity.young"] * math.exp(-months / k["maturity.months"])


def _months(date: str) -> int:
    year, month = [*date.split("-"), "6"][:2]
    return 12 * int(year) + int(month)


def regime_of(run: Run, arch: Architecture, device: str | None) -> str:
    """Name the kind of run whose residuals an interval is set from.

    Families of frameworks and devices (catalog ids) that no measured run has, models other than decoders of tokens, and a
    framework that is not named take the residuals of whole sources that a fit did not see.
    """
    known, moe = calibration()["regimes"], arch.experts > 0
    name = f"{family(run)} {'experts' if moe else 'dense'}"
    seen = device in calibration()["devices"] and run.profile.name != "generic" and _decoder(arch)
    return name if name in known and seen else "experts elsewhere" if moe else "elsewhere"


@functools.lru_cache(maxsize=256)
def _decoder(arch: Architecture) -> bool:
    """Whether every layer is causal attention over one sequence of tokens, as of all models that were measured."""
    ops = [op for stack in arch.stacks for block in stack.blocks for op in block.ops]
    own = [op for op in ops if isinstance(op, Attention)]
    alike = all(op.causal and op.memory == "self" for op in own) and not any(isinstance(op, Scan) for op in ops)
    return bool(own) and alike and len(arch.stacks) == 1


def interval_of(regime: str, *, anchored: bool = False) -> tuple[float, float]:
    """Return the ends of a 90 % interval as factors; one measured step leaves what repeated runs differ by."""
    low, high = calibration()["regimes"]["anchored" if anchored else regime]["log_error"]
    return math.exp(low), math.exp(high)
