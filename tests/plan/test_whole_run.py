"""The chain of a whole run: points and samples by one formula, bands that hold their points, more of anything costs more."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from core_models import llama
from foretell.core.speed import speed
from foretell.errors import InputError
from foretell.machine.fleet import load_fleet
from foretell.operations.ranges import Range
from foretell.plan.business import Business
from foretell.plan.launch import Launch
from foretell.plan.sampling import from_interval, from_range, quantiles
from foretell.plan.whole_run import RunForecast, whole_run
from foretell.recipe import Parallelism, TrainingRecipe

PLAIN = Business(
    failure_rate=4.0,
    recovery_time_s=600.0,
    storage_bytes_per_s=1e11,
    region="us-iowa",
    pue=1.1,
    carbon_intensity=400.0,
    node_power_w=8000.0,
    price_usd_per_device_hour=2.0,
)


def made(business: Business | None = PLAIN, tokens: float = 1e13, nodes: int = 128) -> RunForecast:
    fleet = load_fleet("dgx-h100", nodes)
    recipe = TrainingRecipe(precision="bf16", seq_len=4096, micro_batch=1, grad_accum=1, framework="fsdp2")
    par = Parallelism(dp=8 * nodes, zero=3)
    model = llama()
    found = speed(model, recipe=recipe, parallelism=par, fleet=fleet)
    return whole_run(Launch(model, fleet.accelerator, found.run.recipe, found.run.par), found, fleet, tokens, business)


def points(run: RunForecast) -> dict[str, float]:
    return {name: band.point for name, band in run.bands.items()}


def test_what_is_stated_has_no_range_but_the_step_and_the_failures() -> None:
    run = made()
    assert (run.feasible, run.gpus, run.nodes, run.region_name) == (True, 1024, 128, "Iowa, United States")
    for name in ("mtbf_hours",):
        band = run.bands[name]
        assert band.p10 == band.p90 == pytest.approx(band.point) == pytest.approx(24_000 / (4 * 128))
    low, step, high = run.bands["step_s"].p10, run.bands["step_s"].point, run.bands["step_s"].p90
    assert low < step < high
    # what the step is uncertain by, energy, carbon and money are too
    for name in ("it_energy_kwh", "operational_carbon_kg", "cost_usd"):
        band = run.bands[name]
        assert band.p90 / band.p10 == pytest.approx(high / low, rel=0.1)


def test_more_tokens_take_longer_in_proportion() -> None:
    one, ten = points(made(tokens=1e12)), points(made(tokens=1e13))
    for name in ("wall_days", "gpu_hours", "interruptions", "total_energy_kwh", "operational_carbon_kg", "cost_usd"):
        assert ten[name] == pytest.approx(10 * one[name], rel=1e-3)
    assert ten["goodput_ratio"] == pytest.approx(one["goodput_ratio"])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"failure_rate": 8.0}, "wall_days"),
        ({"recovery_time_s": 1200.0}, "wall_days"),
        ({"storage_bytes_per_s": 1e9}, "wall_days"),
        ({"checkpoint_interval_s": 36000.0}, "wall_days"),
        ({"pue": 1.5}, "operational_carbon_kg"),
        ({"carbon_intensity": 800.0}, "operational_carbon_kg"),
        ({"price_usd_per_device_hour": 3.0}, "cost_usd"),
        ({"node_power_w": 9000.0}, "it_energy_kwh"),
    ],
)
def test_each_link_moves_what_comes_after_it(change: dict[str, Any], name: str) -> None:
    before, after = points(made()), points(made(replace(PLAIN, **change)))
    assert after[name] > before[name]


def test_a_save_beside_training_blocks_less_and_gets_further() -> None:
    waits, beside = (points(made(replace(PLAIN, checkpoint_mode=mode, storage_bytes_per_s=1e9))) for mode in ("sync", "async"))
    assert beside["checkpoint_block_s"] < waits["checkpoint_block_s"]
    assert beside["goodput_ratio"] > waits["goodput_ratio"]


def test_owning_is_an_answer_too() -> None:
    run = made(replace(PLAIN, mode="own", price_usd_per_device_hour=None, node_price_usd=300_000.0))
    assert run.mode == "own"
    days, cost = run.bands["wall_days"].point, run.bands["cost_usd"].point
    assert cost > 128 * 300_000 / 4 * days / 365  # at least the straight line over four years


def test_everything_open_is_a_band_around_its_points() -> None:
    run = made(None)
    for name, band in run.bands.items():
        assert band.p10 <= band.p50 <= band.p90, name
        assert band.p10 * 0.9 <= band.point <= band.p90 * 1.1, name
    assert "region not named" in " ".join(run.assumed)
    assert run.sources


def test_knowing_one_input_does_not_move_the_samples_of_others() -> None:
    # the same noise in both: what differs between two commands is what was changed, not luck
    priced_at = replace(PLAIN, recovery_time_s=None)
    open_ = made(replace(priced_at, price_usd_per_device_hour=None))
    placed = made(replace(priced_at, price_usd_per_device_hour=None, region=None, pue=None, carbon_intensity=None))
    priced = made(priced_at)
    for name in ("step_s", "goodput_ratio", "interruptions", "wall_days", "it_energy_kwh"):
        assert open_.bands[name] == placed.bands[name] == priced.bands[name]
    assert open_.bands["cost_usd"] != priced.bands["cost_usd"]
    assert placed.bands["water_usage_liters"] == open_.bands["water_usage_liters"]
    assert placed.bands["operational_carbon_kg"] != open_.bands["operational_carbon_kg"]


def test_ten_thousand_samples_take_less_than_a_second() -> None:
    made(None)
    start = time.perf_counter()
    made(replace(Business(), samples=10_000))
    assert time.perf_counter() - start < 1.0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"samples": 0}, "samples"),
        ({"checkpoint_mode": "lazy"}, "checkpoint_mode"),
        ({"mode": "lease"}, "mode"),
        ({"recovery_time_s": -1.0}, "recovery_time_s"),
        ({"storage_bytes_per_s": 0.0}, "storage_bytes_per_s"),
        ({"failure_rate": (6.0, 2.0)}, "failure_rate"),
        ({"failure_rate": -1}, "failure_rate"),
        ({"region": "atlantis"}, "grid"),
        ({"pue": 0.9}, "pue"),
        ({"price_usd_per_device_hour": 0}, "price_usd_per_device_hour"),
    ],
)
def test_settings_that_mean_nothing(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        made(replace(PLAIN, **change))
    assert caught.value.field == field


def test_samples_are_of_what_they_are_drawn_from() -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    held = from_range(rng, Range(1.0, 2.0, 8.0), 20_000)
    assert (held.min() >= 1, held.max() <= 8) == (True, True)
    assert np.median(held) == pytest.approx(2.2, rel=0.15)
    assert set(from_range(rng, Range(3.0, 3.0, 3.0), 5)) == {3.0}
    assert from_range(rng, Range(0.0, 1.0, 2.0), 1000).min() >= 0
    drawn = from_interval(rng, 10.0, (8.0, 15.0), 200_000)
    low, high = np.quantile(drawn, (0.05, 0.95))
    assert (low, high) == (pytest.approx(8, rel=0.02), pytest.approx(15, rel=0.02))
    assert quantiles(np.arange(101.0)) == (10.0, 50.0, 90.0)
