"""The measured run: builds a job, trains it for some steps, and reads the counters after each."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from _measure.configurations import STEPS, Configuration
from _measure.context import kernel_of
from _measure.counters import Counters
from _measure.jobs import job

__all__ = ["measure"]


def measure(c: Configuration, counters: Counters, snapshot: Path | None, allowance: int) -> dict[str, Any]:
    """Return what a run of a configuration took.

    ``snapshot``: where its memory snapshot goes, unless that is larger than ``allowance`` bytes.  Running out of the device's
    memory is a result: ``outcome`` is ``oom``.
    """
    counters.begin(c.limit_bytes)
    if snapshot is not None:
        counters.history()
    found: dict[str, Any] = {"outcome": "measured", "steps": []}
    made: dict[str, Any] | None = None
    torch.manual_seed(0)
    try:
        made = _train(c, counters, found)
    except torch.OutOfMemoryError as error:
        found |= {"outcome": "oom", "reason": " ".join(str(error).split())[:600]}
    found["end"] = counters.read()
    found["outside"] = counters.outside()
    if snapshot is not None:
        found |= _keep(counters, snapshot, allowance)
    found["machine"] = counters.machine()
    if made is not None and not c.compiled:
        found["kernels"] = _attention_kernels(made, counters.device)
    return found


def _train(c: Configuration, counters: Counters, found: dict[str, Any]) -> dict[str, Any]:
    """Build, and train for :data:`STEPS` steps; ``found`` takes what is known so far.  Return the job."""
    begun = time.monotonic()
    with torch.device(counters.device):
        made = job(c)
    model = made["model"]
    found["parameters"] = sum(p.numel() for p in model.parameters())
    found["trainable"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    optimizer = made["optimizer"]([p for p in model.parameters() if p.requires_grad])
    found["built"] = counters.read() | {"seconds": round(time.monotonic() - begun, 3)}
    for _ in range(STEPS):
        counters.reset()
        begun = time.monotonic()
        loss = _step(made, optimizer, counters.device)
        read = counters.read()
        found["steps"].append(read | {"seconds": round(time.monotonic() - begun, 3), "loss": loss})
    return made


def _step(made: dict[str, Any], optimizer: torch.optim.Optimizer, device: str) -> float:
    """Train one step, as ``foretell.trace.Job`` says that a step goes; return the last loss."""
    accumulate, clip, last = made["accumulate"], made["clip"], 0.0
    for _ in range(accumulate):
        loss = _forward(made, _inputs(made, device), device)
        loss.backward()  # type: ignore[no-untyped-call]
        last = loss.item()
        del loss
    if clip is not None:
        torch.nn.utils.clip_grad_norm_([p for p in made["model"].parameters() if p.requires_grad], clip)
    optimizer.step()
    optimizer.zero_grad()
    return last


def _inputs(made: dict[str, Any], device: str) -> Any:
    with torch.device(device):
        return made["batch"]()


def _forward(made: dict[str, Any], batch: Any, device: str) -> torch.Tensor:
    cast = made["autocast"]
    with torch.autocast(device, dtype=getattr(torch, cast)) if cast else contextlib.nullcontext():
        loss: torch.Tensor = made["loss"](made["model"], batch)
    return loss / made["accumulate"] if made["accumulate"] > 1 else loss


def _attention_kernels(made: dict[str, Any], device: str) -> dict[str, int]:
    """Return how often a forward pass takes which attention kernel, by the name of its backward.

    It is one more pass, after everything was read.
    """
    original = functional.scaled_dot_product_attention
    seen: Counter[str] = Counter()

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        out = original(*args, **kwargs)
        seen[kernel_of(out)] += 1
        return out

    with mock.patch.object(functional, "scaled_dot_product_attention", watched), contextlib.suppress(torch.OutOfMemoryError):
        _forward(made, _inputs(made, device), device)
    return dict(seen)


def _keep(counters: Counters, path: Path, allowance: int) -> dict[str, Any]:
    """Write the snapshot; one that is too large is left out, and that is said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counters.write_history(path)
    size = path.stat().st_size
    if size > allowance:
        path.unlink()
        return {"snapshot": None, "snapshot_left_out": f"{size / 2**20:.1f} MiB, with {allowance / 2**20:.1f} MiB left"}
    return {"snapshot": f"{path.parent.name}/{path.name}", "snapshot_bytes": size}
