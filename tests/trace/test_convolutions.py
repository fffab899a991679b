"""What a convolution may be given beside its outputs, and how far an answer's intervals reach for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from foretell.machine import load_hardware
from foretell.trace import Recording, TraceRequest, record
from foretell.trace.answer import answer, convolutions
from foretell.trace.remarks import remarks
from foretell.trace.replay import replay

torch: Any = pytest.importorskip("torch")
BATCH, INPUTS, OUTPUTS, SIDE = 2, 8, 16, 32


def made(window: int = 3, **options: Any) -> tuple[Any, tuple[Any, ...], Any]:
    """A convolution that keeps the size of the image: the operator, its arguments, its output."""
    stride, dilation, groups = (options.get(name, 1) for name in ("stride", "dilation", "groups"))
    transposed = options.get("transposed", False)
    first, second = (INPUTS, OUTPUTS // groups) if transposed else (OUTPUTS, INPUTS // groups)
    x = torch.zeros(BATCH, INPUTS, SIDE, SIDE)
    weight = torch.zeros(first, second, window, window)
    around = [dilation * (window // 2)] * 2
    args = (x, weight, None, [stride] * 2, around, [dilation] * 2, transposed, [0, 0], groups)
    return torch.ops.aten.convolution.default, args, torch.ops.aten.convolution(*args)


def allowed(window: int = 3, **options: Any) -> int:
    from foretell.trace.engine.convolutions import allowance

    return allowance(*made(window, **options))


WINOGRAD = 36 * 4 * (BATCH * (SIDE // 4) ** 2 * (INPUTS + OUTPUTS) + INPUTS * OUTPUTS)
PATCHES = BATCH * SIDE**2 * INPUTS * 4
"""For each element of the window."""


def test_the_larger_of_two_algorithms_counts() -> None:
    assert allowed(3) == max(WINOGRAD, 9 * PATCHES) == 9 * PATCHES
    assert allowed(5) == 25 * PATCHES  # no F(4x4, 3x3)
    assert allowed(3, dilation=2) == 9 * PATCHES
    assert allowed(3, stride=2) == 9 * PATCHES // 4


def test_many_channels_on_a_small_image_are_winograds() -> None:
    from foretell.trace.engine.convolutions import allowance

    x, weight = torch.zeros(1, 64, 4, 4), torch.zeros(64, 64, 3, 3)
    args = (x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert allowance(torch.ops.aten.convolution.default, args, x) == 36 * 4 * (64 + 64 + 64 * 64)


def test_a_matrix_product_as_it_is_needs_nothing() -> None:
    assert allowed(1) == 0
    assert allowed(1, stride=2) == PATCHES // 4
    assert allowed(3, groups=INPUTS) == 0  # depthwise: torch's own kernel
    assert allowed(3, groups=2) == 9 * PATCHES


def test_a_transposed_convolution_has_the_patches_of_its_gradient() -> None:
    assert allowed(3, transposed=True, dilation=2) == 9 * PATCHES // INPUTS * OUTPUTS


def test_a_backward_pass_is_allowed_the_same() -> None:
    from foretell.trace.engine.convolutions import allowance

    for options in ({}, {"stride": 2}, {"dilation": 2}, {"transposed": True}):
        _, (x, weight, _, *rest), out = made(3, **options)
        backward = (out, x, weight, None, *rest, [True, True, False])
        assert allowance(torch.ops.aten.convolution_backward.default, backward, None) == allowed(3, **options)
    assert allowance(torch.ops.aten.mm.default, (x, x), x) == 0


JOBS = f"""
import torch
from torch import nn
from foretell.trace import Job

def _job(model):
    batch = lambda: torch.zeros({BATCH}, {INPUTS}, {SIDE}, {SIDE})
    return Job(model, batch, loss=lambda m, b: m(b).sum(), optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))

def one():
    return _job(nn.Conv2d({INPUTS}, {OUTPUTS}, 3, padding=1))

def none():
    return _job(nn.Linear({SIDE}, 4))

def many():
    return _job(nn.Sequential(*(nn.Conv2d({INPUTS}, {INPUTS}, 3, padding=1) for _ in range(40))))
"""


@cache
def traced(name: str) -> Recording:
    with TemporaryDirectory() as folder:
        Path(folder, "jobs.py").write_text(JOBS)
        return record(TraceRequest(target=f"jobs.py:{name}", folder=folder))


def test_the_highest_level_with_a_workspace_is_known() -> None:
    recording = traced("one")
    weights = 4 * OUTPUTS * (9 * INPUTS + 1)
    x, out = (4 * BATCH * channels * SIDE**2 for channels in (INPUTS, OUTPUTS))
    # a backward pass of the second step: weights and their gradients, the batch, the spread gradient of the sum
    assert recording.about["convolutions"]["largest_bytes"] == 9 * PATCHES
    assert recording.about["convolutions"]["peak_bytes"] >= weights + x + out + 9 * PATCHES
    peak = int(replay(recording).requested.max())
    assert convolutions(recording, replay(recording)) == recording.about["convolutions"]["peak_bytes"] - peak > 0


def test_intervals_reach_as_far_and_a_note_says_so() -> None:
    gpu = load_hardware("a100-80gb")
    for name in ("one", "none"):
        recording = traced(name)
        bare = Recording(recording.storages, recording.order, recording.phases, {**recording.about, "convolutions": {}})
        (with_them, _), (without, _) = answer(recording, gpu), answer(bare, gpu)
        more = with_them["convolution_bytes"]
        for level in ("interval_bytes", "allocated_interval_bytes"):
            assert with_them[level][0] == without[level][0]
            assert with_them[level][1] - without[level][1] >= more
        assert (more > 0) == (name == "one")
        assert with_them["verdict"] == without["verdict"]
    settings = replay(traced("one")).settings
    note = next(n for n in remarks(traced("one"), settings, gpu, 3 << 29) if "cuDNN" in n)
    assert "up to 1.50 GiB to the peak" in note
    assert not any("cuDNN" in n for n in remarks(traced("none"), settings, gpu))


def test_of_layers_that_are_continued_the_largest_workspace_counts() -> None:
    recording = traced("many")
    assert recording.about["repetition"].startswith("3, 4 and 5")
    assert "peak_bytes" not in recording.about["convolutions"]
    assert convolutions(recording, replay(recording)) == recording.about["convolutions"]["largest_bytes"] == 9 * PATCHES
