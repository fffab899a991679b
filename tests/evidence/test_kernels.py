"""Measured kernels, replayed: an error budget, and what is said of rows that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretell.evidence.kernel_replay import score
from foretell.evidence.replay import replay, shipped


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return replay("kernels", shipped("kernels"))


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "x",
        "source": {"title": "somebody/something"},
        "kind": "gemm",
        "selection": "as-run",
        "hardware": {"gpu": "h100-sxm-80gb"},
        "shape": {"m": 4096, "n": 10240, "k": 8192, "batch": 1},
        "dtype": "bf16",
        "measured": {"time_us": 980.0},
        "confidence": 3,
    }
    return base | changes


def test_the_budget(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert summary["mape_pct"] < 8
    assert abs(summary["bias_pct"]) < 2
    assert 87 < summary["coverage_pct"] < 96
    assert summary["skipped"] < 0.02 * len(report["rows"])
    assert summary["by_gpu"]["b200-sxm"]["mape_pct"] < 9.5
    assert summary["by_gpu"]["a100-pcie-80gb"]["mape_pct"] < 4
    for kind in ("gemm", "grouped_gemm", "attention_fwd", "attention_bwd"):
        assert summary["by_framework"][kind]["mape_pct"] < 10
        assert summary["by_framework"][kind]["coverage_pct"] > 80


def test_rows_that_the_fit_did_not_see_are_about_as_near(report: dict[str, Any]) -> None:
    left_out = report["summary"]["left_out"]
    fifths = [found["mape_pct"] for name, found in left_out.items() if name.startswith("fifth")]
    assert len(fifths) == 5
    assert max(fifths) < 9
    assert left_out["h100-sxm-80gb"]["mape_pct"] < 15
    assert left_out["b200-sxm"]["mape_pct"] < 20


def test_times_are_microseconds() -> None:
    found = score(row())
    assert (found.metric, found.measured) == ("time_us", 980.0)
    assert found.predicted == pytest.approx(980, rel=0.1)
    assert found.predicted is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.predicted < found.high
    assert found.inside


def test_passes_of_experts() -> None:
    shape = {"groups": 256, "m_per_group": 128, "n": 4096, "k": 7168}
    base = row(kind="grouped_gemm", hardware={"gpu": "b200-sxm"}, shape=shape, accumulate=True)
    half, unstated, single, there = (
        score(base | changes).predicted
        for changes in (
            {"stage": "bwd-grad-w", "main_grad_dtype": "bf16"},
            {"stage": "bwd-grad-w"},
            {"stage": "bwd-grad-w", "main_grad_dtype": "fp32"},
            {"stage": "fwd", "accumulate": False},
        )
    )
    assert half and unstated and single and there  # noqa: PT018
    assert there < half < unstated < single
    assert single > 1.6 * half
    assert "main gradient" in score(base | {"stage": "bwd-grad-w"}).note
    assert not score(base | {"stage": "fwd"}).note


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "sort"}, "not-modelled: kernel sort"),
        ({"selection": "best-of-search"}, "not-modelled: best-of-search"),
        ({"dtype": "fp64"}, "not-modelled: kernels in fp64"),
        ({"dtype": "fp8", "hardware": {"gpu": "a100-sxm-80gb"}}, "not-modelled: precision='fp8'"),
        ({"out_dtype": "int4"}, "not-modelled: results in int4"),
        ({"measured": {"tflops": 3}}, "not-modelled: time_us"),
        ({"measured": {"time_us": 0}}, "not-modelled: measured.time_us"),
        ({"measured": 7}, "underspecified: the row cannot be read"),
        ({"hardware": {"gpu": "h900"}}, "not-modelled: hardware='h900'"),
        ({"hardware": 3}, "underspecified: the row cannot be read"),
        ({"hardware": {"gpu": "tpu-v5e"}}, "not-modelled: the number of processors"),
        ({"shape": {"m": 1, "n": 2}}, "underspecified: shape.k is absent"),
        ({"shape": {"m": -1, "n": 2, "k": 8}}, "not-modelled: shape.m=-1"),
        ({"shape": {"m": 8, "n": 8, "k": 8, "batch": "x"}}, "not-modelled: shape.batch"),
        ({"kind": "grouped_gemm", "stage": "sideways"}, "underspecified: shape.m_per_group"),
        ({"kind": "attention_fwd", "dtype": "fp8"}, "not-modelled: attention in fp8"),
        ({"kind": "attention_fwd", "shape": {"batch": 1, "seq_len": 8}}, "underspecified: shape.causal"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(changes: dict[str, Any], reason: str) -> None:
    found = score(row(**changes))
    assert found.predicted is None
    assert found.skipped is not None
    assert found.skipped.startswith(reason)
    json.dumps(found.to_dict())
