"""Operations questions replayed: every shipped one is answered within its tolerance; what cannot be answered says why."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from foretell.evidence.operations_answers import ANSWERS
from foretell.evidence.operations_given import OUTPUT, Given
from foretell.evidence.operations_replay import score
from foretell.evidence.replay import replay, shipped
from foretell.evidence.row_run import Skip

ROWS = [json.loads(line) for line in shipped("operations").read_text("utf-8").splitlines()]


def row(solver: str, inputs: dict[str, Any], value: float, unit: str, **more: Any) -> dict[str, Any]:
    measured = {"name": "value", "value": value, "unit": unit, "tolerance_pct": 1.0} | more
    source = {"title": "a test", "ref": "none", "date": "2026"}
    question = {"solver": solver, "inputs": inputs}
    return {
        "id": "ops-test",
        "topic": "test",
        "question": question,
        "measured": measured,
        "source": source,
        "basis": "observation",
    }


def test_every_shipped_question_is_answered_within_its_tolerance() -> None:
    report = replay("operations", shipped("operations"))
    summary = report["summary"]
    assert (summary["judged"], summary["outside"]) == (len(ROWS), [])
    assert [one["id"] for one in report["rows"] if one["skipped"]] == []


def test_a_changed_value_is_found_out() -> None:
    for given in ROWS[::20]:
        wrong = copy.deepcopy(given)
        wrong["measured"]["value"] = 3.0 * wrong["measured"]["value"] + 1.0
        wrong["measured"].pop("one_sided", None)
        assert score(wrong).within is False


@pytest.mark.parametrize(
    ("solver", "inputs", "value", "unit"),
    [
        # questions of the schema that no shipped row asks; sums that a reader can check
        ("reliability.job_mttf", {"nodes": 2048, "failures_per_1000_node_days": 6.5}, 1.8029, "h"),
        ("reliability.job_uptime", {"mtbf_h": 99, "restart_h": 1}, 0.99, "fraction"),
        ("reliability.job_uptime", {"failures_count": 10, "downtime_min": 60, "duration_days": 10}, 1 - 10 / 240, "fraction"),
        (
            "checkpoint.write_time",
            {"parameters_count": 530e9, "bytes_per_parameter": 12, "bandwidth_gbit_per_s": 20},
            42.4,
            "min",
        ),
        (
            "checkpoint.write_time",
            {"parameters_billions": 530, "bytes_per_parameter": 12, "bandwidth_gb_per_s": 2.5},
            42.4,
            "min",
        ),
        ("checkpoint.write_time", {"parameters_count": 530e9, "bytes_per_parameter": 12, "link_gbps": 20}, 42.4, "min"),
        ("reliability.job_uptime", {"uptime_h": 99, "total_h": 100}, 0.99, "fraction"),
        ("sustainability.mean_power", {"energy_j_per_token": 0.5, "output_tokens_per_s": 4000, "gpus": 4}, 500, "W"),
        ("sustainability.prompt_energy", {"accelerator_wh": 0.14, "host_wh": 0.06, "idle_wh": 0.02, "pue": 1.09}, 0.2398, "Wh"),
        ("sustainability.energy_per_request", {"power_kw": 1, "gpus": 2, "requests_per_s": 10, "pue": 1.2}, 0.0667, "Wh"),
        ("economics.fleet_daily_cost", {"nodes": 226.75, "gpus_per_node": 8, "price_usd_per_gpu_hour": 2}, 87_072, "USD"),
        (
            "economics.fleet_nodes",
            {
                "input_tokens": 608e9,
                "output_tokens": 168e9,
                "input_tokens_per_s_per_node": 73_700,
                "output_tokens_per_s_per_node": 14_800,
            },
            226.86,
            "nodes",
        ),
        (
            "economics.daily_revenue",
            {
                "cached_tokens_billions": 342,
                "cached_usd_per_million": 0.14,
                "output_tokens_billions": 168,
                "output_usd_per_million": 2.19,
            },
            342e3 * 0.14 + 168e3 * 2.19,
            "USD",
        ),
        ("economics.markup", {"revenue_usd": 562_027, "cost_usd": 87_072}, 5.45, "ratio"),
        ("economics.margin", {"revenue_usd": 562_027, "cost_usd": 87_072}, 84.5, "%"),
        ("sustainability.implied_grid_intensity", {"emissions_t": 8930, "energy_mwh": 21_588, "pue": 1.1}, 376.05, "gCO2e/kWh"),
        ("sustainability.implied_water_intensity", {"water_l": 4_731_000, "energy_mwh": 1287}, 3.676, "L/kWh"),
        ("sustainability.mean_power", {"it_energy_mwh": 433.196, "device_hours": 1_082_990}, 400, "W"),
        ("sustainability.prompt_water", {"prompt_energy_wh": 0.24, "pue": 1.09, "wue_l_per_kwh": 1.15}, 0.2532, "mL"),
        ("sustainability.emissions_per_day", {"power_kw": 100, "pue": 1.2, "grid_kg_per_kwh": 0.4}, 1.152, "tCO2e"),
        ("sustainability.energy_per_request", {"energy_j_per_token": 0.5, "output_tokens": 720}, 0.1, "Wh"),
    ],
)
def test_questions_that_no_row_asks_yet(solver: str, inputs: dict[str, Any], value: float, unit: str) -> None:
    found = score(row(solver, inputs, value, unit))
    assert (found.skipped, found.within) == (None, True), found


def test_a_range_must_hold_the_value_and_a_bound_be_kept() -> None:
    rates = {"failures_per_1000_node_days_low": 2.34, "failures_per_1000_node_days_high": 6.5}
    job = {"nodes": 2048, "restart_s": 600, "checkpoint_block_s": 5}
    inside = {"one_sided": "inside-predicted-range"}
    assert score(row("reliability.ettr_range", job | rates, 0.9, "fraction", **inside)).within
    assert score(row("reliability.ettr_range", job | rates, 0.5, "fraction", **inside)).within is False
    one = job | {"failures_per_1000_node_days": 3.789}
    assert score(row("reliability.ettr", one, 0.9, "fraction", one_sided="lower")).within
    assert score(row("reliability.ettr", one, 0.99, "fraction", one_sided="lower")).within is False


@pytest.mark.parametrize(
    ("solver", "inputs", "unit", "why"),
    [
        ("reliability.horoscope", {"x": 1}, "h", "not-modelled: no formula"),
        ("checkpoint.size", {"parameters_count": 1e9}, "GiB", "underspecified: the question does not give bytes_per_parameter"),
        ("checkpoint.size", {"parameters_count": 1e9, "bytes_per_parameter": 14, "colour": "red"}, "GiB", "no use for colour"),
        ("checkpoint.size", {"parameters_count": 1e9, "bytes_per_parameter": "many"}, "GiB", "is no number"),
        ("checkpoint.size", {"parameters_count": 1e9, "bytes_per_parameter": 14}, "furlong", "no unit"),
        ("economics.markup", {"revenue_usd": 1, "cost_usd": 0}, "ratio", "underspecified"),
        ("queueing.mmc_mean_wait", {"servers": 2, "offered_load_erlang": 3, "mean_service_time_s": 1}, "s", "not-modelled"),
    ],
)
def test_what_cannot_be_answered_says_why(solver: str, inputs: dict[str, Any], unit: str, why: str) -> None:
    found = score(row(solver, inputs, 1.0, unit))
    assert found.predicted is None
    assert why in (found.skipped or "")


def test_a_row_that_is_none_is_left_out() -> None:
    for broken in ({}, {"question": 3}, {"question": {"solver": "checkpoint.size", "inputs": []}, "measured": {"unit": "GiB"}}):
        assert score({"id": "x", "measured": {}} | broken).skipped is not None


def test_every_answer_is_in_a_unit_that_can_be_told_and_inputs_are_read_by_their_unit() -> None:
    assert all("." in name for name in ANSWERS)
    assert OUTPUT["GB"] != OUTPUT["GiB"]
    given = Given({"restart_min": 5, "energy_mwh": 2, "power_kw": 3, "tokens_billions": 4})
    assert (given.time("restart"), given.energy("energy"), given.power("power"), given.count("tokens")) == (300, 2000, 3000, 4e9)
    assert given.left() == []
    with pytest.raises(Skip):
        given.time("interval")
