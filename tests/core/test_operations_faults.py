"""Faults that calculators of reliability, cost and carbon have had, one story each, with the value that is right."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import foretell as ft
from core_models import llama_70b
from foretell.core.solver import CheckpointModel, EconomicsModel, ReliabilityModel, SustainabilityModel
from foretell.machine import load_fleet, load_hardware
from foretell.operations.emissions import embodied_rate
from foretell.operations.intervals import first_order_efficiency
from sweep_rows import TODAY

CHECKPOINT, COST, FOOTPRINT, FAILURES = CheckpointModel(), EconomicsModel(), SustainabilityModel(), ReliabilityModel()
GB = 1e9


def test_the_region_counts_and_an_unknown_one_is_an_error() -> None:
    """8 nodes of H100 for a day: the same energy, a hundred times the carbon in Poland than in Québec."""
    found = {name: FOOTPRINT.solve("dgx-h100", 1, name, nodes=8, pue=1.2) for name in ("quebec", "poland")}
    clean, coal = found["quebec"], found["poland"]
    assert clean.total_energy_kwh == coal.total_energy_kwh
    assert coal.operational_carbon_kg / clean.operational_carbon_kg == pytest.approx(642.88 / 5.48)
    assert coal.operational_carbon_kg == pytest.approx(coal.it_energy_kwh * 1.2 * 0.64288)
    for solve in (FOOTPRINT.solve, COST.solve):
        with pytest.raises(ft.CatalogError, match="grid='polnd' is not in the catalog; nearest: poland"):
            solve("dgx-h100", 1, datacenter="polnd")
        with pytest.raises(ft.CatalogError, match="Atlantis"):
            solve("dgx-h100", 1, datacenter="Atlantis")


def test_a_rack_of_72_counts_once() -> None:
    """GB200 NVL72: 18 nodes of 4, not 72 racks: 2.25 PFLOP/s of each GPU, about 3 million dollars, about 100 kW."""
    fleet = load_fleet("gb200-nvl72")
    assert (fleet.total_accelerators, fleet.nodes, fleet.node.accelerators_per_node) == (72, 18, 4)
    assert 2.2e15 < load_hardware(fleet.accelerator).peak("bf16") < 2.6e15
    cost = COST.solve("gb200-nvl72", 30, network_usd_per_node=0, today=TODAY)
    assert cost.purchase_usd == pytest.approx(3e6, rel=0.1)
    assert cost.device_hours == 72 * 24 * 30
    power = FOOTPRINT.solve("gb200-nvl72", 30)
    assert 80e3 < power.node_power_w * power.nodes < 140e3


def test_every_spelling_of_adam_is_adam_in_a_checkpoint_too() -> None:
    """70B: 14 bytes a parameter, 988 GB, of adam and adamw; a name that is none is an error."""
    sizes = {name: CHECKPOINT.solve(llama_70b(), "h100", name).checkpoint_size_bytes for name in ("adam", "adamw", "AdamW")}
    assert set(sizes.values()) == {14.0 * llama_70b().parameters}
    assert sizes["adamw"] == pytest.approx(988.4 * GB, rel=0.001)
    with pytest.raises(ft.CatalogError, match="banana"):
        CHECKPOINT.solve(llama_70b(), "h100", "banana")
    with pytest.raises(ft.CatalogError, match="nearest: adamw"):
        CHECKPOINT.solve(llama_70b(), "h100", "adammw")


def test_the_time_lost_to_checkpoints_is_a_share_below_one() -> None:
    """70B by one writer of 1 GB/s: 988 s of every 988 s + interval, however short the interval."""
    for hours in (1e-6, 1e-4, 0.1, 4.0, 1e5):
        found = CHECKPOINT.solve(llama_70b(), "h100", "adam", hours, writer_bandwidth="1 GB/s")
        share = found.blocking_time_s / (3600 * hours + found.blocking_time_s)
        assert found.mfu_penalty_fraction == pytest.approx(share)
        assert 0 <= found.mfu_penalty_fraction < 1
        assert found.mfu_penalty_pct == pytest.approx(100 * share)
    for name, value in (("checkpoint_interval_hours", -4), ("n_writers", -3), ("checkpoint_interval_hours", 0)):
        asked: dict[str, Any] = {name: value}
        with pytest.raises(ft.InputError, match=f"{name}={value}"):
            CHECKPOINT.solve(llama_70b(), "h100", **asked)


@pytest.mark.parametrize(
    ("gpus", "block", "restart", "mtbf_h", "exact", "first_order", "without_rework"),
    [(16_384, 120.0, 600.0, 2.28881836, 0.7798, 0.7565, 0.8418), (100_000, 60.0, 300.0, 0.375, 0.5843, 0.4796, 0.6287)],
)
def test_work_that_is_done_twice_is_lost(
    gpus: int, block: float, restart: float, mtbf_h: float, exact: float, first_order: float, without_rework: float
) -> None:
    """A GPU that fails every 50,000 h and a NIC every 150,000 h: 37,500 h together, over so many of both."""
    pair_h = 1 / (1 / 50_000 + 1 / 150_000)
    assert pair_h / gpus == pytest.approx(mtbf_h)
    found = FAILURES.solve("dgx-h100", 1296, block, recovery_time_s=restart, mtbf_hours=pair_h / gpus, nodes=gpus // 8)
    assert found.goodput_ratio == pytest.approx(exact, abs=0.002)
    period, mtbf = found.young_interval_s, found.fleet_mtbf_s
    rough = first_order_efficiency(period, block, mtbf, restart)
    assert rough == pytest.approx(first_order, abs=0.01)
    assert 1 - block / period - restart / mtbf == pytest.approx(without_rework, abs=1e-3)
    assert found.goodput_ratio < without_rework - 0.04
    assert found.losses["rework"] > 0.05


def test_the_interval_holds_where_checkpoints_are_long() -> None:
    """A failure every 1,350 s: 20 minutes of checkpoint want 1,089 s of work (Daly), not 1,800; two hours want 1,350."""
    found = FAILURES.solve("dgx-h100", 100, 1200, recovery_time_s=300, mtbf_hours=0.375)
    assert found.young_interval_s == pytest.approx(1800)
    assert found.daly_interval_s == pytest.approx(1089, abs=1)
    assert found.optimal_checkpoint_interval_s == found.checkpoint_interval_s == pytest.approx(found.daly_interval_s, rel=0.02)
    for other in (found.young_interval_s, found.daly_interval_s):
        worse = FAILURES.solve("dgx-h100", 100, 1200, recovery_time_s=300, mtbf_hours=0.375, checkpoint_interval_s=other)
        assert worse.goodput_ratio < found.goodput_ratio
    assert found.feasible
    assert "more than half the time between failures" in found.constraint_trace[-1]
    hopeless = FAILURES.solve("dgx-h100", 100, 7200, recovery_time_s=300, mtbf_hours=0.375)
    assert hopeless.daly_interval_s == hopeless.fleet_mtbf_s == 1350
    assert hopeless.optimal_checkpoint_interval_s == pytest.approx(1350, rel=0.01)
    assert not hopeless.feasible
    assert hopeless.constraint_trace[-2].startswith("no progress: less than a hundredth of the time trains")


def test_what_is_known_of_a_fleet_s_failures_counts() -> None:
    """A fleet that fails every hour does; twice its nodes every half hour; another accelerator has the public rates."""
    fleet = dataclasses.replace(load_fleet("dgx-h100", 1024), mtbf_s=3600.0)
    found = FAILURES.solve(fleet, 24)
    assert found.fleet_mtbf.to("hour").magnitude == 1
    assert found.fleet_mtbf_interval_s == pytest.approx((3600, 3600))
    assert found.expected_failures == pytest.approx(24)
    assert FAILURES.solve(fleet, 24, nodes=2048).fleet_mtbf_s == pytest.approx(1800)
    assert FAILURES.sweep(fleet, job_duration_hours=24, nodes=[512, 2048])["fleet_mtbf_s"].tolist() == pytest.approx([7200, 1800])
    assert "own entry" in found.notes[0]
    public = FAILURES.solve("dgx-h100", 24, nodes=1024)
    assert public.fleet_mtbf_interval_s[0] < public.fleet_mtbf_s < public.fleet_mtbf_interval_s[1]


@pytest.mark.parametrize("system", ["tpu-v5p-pod", "gaudi3-server", "mi325x-platform"])
def test_a_price_that_nobody_knows_is_an_error(system: str) -> None:
    with pytest.raises(ft.InputError, match=r"price to buy .* is not known\. Give node_price_usd") as caught:
        COST.solve(system, 30, today=TODAY)
    assert caught.value.field == "price"
    table = COST.sweep(system, duration_days=[30], node_price_usd=[None, 3e5], node_power_w=8000, today=TODAY)
    assert table["valid"].tolist() == [False, True]
    assert "is not known" in table["reason"][0]
    given = COST.solve(system, 30, node_price_usd=3e5, node_power_w=8000, today=TODAY)
    assert table["tco_usd"][1] == pytest.approx(given.tco_usd)


def test_energy_and_price_are_those_of_whole_nodes() -> None:
    """64 H100 for a day: 76 % of the 10.2 kW of 8 servers; a server is 44,000 dollars a GPU, and several need a network."""
    found = FOOTPRINT.solve("dgx-h100", 1, nodes=8)
    assert found.it_energy_kwh == pytest.approx(1958 * 0.76, rel=0.15)
    assert found.it_energy_kwh > 1.3 * 1075
    alone = COST.solve("dgx-h100", 1, nodes=1, today=TODAY)
    many = COST.solve("dgx-h100", 1, nodes=8, today=TODAY)
    assert alone.purchase_usd is not None
    assert many.purchase_usd is not None
    assert alone.purchase_usd / 8 == pytest.approx(43_750, rel=0.1)
    assert many.purchase_usd > 8 * alone.purchase_usd
    swept = COST.sweep("dgx-h100", duration_days=1, nodes=[1, 8], today=TODAY)
    assert swept["purchase_usd"].tolist() == pytest.approx([alone.purchase_usd, many.purchase_usd])


def test_water_goes_with_the_energy_of_the_machines_not_of_the_building() -> None:
    """64 GPUs of 700 W for 30 days: 32,256 kWh x 1.8 L/kWh, whatever the PUE."""
    for pue in (1.0, 1.58):
        found = FOOTPRINT.solve("dgx-h100", 30, "poland", nodes=8, node_power_w=5600, wue=1.8, pue=pue)
        assert found.it_energy_kwh == pytest.approx(32_256)
        assert found.total_energy_kwh == pytest.approx(32_256 * pue)
        assert found.water_usage_liters == pytest.approx(58_061, abs=0.5)


def test_making_the_machines_is_shared_over_their_life() -> None:
    """64 cards of 164 kg for a day of four years: 7.2 kg, not 0 and not 10,496."""
    assert 64 * 24 * embodied_rate(164, 4) == pytest.approx(7.19, abs=0.01)
    day = FOOTPRINT.solve("dgx-h100", 1, nodes=8, life_years=4)
    whole = 8 * 7884.0  # eight servers: cards and host
    assert day.embodied_carbon_kg == pytest.approx(whole / (4 * 365 * 0.85))
    life = FOOTPRINT.solve("dgx-h100", 4 * 365 * 0.85, nodes=8, life_years=4)
    assert life.embodied_carbon_kg == pytest.approx(whole)
    assert day.carbon_footprint_kg == pytest.approx(day.operational_carbon_kg + day.embodied_carbon_kg)
    assert FOOTPRINT.solve("dgx-h100", 1, nodes=8).embodied_carbon_kg > 0


def test_regions_have_their_own_tariffs() -> None:
    asked: dict[str, Any] = {"nodes": 8, "pue": 1.1, "today": TODAY}
    found = {name: COST.solve("dgx-h100", 30, datacenter=name, **asked) for name in ("quebec", "germany", "us-iowa")}
    tariffs = {name: one.kwh_price_usd for name, one in found.items()}
    assert tariffs == {"quebec": 0.041, "germany": 0.1853, "us-iowa": 0.0691}
    for one in found.values():
        assert one.total_energy_kwh is not None
        assert one.kwh_price_usd is not None
        assert one.opex_energy_usd == pytest.approx(one.total_energy_kwh * one.kwh_price_usd)
        assert any(f"{one.kwh_price_usd:g} USD/kWh" in note for note in one.notes)
    nowhere = COST.solve("dgx-h100", 30, **asked)
    assert nowhere.kwh_price_usd == 0.12
    assert "0.12 USD a kWh: region not named" in nowhere.assumed
    assert COST.solve("dgx-h100", 30, 0.12, datacenter="quebec", **asked).kwh_price_usd == 0.12
