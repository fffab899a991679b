"""Measured collectives, replayed: an error budget, and what is said of rows that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foretell.evidence.collective_replay import score
from foretell.evidence.kinds import KINDS, kind_of
from foretell.evidence.replay import replay, shipped
from foretell.report.envelope import schema


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return replay("collectives", shipped("collectives"))


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "x",
        "source": {"title": "somebody/something"},
        "collective": "all_reduce",
        "hardware": {"gpu": "h200-sxm", "gpus_per_node": 8, "fabric": {"intra": "nvlink4"}},
        "ranks": 8,
        "nodes": 1,
        "ranks_per_node": 8,
        "size_bytes": 2**34,
        "algorithm": "NCCL default",
        "measured": {"busbw_gb_per_s": 480.0, "time_us": 62600.0},
        "confidence": 3,
    }
    return base | changes


def test_the_budget(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert summary["mape_pct"] < 12
    assert 85 < summary["coverage_pct"] < 97
    assert summary["skipped"] < 0.1 * len(report["rows"])
    assert summary["by_gpu"]["h200-sxm"]["mape_pct"] < 6
    assert summary["by_gpu"]["b200-sxm"]["mape_pct"] < 10
    assert summary["by_source"]["DeepEP"]["mape_pct"] < 5


def test_where_the_network_is_stated_or_not_needed(report: dict[str, Any]) -> None:
    found = [r for r in report["rows"] if r["error_pct"] is not None and "network not stated" not in r.get("note", "")]
    assert len(found) > 120
    assert sum(abs(r["error_pct"]) for r in found) / len(found) < 9
    assert abs(sum(r["error_pct"] for r in found) / len(found)) < 3


def test_what_is_said_of_sources_and_accelerators_that_the_fit_did_not_see(report: dict[str, Any]) -> None:
    left_out = report["summary"]["left_out"]
    assert {"vidur", "ml-engineering", "DeepEP", "h200-sxm", "mi300x"} <= set(left_out)
    assert left_out["h200-sxm"]["mape_pct"] < 10
    assert left_out["ml-engineering"]["mape_pct"] < 20


def test_units_are_those_of_the_row() -> None:
    assert score(row()).measured == 62600.0
    found = score(row(measured={"busbw_gb_per_s": 480.0}))
    assert (found.metric, found.measured) == ("busbw_gb_per_s", 480.0)
    assert found.predicted == pytest.approx(480, rel=0.1)
    assert found.predicted is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.predicted < found.high
    assert found.inside


def test_a_forced_ring_is_slower_than_what_the_library_chose() -> None:
    ring, chosen = (score(row(algorithm=name)).predicted for name in ("Ring (NVLS off)", "NVLS"))
    assert ring is not None
    assert chosen is not None
    assert ring > 1.2 * chosen


def test_deepep_runs_by_the_multiprocessors_it_takes() -> None:
    base = row(collective="ep_dispatch", algorithm="DeepEP", size_bytes=None, measured={"bottleneck_link_gb_per_s": 300.0})
    few, many = (score(base | {"sms": sms}).predicted for sms in (8, 64))
    assert few is not None
    assert many is not None
    assert few < many


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"collective": "gossip"}, "not-modelled: collective gossip"),
        ({"measured": {"jitter_us": 3}}, "not-modelled: none of time_us"),
        ({"size_bytes": None}, "underspecified: size_bytes is absent"),
        ({"algorithm": "DeepEP low-latency"}, "not-modelled: DeepEP's low-latency"),
        ({"measured": {"busbw_gb_per_s": 0.01, "time_us": 6000.0, "derived": ["time_us"]}}, "underspecified: the time follows"),
        ({"hardware": {"gpu": "h900"}}, "not-modelled: hardware='h900'"),
        ({"hardware": 3}, "underspecified: the row cannot be read"),
        ({"ranks": "many"}, "not-modelled: ranks='many'"),
        ({"ranks": None}, "not-modelled: ranks"),
        ({"size_bytes": -1}, "not-modelled: size_bytes=-1"),
        ({"measured": {"time_us": 0}}, "not-modelled: measured.time_us"),
        ({"measured": {"time_us": float("nan")}}, "not-modelled: measured.time_us"),
        ({"size_bytes": 1e308}, "not-modelled: size_bytes"),
        (
            {"hardware": {"gpu": "h200-sxm", "fabric": {"inter": "roce", "node_gbps": "fast"}}},
            "not-modelled: hardware.fabric.node",
        ),
        ({"measured": 7}, "underspecified: the row cannot be read"),
        ({"source": None, "confidence": "x", "ranks": 0}, "not-modelled: ranks"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(changes: dict[str, Any], reason: str) -> None:
    found = score(row(**changes))
    assert found.predicted is None
    assert found.skipped is not None
    assert found.skipped.startswith(reason)
    json.dumps(found.to_dict(), allow_nan=False)


def test_every_kind_has_what_a_report_needs() -> None:
    assert schema("validate")["properties"]["inputs"]["properties"]["kind"]["enum"] == list(KINDS)
    for name in KINDS:
        assert {"by_source", "by_metric", "by_framework"} <= set(kind_of(name).groups)
