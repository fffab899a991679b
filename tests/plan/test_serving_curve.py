"""A deployment over concurrency, and what would make one fit that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretell.core.serving import deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import serve
from foretell.cost.serving_flow import Traffic
from foretell.plan.serving_advice import admitted, fixes, longest_that_fits
from foretell.plan.serving_curve import curve
from foretell.recipe.serving import ServingRecipe

LOAD = Demand("closed", 1000.0, 200.0, concurrency=1.0)


def test_every_point_is_what_the_forecast_says() -> None:
    found = deployment("llama-3-8b", "h100", ServingRecipe(dp=2))
    for point in curve(found, LOAD):
        said = serve(found, replace(LOAD, concurrency=float(point.concurrency)))
        assert (point.ttft_s, point.itl_s) == pytest.approx((said.ttft_s, said.itl_s))
        assert point.output_tokens_per_s_per_gpu == pytest.approx(said.output_tokens_per_s_per_gpu)


def test_it_goes_from_one_for_each_replica_past_what_fits() -> None:
    found = deployment("llama-3-8b", "h100", ServingRecipe(dp=4, max_num_seqs=10))
    points = curve(found, LOAD)
    assert [point.concurrency for point in points] == [4, 8, 16, 32, 40, 80]
    assert [point.pareto for point in points] == [True] * 5 + [False]
    assert points[-1].bound == "max_num_seqs"
    fine = curve(found, LOAD, fine=True)
    assert {point.concurrency for point in points} <= {point.concurrency for point in fine}
    assert len(fine) > 2 * len(points)


def test_the_kind_of_load_does_not_matter() -> None:
    found = deployment("llama-3-8b", "h100")
    assert curve(found, LOAD) == curve(found, Demand("open", 1000.0, 200.0, rate=3.0, arrival_cv=2.0))


def test_nothing_fits_nothing_is_drawn() -> None:
    assert curve(deployment("llama-3.1-70b", "h100"), LOAD) == []


@pytest.mark.parametrize(
    ("model", "gpu"), [("llama-3.1-70b", "h100"), ("llama-3.1-405b", "h100"), ("deepseek-v3", "h100"), ("llama-3-8b", "t4")]
)
def test_each_fix_fits_and_one_step_less_does_not(model: str, gpu: str) -> None:
    traffic = Traffic(1000.0, 200.0)
    found = deployment(model, gpu)
    given = fixes(found, ServingRecipe(), traffic)
    assert given
    assert [fix.gpus for fix in given] == sorted({fix.gpus for fix in given})
    for fix in given:
        words = fix.option.split()
        values = dict(zip(words[::2], words[1::2], strict=True))
        recipe = ServingRecipe(
            weights=values.get("--weights", "bf16"),
            kv=values.get("--kv-dtype"),
            tp=int(values.get("--tp", 1)),
            pp=int(values.get("--pp", 1)),
        )
        again = deployment(model, gpu, recipe)
        assert again.capacity.feasible
        assert admitted(again.capacity, traffic) == pytest.approx(fix.admitted, rel=0.05)
        if recipe.pp == 1 and recipe.tp > 1:
            assert admitted(deployment(model, gpu, replace(recipe, tp=recipe.tp // 2)).capacity, traffic) < 1.0


def test_fp8_is_not_suggested_to_a_device_that_cannot_read_it() -> None:
    options = " ".join(fix.option for fix in fixes(deployment("llama-3-8b", "t4"), ServingRecipe(), Traffic(1000.0, 200.0)))
    assert "int8" in options
    assert "fp8" not in options


def test_the_longest_sequence_that_fits_fits_and_a_longer_one_does_not() -> None:
    found = deployment("llama-3.1-8b", "rtx4090")
    longest = longest_that_fits(found, [1200.0])
    assert longest is not None
    assert longest % 256 == 0
    for length, fits in ((longest, True), (longest + 256, False)):
        again = deployment("llama-3.1-8b", "rtx4090", ServingRecipe(max_model_len=length))
        assert again.capacity.holds_longest == fits
    assert longest_that_fits(found, [131072.0]) is None
    assert longest_that_fits(deployment("llama-3-8b", "h100"), [1200.0]) == 8192
