"""Batch norm over several ranks: what its kernels make, which exist for CUDA alone, and the mask of ranks without input."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from foretell.trace import Recording, TraceRequest, record

pytest.importorskip("torch")

WORLD, BATCH, CHANNELS, SIDE = 4, 2, 64, 16
ELEMENTS = BATCH * CHANNELS * SIDE * SIDE
JOBS = f"""
import torch
from torch import nn
from foretell.trace import Job

def job(dtype=None, frozen=False):
    torch.distributed.init_process_group("nccl")
    model = nn.Sequential(nn.Conv2d(3, {CHANNELS}, 3, padding=1), nn.SyncBatchNorm({CHANNELS}), nn.ReLU())
    if frozen:
        model[1].requires_grad_(False)
    batch = lambda: torch.randn({BATCH}, 3, {SIDE}, {SIDE})
    sgd = lambda ps: torch.optim.SGD(ps, lr=0.1)
    return Job(model, batch, loss=lambda m, b: m(b).float().sum(), optimizer=sgd, autocast=dtype)

def half():
    return job("float16")

def frozen():
    return job(frozen=True)
"""


@cache
def traced(name: str) -> Recording:
    with TemporaryDirectory() as folder:
        Path(folder, "jobs.py").write_text(JOBS)
        return record(TraceRequest(target=f"jobs.py:{name}", folder=folder, world=WORLD, steps=1))


def made(recording: Recording, op: str) -> Counter[int]:
    return Counter(s.bytes for s in recording.storages if s.op == f"aten::batch_norm_{op}")


@pytest.mark.parametrize(("name", "element"), [("job", 4), ("half", 2)])
def test_statistics_are_wide_and_outputs_are_as_the_input(name: str, element: int) -> None:
    recording = traced(name)
    assert made(recording, "stats") == {4 * CHANNELS: 2}
    assert made(recording, "gather_stats_with_counts") == {4 * CHANNELS: 2}
    assert made(recording, "elemt") == {element * ELEMENTS: 1}
    assert made(recording, "backward_reduce") == {4 * CHANNELS: 4}  # two sums, two gradients of fp32 weights
    assert made(recording, "backward_elemt") == {element * ELEMENTS: 1}


def test_statistics_of_all_ranks_are_gathered() -> None:
    gathered = [s.bytes for s in traced("job").storages if s.op == "aten::empty" and s.bytes == 4 * WORLD * (2 * CHANNELS + 1)]
    assert len(gathered) == 1


def test_what_is_frozen_gets_no_gradient() -> None:
    assert made(traced("frozen"), "backward_reduce") == {4 * CHANNELS: 2}


def test_every_rank_has_input_and_the_answer_says_so() -> None:
    given = traced("job").about["policies"]
    assert given == {"aten::index: every rank has input for SyncBatchNorm": 3}
