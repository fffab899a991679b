"""What foretell says of a configuration that was measured: by its trace, by its formulas, and by its model of the allocator."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from _measure.configurations import STEPS, Configuration
from foretell.arch import load_model
from foretell.cost.allocator import AllocatorSettings
from foretell.cost.overheads import context_bytes
from foretell.machine import HardwareNode, load_hardware
from foretell.plan.launch import Launch
from foretell.recipe import Parallelism, TrainingRecipe
from foretell.recipe.training import Adapter, Recompute
from foretell.trace.answer import answer
from foretell.trace.compare import compare
from foretell.trace.events import Recording
from foretell.trace.measured import read_measured
from foretell.trace.model_check import check_model
from foretell.trace.replay import Replay, replay
from foretell.trace.request import TraceRequest
from foretell.trace.run import record

__all__ = ["allocator", "analytic", "hardware_of", "levels", "trace"]

FRAMEWORK: Final = "hf-trainer"
"""Profile of the formulas: modules as in transformers, in a loop that keeps the loss alone."""
_TARGETS: Final = Path(__file__).resolve().parents[1] / "measure_memory.py"
_BLOCKS: Final = 12
"""Groups of blocks that only one side has, which a comparison names."""

Traced = tuple[Recording, Replay]


def hardware_of(gpu: str | None) -> HardwareNode | None:
    """Return the catalog's entry of a GPU."""
    return None if gpu is None else load_hardware(gpu)


def trace(c: Configuration, machine: dict[str, Any], *, dry: bool, seconds: float) -> Recording:
    """Return the trace of a configuration on the machine that was measured; ``seconds``: what it may take.

    Raises:
        foretell.errors.InputError: it cannot be traced here, or takes longer.

    """
    major, _, minor = (machine.get("compute_capability") or "9.0").partition(".")
    request = TraceRequest(
        target=f"{_TARGETS}:{'DRY' if dry else 'JOBS'}.{c.name}",
        folder=str(_TARGETS.parent),
        gpu=machine["gpu"],
        capability=(int(major), int(minor)),
        gpu_bytes=machine["total_bytes"],
        steps=STEPS,
    )
    return record(request, time_limit=seconds)


def levels(recording: Recording, c: Configuration, hardware: HardwareNode | None) -> tuple[dict[str, Any], Replay]:
    """Return what a trace says (bytes): the levels, those of each step, whether the run ends early; and its replay."""
    settings = AllocatorSettings.parse(c.allocator)
    begun = time.monotonic()
    played = replay(recording, settings)
    found: dict[str, Any] = {"outcome": "measured"}
    if c.limit_bytes is not None:
        limited = replay(recording, settings, capacity=c.limit_bytes)
        found |= {"outcome": "oom" if limited.oom else "measured", "retries": limited.retries}
        played = played if limited.oom else limited
    found |= {
        "allocated": played.peak_allocated.bytes,
        "active": played.peak_allocated.bytes,
        "reserved": played.peak_reserved.bytes,
        "requested": int(played.requested.max(initial=0)),
        "process": None,
        "steps": [_of_step(played, step) for step in range(STEPS)],
        **{key: recording.about.get(key) for key in ("attention", "unknown_workspaces", "repetition", "notes", "torch")},
    }
    if hardware is not None:
        found["process"] = found["reserved"] + round(context_bytes(hardware))
        if c.limit_bytes is None:
            said, _ = answer(recording, hardware, settings)
            found |= {"verdict": said["verdict"], "p_oom": said["p_oom"], "least": said["least_bytes"]}
            found["outcome"] = "oom" if said["verdict"] == "does_not_fit" else "measured"
    found["seconds"] = round(time.monotonic() - begun, 2)
    return found, played


def _of_step(played: Replay, step: int) -> dict[str, int]:
    phases = [p for p in played.phases if p.phase.step == step]
    return {level: max((getattr(p, level) for p in phases), default=0) for level in ("allocated", "reserved", "requested")}


def analytic(c: Configuration, hardware: HardwareNode) -> dict[str, Any]:
    """Return what the formulas say (bytes).

    Raises:
        foretell.errors.InputError: they do not know such a run.

    """
    optimizer, _, implementation = c.optimizer.partition("-")
    adapter = None
    if c.lora_rank is not None:
        adapter = Adapter(kind="lora", rank=c.lora_rank, targets=c.lora_targets, dtype="fp32", dropout=0.0)
    recipe = TrainingRecipe(
        micro_batch=c.micro_batch,
        seq_len=c.tokens or 1,
        grad_accum=c.accumulate,
        framework=FRAMEWORK,
        precision=c.precision,
        optimizer="sgdm" if implementation == "momentum" else optimizer,
        optimizer_impl=implementation if implementation in ("fused", "forloop") else "foreach",  # type: ignore[arg-type]
        recompute=Recompute() if c.recompute == "none" else Recompute("full", "layer"),
        attention=c.attention if c.model_type != "resnet" else None,
        compile=c.compiled,
        adapter=adapter,
        expandable_segments=bool(c.allocator),
    )
    config = {k: v for k, v in c.shape.items() if k != "model_type" or v != "diffusers"}
    begun = time.monotonic()
    said = Launch(load_model(config), hardware, recipe, Parallelism()).replayed()
    return {
        "allocated": round(said.allocated_bytes),
        "active": round(said.allocated_bytes),
        "reserved": round(said.reserved_bytes),
        "process": round(said.total_bytes),
        "verdict": said.verdict,
        "outcome": "oom" if said.verdict == "does_not_fit" else "measured",
        "framework": FRAMEWORK,
        "peak": f"{said.peak_phase}, {said.peak_operator}",
        "breakdown": {name: round(size) for name, size in said.breakdown.items()},
        "seconds": round(time.monotonic() - begun, 2),
    }


def allocator(path: Path, traced: Traced | None) -> dict[str, Any]:
    """Return how the allocator's model does on a run's own requests, and which blocks only the trace or only the run has.

    Raises:
        foretell.errors.InputError: the file is no snapshot.

    """
    measured = read_measured(gzip.decompress(path.read_bytes()), path.name)
    check = check_model(measured)
    found: dict[str, Any] = {
        "whole": measured.whole,
        "peak_allocated": _both(check.peak_allocated),
        "peak_reserved": _both(check.peak_reserved),
        "unknown_cached": check.unknown_cached,
        "followed": msgspec.to_builtins(check.followed),
        "notes": list(check.notes),
    }
    if traced is not None:
        beside = compare(measured, *traced, most=_BLOCKS)
        found["same_blocks"] = beside.same
        found["one_sided"] = msgspec.to_builtins(beside.one_sided)
        found["predicted_phase"] = beside.predicted_phase
    return found


def _both(level: Any) -> dict[str, float | None]:
    relative = level.relative
    return {"measured": level.measured, "model": level.model, "error_pct": None if relative is None else round(100 * relative, 3)}
