"""What the reference implementation gets wrong about operations, one test a fault, with the right value."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace

import pytest

import foretell as ft
from foretell.core.solver import CheckpointModel, EconomicsModel, ReliabilityModel, SustainabilityModel

DAY = dt.date(2026, 11, 30)


def test_fault_4_the_region_decides_carbon_and_energy_cost_and_an_unknown_one_is_an_error() -> None:
    carbon, money = SustainabilityModel(), EconomicsModel()
    grams = {region: carbon.solve("dgx-h100", 30, region, nodes=8).operational_carbon_kg for region in ("quebec", "poland")}
    assert grams["poland"] / grams["quebec"] > 20
    energy = {
        region: money.solve("dgx-h100", 30, datacenter=region, today=DAY).opex_energy_usd for region in ("us-texas", "germany")
    }
    assert energy["germany"] > 1.5 * energy["us-texas"]
    with pytest.raises(ft.CatalogError, match="nearest"):
        carbon.solve("dgx-h100", 30, "atlantis")


def test_fault_18_a_rack_of_72_is_72_accelerators_once() -> None:
    rack = ft.load_fleet("gb200-nvl72", nodes=18)
    assert rack.total_accelerators == 72
    cost = EconomicsModel().solve(rack, 30, today=DAY)
    assert 2.5e6 < cost.purchase_usd - 18 * 4 * 8_000 < 3.5e6 or 2.9e6 < cost.purchase_usd < 3.6e6  # type: ignore[operator]
    assert cost.device_hours == 72 * 30 * 24
    power = SustainabilityModel().solve(rack, 30, "us-iowa").it_energy_kwh / (30 * 24)
    assert 72 < power < 132 * 1.1  # kW: a rack is rated 120 to 132


def test_fault_40_every_adam_is_adam_and_an_unknown_optimizer_an_error() -> None:
    size = {
        name: CheckpointModel().solve("llama-3-70b", "h100", name).checkpoint_size_bytes for name in ("adam", "adamw", "AdamW")
    }
    assert list(size.values()) == pytest.approx([988.4e9] * 3, rel=0.002)
    with pytest.raises(ft.InputError, match="optimizer"):
        CheckpointModel().solve("llama-3-70b", "h100", "banana")


def test_fault_41_the_penalty_is_a_share_below_one_and_per_cent_is_per_cent() -> None:
    for hours in (1e-4, 0.1, 4.0):
        found = CheckpointModel().solve("llama-3-70b", "h100", checkpoint_interval_hours=hours)
        block, interval = found.blocking_time_s, 3600 * hours
        assert found.mfu_penalty_fraction == pytest.approx(block / (interval + block))
        assert 0 < found.mfu_penalty_fraction < 1
        assert found.mfu_penalty_pct == pytest.approx(100 * found.mfu_penalty_fraction)
    for bad in ({"checkpoint_interval_hours": -4}, {"checkpoint_interval_hours": 0}, {"n_writers": -3}, {"n_writers": 0}):
        with pytest.raises(ft.InputError, match=next(iter(bad))):
            CheckpointModel().solve("llama-3-70b", "h100", **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("reference", "right", "first_order"), [(0.8418, 0.7798, 0.7565), (0.6287, 0.5843, 0.4796)])
def test_fault_42_goodput_counts_the_work_that_is_lost(reference: float, right: float, first_order: float) -> None:
    # two clusters, known by the time between failures at which the first-order share is what it was: 2.28 and 0.75 h
    mtbf = _mtbf_of(first_order, 120.0, 600.0)
    found = ReliabilityModel().solve("dgx-h100", 1000, 120, mtbf_hours=mtbf / 3600, recovery_time_s=600)
    assert 1 - 120 / found.young_interval_s - 600 / mtbf == pytest.approx(reference, abs=2e-4)
    assert found.goodput_ratio == pytest.approx(right, abs=2e-3)


def _mtbf_of(first_order: float, block: float, restart: float) -> float:
    """Return the MTBF at which 1 - sqrt(2 d/M) - R/M is a share."""
    low, high = 100.0, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if 1 - math.sqrt(2 * block / middle) - restart / middle < first_order else (low, middle)
    return low


def test_fault_43_the_interval_is_the_optimum_and_where_it_is_not_valid_that_is_said() -> None:
    solve = ReliabilityModel().solve
    found = solve("dgx-h100", 100, 1200, mtbf_hours=1350 / 3600, recovery_time_s=60)
    assert found.young_interval_s == pytest.approx(1800)
    assert found.daly_interval_s == pytest.approx(1089, abs=1)
    assert found.optimal_checkpoint_interval_s == pytest.approx(1105.24, abs=0.01)  # M (1 + W0(-exp(-1 - d/M)))
    assert not found.first_order_holds
    late = solve("dgx-h100", 100, 7200, mtbf_hours=1350 / 3600, recovery_time_s=60)
    assert late.daly_interval_s == pytest.approx(1350)  # the block is longer than twice the MTBF
    assert not late.feasible
    assert "no progress" in " ".join(late.constraint_trace)
    assert 0 <= late.goodput_ratio < 0.01


def test_fault_44_a_fleet_fails_as_it_says_and_as_its_accelerators_do() -> None:
    fleet = replace(ft.load_fleet("dgx-h100", nodes=64), mtbf_s=3600.0)
    assert ReliabilityModel().solve(fleet, 10).fleet_mtbf_s == pytest.approx(3600)
    h100, a100 = (ReliabilityModel().solve(ft.load_fleet(name, nodes=64), 10) for name in ("dgx-h100", "dgx-a100"))
    assert h100.failures_per_1000_node_days == pytest.approx(3.789, rel=1e-3)
    assert a100.failures_per_1000_node_days == pytest.approx(math.sqrt(2.34 * 6.5))


@pytest.mark.parametrize("fleet", ["tpu-v5p-pod", "gaudi3-server"])
def test_fault_45_a_missing_price_is_an_error_that_says_how_to_give_it(fleet: str) -> None:
    with pytest.raises(ft.InputError) as caught:
        EconomicsModel().solve(fleet, 30, today=DAY)
    assert caught.value.field == "price"
    assert "node_price_usd" in str(caught.value)


def test_fault_46_power_and_price_are_those_of_whole_nodes() -> None:
    energy = SustainabilityModel().solve("dgx-h100", 1, "us-iowa", nodes=8)
    assert energy.it_energy_kwh == pytest.approx(0.76 * 1958, rel=0.02)  # 76 % of the rating, as measured
    low, high = energy.it_energy_interval_kwh
    assert low < 1075 * 1.15 < high  # not the bare accelerators' TDP
    assert high > 8 * 8.4 * 24
    bought = EconomicsModel().solve("dgx-h100", 365, nodes=8, today=DAY)
    assert 37_000 < bought.purchase_usd / 64 < 60_000  # type: ignore[operator]


def test_fault_47_water_on_the_site_is_of_the_energy_of_the_machines() -> None:
    found = SustainabilityModel().solve("dgx-h100", 30, "poland", nodes=8, wue=1.8, pue=1.58, node_power_w=5600)
    assert found.it_energy_kwh == pytest.approx(32_256)
    assert found.water_usage_liters == pytest.approx(58_061, rel=1e-4)


def test_fault_48_making_the_machines_counts_by_the_time_they_are_used() -> None:
    day, year = (SustainabilityModel().solve("dgx-h100", days, "us-iowa", nodes=8) for days in (1, 365))
    assert year.embodied_carbon_kg == pytest.approx(365 * day.embodied_carbon_kg)
    assert 0 < day.embodied_carbon_kg < 100  # of 63 t
    assert day.carbon_footprint_kg == pytest.approx(day.operational_carbon_kg + day.embodied_carbon_kg)


def test_fault_49_electricity_costs_what_it_does_where_the_machines_are() -> None:
    solve = EconomicsModel().solve
    rates = {
        place: solve("dgx-h100", 30, datacenter=place, today=DAY).kwh_price_usd for place in ("us-texas", "germany", "us-average")
    }
    assert len(set(rates.values())) == 3
    assert rates["us-average"] == 0.0806
    assert solve("dgx-h100", 30, 0.2, datacenter="germany", today=DAY).kwh_price_usd == 0.2
    assert solve("dgx-h100", 30, today=DAY).kwh_price_usd == 0.12
