"""Trace training steps of small models and print what a fold is compared with: one line of JSON a case.

It runs in a process of its own, because tracing CUDA paths changes the process.  Cases come on standard input as a list; a
step is the one that the Trainer of transformers takes (``trainer.py`` ``training_step``, accelerate's ``prepare_model``), or
that of a loop which keeps the model's output until it is over.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from foretell.trace.engine import session
from foretell.trace.engine.cuda_api import Device
from foretell.trace.engine.models import job_of, prepare
from foretell.trace.events import Recording, Storage
from foretell.trace.job import Job
from foretell.trace.request import ModelRequest

Measured = dict[str, Any]
SCALAR = 24
"""Storages of so few bytes are random states of attention's dropout, the loss and its weight: a fold leaves them out."""


# -- steps ----------------------------------------------------------------------------------------------------


class _Autocast:
    """A model under accelerate's mixed precision: its forward pass is autocast, its half-precision outputs become fp32."""

    def __init__(self, model: Any, dtype: str | None) -> None:
        self.model, self.dtype = model, dtype

    def __call__(self, **batch: Any) -> Any:
        if self.dtype is None:
            return self.model(**batch)
        dtype = getattr(torch, self.dtype)
        with torch.autocast("cuda", dtype=dtype):
            out = self.model(**batch)
        return type(out)({name: value.float() if _is(value, dtype) else value for name, value in out.items()})


def _is(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == dtype


def _collated(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Batches as collators of transformers make them: with a mask, of samples of one length."""

    def made() -> dict[str, Any]:
        batch = make()
        if "input_ids" in batch:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        return batch

    return made


def trainer(job: Job) -> Job:
    """A step of the Trainer: the loss alone outlives the forward pass; gradients are clipped."""
    loss_of, dtype = job.loss, job.autocast
    assert loss_of is not None

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        loss = loss_of(_Autocast(model, dtype), batch)
        del batch
        loss.backward()
        loss = loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()

    return Job(job.model, _collated(job.batch), None, job.optimizer, step)


def loop(job: Job) -> Job:
    """A step of one's own, whose ``outputs`` live until the next."""

    def step(model: Any, batch: Any, optimizer: Any) -> None:
        outputs = model(**batch)
        del batch
        outputs.loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Job(job.model, _collated(job.batch), None, job.optimizer, step)


STEPS = {"hf-trainer": trainer, "peft": loop}


# -- what is measured -----------------------------------------------------------------------------------------


def measured(recording: Recording, traced: session.Traced) -> Measured:
    """Bytes asked for in the second step, workspaces that cuBLAS keeps left out.

    The batch counts where autograd keeps it: the caller holds on to it for as long as it likes.
    """
    freed = {~entry for entry in recording.order if entry < 0}
    kept = {i for i, s in enumerate(recording.storages) if s.category == "workspace" and i not in freed}
    starts = {(phase.name, phase.step): phase.start for phase in reversed(recording.phases)}
    there = _alive(recording, starts["backward", 1], kept)
    saved = {i: s for i, s in there.items() if s.category not in ("parameter", "gradient", "optimizer")}
    states: Counter[str] = Counter()
    gradients = 0
    for storage in _alive(recording, starts["optimizer", 1], kept).values():
        states[storage.category] += storage.bytes
        gradients += storage.category == "gradient"
    unread = {i for i, s in enumerate(recording.storages) if s.category == "input" and i not in saved}
    return {
        "parameters": states["parameter"] - _buffers(traced.job.model),
        "gradients": states["gradient"],
        "optimizer": states["optimizer"],
        "tensors": gradients,
        "saved": sum(s.bytes for s in saved.values() if s.bytes > SCALAR),
        "scalars": sum(s.bytes for s in saved.values() if s.bytes <= SCALAR),
        "peak": _peak(recording, kept | unread),
    }


def _alive(recording: Recording, stop: int, leave: set[int]) -> dict[int, Storage]:
    live: dict[int, Storage] = {}
    for entry in recording.order[:stop]:
        if entry < 0:
            live.pop(~entry, None)
        elif entry not in leave:
            live[entry] = recording.storages[entry]
    return live


def _buffers(model: Any) -> int:
    found = {b.untyped_storage()._cdata: b.untyped_storage().nbytes() for b in model.buffers() if b.device.type == "cuda"}
    return sum(found.values())


def _peak(recording: Recording, leave: set[int]) -> int:
    now = highest = 0
    for phase, entry in zip(recording.phase_of(), recording.order, strict=True):
        index = entry if entry >= 0 else ~entry
        if index not in leave:
            now += recording.storages[index].bytes if entry >= 0 else -recording.storages[index].bytes
        if recording.phases[phase].step == 1:
            highest = max(highest, now)
    return highest


def one(case: dict[str, Any], here: session.Machine) -> Measured:
    """Trace a case."""
    request = ModelRequest(content=case["config"], where=case["id"], **case["options"])
    prepare(request)
    step = STEPS[case["loop"]]
    with session.Traced(lambda: step(job_of(request)), here) as traced:
        return measured(traced.record(), traced)


def main() -> None:
    """Trace the cases that standard input gives."""
    warnings.simplefilter("ignore")
    gc.freeze()  # what was imported stays: collections look at one case alone
    here = session.machine(session.Settings(gpu=Device("NVIDIA A100-SXM4-80GB", (8, 0), 80 * 2**30)))
    for case in json.load(sys.stdin):
        try:
            found = one(case, here)
        except Exception as error:  # noqa: BLE001  # told to the test, which fails or skips
            found = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc(limit=-4)}
        with contextlib.suppress(RuntimeError):
            gc.collect()
            gc.freeze()
        print(json.dumps({"id": case["id"], **found}), flush=True)  # noqa: T201  # its output


if __name__ == "__main__":
    main()
