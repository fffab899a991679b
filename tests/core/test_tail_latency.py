"""Requests that queue for replicas: how long they take, how many take too long, and when nobody can say."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import foretell as ft
from foretell.core.solver import TailLatencyModel, TailLatencyResult
from foretell.units import quantity

MODEL = TailLatencyModel()


def test_a_percentile_of_the_whole_is_not_the_mean_service_and_a_percentile_of_the_wait() -> None:
    # M/M/1, 100 ms: the response is exponential with rate mu - lambda, even where hardly anyone waits
    for rate, p50, p99 in ((0.001, 69.3, 460.6), (1, 77.0, 511.7), (5, 138.6, 921.0)):
        result = MODEL.solve(rate, 100)
        assert result.p50_latency.to("ms").magnitude == pytest.approx(p50, abs=0.06)
        assert result.p99_latency.to("ms").magnitude == pytest.approx(p99, abs=0.06)
        assert result.p99_latency_s == pytest.approx(math.log(100) / (10 - rate), rel=1e-9)
    many = MODEL.solve(950, 100, 100)
    assert many.p99_latency_s == pytest.approx(0.4724387, rel=1e-6)
    assert many.p99_latency_s > 2.6 * (many.p99_wait_s + 0.1)


def test_a_queue_that_falls_behind_looks_worse_than_any_that_keeps_up() -> None:
    behind, busy = MODEL.solve(200, 100, 10), MODEL.solve(9.5, 100)
    assert (behind.queue_utilization, behind.is_stable, behind.feasible) == (2.0, False, False)
    assert busy.queue_utilization == pytest.approx(0.95)
    assert (busy.is_stable, busy.feasible) == (True, True)
    assert behind.backlog_growth_per_s == pytest.approx(100)
    assert busy.backlog_growth_per_s == 0
    assert behind.p50_latency_s == behind.p99_latency_s == behind.mean_wait_s == math.inf
    assert math.isfinite(busy.p99_latency_s)
    assert behind.slo_violation_probability(10_000) == 1.0
    assert busy.slo_violation_probability(10_000) == pytest.approx(math.exp(-0.5 * 10))
    assert "backlog grows by 100 requests/s" in behind.constraint_trace[-1]
    assert "infinite" in behind.explain()


def test_a_full_queue_is_not_stable_either() -> None:
    full = MODEL.solve(100, 100, 10)
    assert (full.queue_utilization, full.is_stable, full.backlog_growth_per_s, full.p50_latency_s) == (1.0, False, 0.0, math.inf)


def test_infinity_is_null_in_json() -> None:
    plain = MODEL.solve(200, 100, 10).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain["p99_latency_s"], plain["mean_wait_s"], plain["p99_interval_s"]) == (None, None, None)
    assert (plain["queue_utilization"], plain["is_stable"], plain["wait_probability"]) == (2.0, False, 1.0)
    stable = MODEL.solve(80, 100, 10).to_dict()
    assert json.loads(json.dumps(stable, allow_nan=False))["p99_latency_s"] == stable["p99_latency_s"]
    assert "_queue" not in stable


@pytest.mark.parametrize("service", [100, 100.0, "100 ms", "0.1 s", "100", quantity(0.1, "s")])
def test_a_time_says_its_unit_or_is_milliseconds(service: Any) -> None:
    result = MODEL.solve(5, service)
    assert result.service_latency_s == pytest.approx(0.1)
    assert result.slo_violation_probability(service) == pytest.approx(math.exp(-0.5))


def test_limits_and_percentiles_undo_each_other() -> None:
    result = MODEL.solve(70, 100, 8, service_time_cv=0.4, arrival_cv=1.5)
    for p, field in ((0.5, "p50"), (0.9, "p90"), (0.95, "p95"), (0.99, "p99")):
        seconds = getattr(result, f"{field}_latency_s")
        assert result.slo_violation_probability(1e3 * seconds) == pytest.approx(1 - p)
        assert result.latency_quantile_s(p) == seconds
    assert result.slo_violation_probability(0) == 1.0
    assert result.mean_latency_s == pytest.approx(result.mean_wait_s + 0.1)


def test_no_arrivals_are_a_question_too() -> None:
    result = MODEL.solve(0, 100, 3)
    assert (result.mean_wait_s, result.wait_probability, result.queue_utilization, result.p99_wait_s) == (0, 0, 0, 0)
    assert result.p99_latency_s == pytest.approx(0.1 * math.log(100))


def test_what_is_exact_says_so_and_what_is_not_states_its_error() -> None:
    exact, wide, bursty, wild = (MODEL.solve(80, 100, 10, cv_s, cv_a) for cv_s, cv_a in ((1, 1), (2, 1), (0.5, 3), (1, 13)))
    assert exact.p99_interval_s == (exact.p99_latency_s, exact.p99_latency_s)
    assert "exact" in exact.notes[0]
    assert "Kimura" in wide.notes[0]
    assert wide.p99_interval_s == pytest.approx((0.83 * wide.p99_latency_s, 1.17 * wide.p99_latency_s))
    assert any("22 %" in note for note in bursty.notes)
    assert wild.p99_interval_s is None
    assert any("simulate" in note for note in wild.notes)
    assert exact.p99_latency_s < bursty.p99_latency_s < wild.p99_latency_s
    even = MODEL.solve(80, 100, 10, 0, 0)
    assert (even.wait_probability, even.mean_wait_s) == (0.0, 0.0)
    assert even.p99_latency_s == pytest.approx(0.1)


def test_a_result_is_a_mapping_and_reads_as_text() -> None:
    result = MODEL.solve(80, "100 ms", 10)
    assert isinstance(result, TailLatencyResult)
    assert result["p99_latency"].to("ms").magnitude == pytest.approx(494.6, abs=0.1)
    assert set(result) >= {"p50_latency", "mean_wait", "wait_probability", "queue_utilization", "is_stable"}
    assert "80 % busy" in result.explain()
    assert "494.6 ms" in result.explain()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"arrival_rate_qps": -1}, "arrival_rate_qps=-1 must be finite and not negative"),
        ({"arrival_rate_qps": float("nan")}, "arrival_rate_qps"),
        ({"arrival_rate_qps": 1e300}, "0 to 1e\\+12"),
        ({"arrival_rate_qps": True}, "arrival_rate_qps=True"),
        ({"service_latency_ms": 0}, "service_latency_ms=0 is out of range"),
        ({"service_latency_ms": -5}, "milliseconds"),
        ({"service_latency_ms": "5 GB"}, "is a size, not a time"),
        ({"service_latency_ms": float("inf")}, "service_latency_ms"),
        ({"service_latency_ms": [100]}, "service_latency_ms"),
        ({"num_replicas": 2.5}, "must be a whole number"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"num_replicas": 10**10}, "above the largest"),
        ({"service_time_cv": -0.1}, "service_time_cv=-0.1"),
        ({"service_time_cv": float("nan")}, "service_time_cv"),
        ({"arrival_cv": "2"}, "arrival_cv='2'"),
        ({"arrival_cv": 1e6}, "0 to 1000"),
    ],
)
def test_bad_input_is_named(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ft.InputError, match=words):
        MODEL.solve(**({"arrival_rate_qps": 5, "service_latency_ms": 100} | asked))


def test_bad_limits_are_named() -> None:
    result = MODEL.solve(5, 100)
    with pytest.raises(ft.InputError, match="slo_ms=-1"):
        result.slo_violation_probability(-1)
    for p in (1.0, -0.1, "half"):
        with pytest.raises(ft.InputError, match="p="):
            result.latency_quantile_s(p)  # type: ignore[arg-type]


def test_a_billion_replicas_are_answered() -> None:
    result = MODEL.solve(9.9999e9, 100, 10**9, service_time_cv=0.5, arrival_cv=0.2)
    assert result.is_stable
    assert result.p99_latency_s == pytest.approx(MODEL.solve(0, 100, service_time_cv=0.5).p99_latency_s, rel=1e-3)


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "arrival_rate_qps": np.array([0.0, 5.0, 80.0, 2000.0]),
        "service_latency_ms": [50, "100 ms", quantity(0.2, "s")],
        "num_replicas": range(1, 101, 33),
        "service_time_cv": [0.0, 1.0, 2.0],
        "arrival_cv": [1.0, 2.5],
    }
    table = MODEL.sweep(**axes)
    assert len(table) == 4 * 3 * 4 * 3 * 2
    for i in range(0, len(table), 5):
        row = table.row(i)
        one = MODEL.solve(*(row[name] for name in axes))
        for name in ("p50_latency_s", "p95_latency_s", "p99_latency_s", "mean_wait_s", "p99_wait_s", "mean_latency_s"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-8, abs=1e-15)
        for name in ("queue_utilization", "wait_probability", "backlog_growth_per_s", "is_stable"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-12)
        assert (row["valid"], row["feasible"]) == (True, one.is_stable)
        assert (row["reason"] == "") == one.is_stable
    assert table["service_latency_ms"].tolist()[:49:24] == [50, 100, 200]
    best = table.best()
    assert best["p99_latency_s"] == table["p99_latency_s"].min()


def test_a_sweep_marks_what_means_nothing() -> None:
    table = MODEL.sweep(arrival_rate_qps=[5, -1, "many"], service_latency_ms=100, num_replicas=[1, 1.5])
    assert table["valid"].tolist() == [True, False, False, False, False, False]
    assert "num_replicas=1.5 must be a whole number" in table["reason"][1]
    assert "arrival_rate_qps=-1" in table["reason"][2]
    assert np.isnan(table["p99_latency_s"][1:]).all()
    assert "unstable" in MODEL.sweep(arrival_rate_qps=50, service_latency_ms=100)["reason"][0]
    assert "5" in repr(table)
    single = MODEL.sweep(arrival_rate_qps=[1, 5], service_latency_ms=quantity(0.1, "s"), num_replicas=[1, 2], product=False)
    assert single["p99_latency_s"][0] == pytest.approx(MODEL.solve(1, 100).p99_latency_s)
    assert len(single) == 2


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"arrival_rate_qps": 5}, "service_latency_ms is needed"),
        ({"arrival_rate_qps": 5, "service_latency_ms": 1, "replicas": 2}, "is not a setting"),
        ({"arrival_rate_qps": [], "service_latency_ms": 1}, "has no values"),
    ],
)
def test_a_sweep_names_what_it_lacks(axes: dict[str, Any], words: str) -> None:
    with pytest.raises(ft.InputError, match=words):
        MODEL.sweep(**axes)
