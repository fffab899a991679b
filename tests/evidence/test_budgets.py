"""The shipped rows, replayed: an error budget for every level and for every source of five rows or more."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.cost.overheads import calibration
from foretell.evidence.fit import fit
from foretell.evidence.replay import replay, shipped


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return replay("memory", shipped("memory"))


def errors(report: dict[str, Any], **wanted: Any) -> list[float]:
    """Relative errors (per cent) of the rows that match."""
    return [
        row["error_pct"]
        for row in report["rows"]
        if row["error_pct"] is not None and all(row[key] == value for key, value in wanted.items())
    ]


def mape(values: list[float]) -> float:
    return sum(map(abs, values)) / len(values)


def p90(values: list[float]) -> float:
    return sorted(map(abs, values))[int(0.9 * (len(values) - 1))]


@pytest.mark.parametrize(
    ("metric", "most", "tail"), [("allocated", 1.0, 2.5), ("active", 1.0, 2.0), ("reserved", 4.0, 9.0), ("process", 3.0, 6.0)]
)
def test_rows_whose_source_fixes_everything(report: dict[str, Any], metric: str, most: float, tail: float) -> None:
    found = errors(report, metric=metric, confidence=3)
    assert mape(found) < most
    assert p90(found) < tail
    assert abs(sum(found) / len(found)) < 1.5


def test_rows_where_one_thing_was_assumed(report: dict[str, Any]) -> None:
    found = [e for m in ("allocated", "active", "reserved", "process") for e in errors(report, metric=m, confidence=2)]
    assert mape(found) < 6.0


def test_no_source_is_far_off(report: dict[str, Any]) -> None:
    by_source: dict[tuple[str, str], list[float]] = {}
    for row in report["rows"]:
        if row["confidence"] == 3 and row["error_pct"] is not None:
            by_source.setdefault((row["source"], row["metric"]), []).append(row["error_pct"])
    for name, found in by_source.items():
        if len(found) >= 5:
            assert mape(found) < 5.0, name


def test_megatron_class_and_adapter_runs(report: dict[str, Any]) -> None:
    assert mape(errors(report, source="simumax", metric="allocated")) < 0.3
    assert mape(errors(report, source="t4", metric="allocated")) < 1.0
    assert mape(errors(report, source="t4", metric="process")) < 3.0
    assert mape(errors(report, source="litgpt-rt", metric="allocated")) < 1.5


def test_verdicts_and_skips(report: dict[str, Any]) -> None:
    summary = report["summary"]
    assert summary["false_fits"] == 0
    assert summary["verdict_accuracy_pct"] >= 80
    skipped = [row["skipped"] for row in report["rows"] if row["skipped"]]
    assert len(skipped) < 0.08 * len(report["rows"])
    assert all(reason.startswith(("not-modelled: ", "underspecified: ")) for reason in skipped)


def test_intervals_cover_what_they_say(report: dict[str, Any]) -> None:
    assert 85 < report["summary"]["coverage_pct"] < 97


def test_intervals_hold_on_sources_that_did_not_set_them() -> None:
    """Fitted anew without each source in turn, and the file holds what the fit gives."""
    fitted = fit(calibration())
    assert 80 < fitted["coverage"]["source_left_out_pct"] < 99
    assert fitted["left_out"]["titan-bench"]["reserved_mape_pct"] < 6
    assert fitted["slack"]["pooled"] == calibration()["slack"]["pooled"]
    for name, regime in calibration()["regimes"].items():
        assert fitted["regimes"][name]["log_error"] == pytest.approx(regime["log_error"], abs=1e-4), name
