"""Prompts and decoding on servers of their own."""

from __future__ import annotations

from typing import Any

import pytest

from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import serve
from foretell.core.serving_split import SplitForecast, cache_bytes, serve_split
from foretell.errors import CombinationError, InputError
from foretell.recipe.serving import ServingRecipe


def side(gpu: str = "h100", model: str = "llama-3-8b", **flags: Any) -> Deployment:
    return deployment(model, gpu, ServingRecipe(max_model_len=16384, **flags))


def asked(rate: float = 5.0, **more: Any) -> Demand:
    load: dict[str, Any] = {"inputs": 4000.0, "outputs": 200.0, "rate": rate} | more
    return Demand("open", **load)


def split(demand: Demand | None = None, bandwidth: float = 50e9, **sides: Deployment) -> Any:  # fields that hold here
    return serve_split(sides.get("prefill", side()), sides.get("decode", side()), demand or asked(), bandwidth)


def test_the_cache_that_travels_is_that_of_the_prompt() -> None:
    kept = 2 * 32 * 8 * 128 * 2 * 4000  # keys and values x layers x heads x width x bytes x tokens
    assert cache_bytes(side(), 4000) == pytest.approx(kept, rel=0.01)
    assert cache_bytes(side(tp=4), 4000) == pytest.approx(kept, rel=0.01)
    assert split().transfer_s == pytest.approx(kept / 50e9, rel=0.01)
    latent = side("h200", "deepseek-v3", weights="fp8", tp=8)
    assert cache_bytes(latent, 1000) == pytest.approx(61 * (512 + 64) * 2 * 1000, rel=0.05)


def test_decoding_is_not_stalled_by_prompts() -> None:
    one, both = serve(side(), asked()), split()
    assert one.itl_s is not None
    assert both.itl_s < 0.8 * one.itl_s
    assert both.ttft_s > both.transfer_s


def test_the_slower_side_bounds_the_rate() -> None:
    long = split(asked(1.0, inputs=8000.0, outputs=50.0))
    assert long.bound == "prefill"
    short = split(asked(1.0, inputs=200.0, outputs=1500.0))
    assert short.bound == "decode"
    many = split(asked(1.0, inputs=8000.0, outputs=50.0), prefill=side(dp=4))
    assert many.capacity_requests_per_s > 2 * long.capacity_requests_per_s


def test_both_sides_need_the_memory() -> None:
    small = split(prefill=side("t4"))
    assert not small.feasible
    assert small.bound == "memory"
    assert small.ttft_s is None


def test_a_rate_beyond_one_side_is_unstable() -> None:
    assert not split(asked(200.0)).stable


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(CombinationError, match="load"):
        split(Demand("single", 100, 100))
    with pytest.raises(CombinationError, match="another model"):
        split(decode=side(model="llama-3.2-1b"))
    with pytest.raises(InputError, match="network_bandwidth"):
        split(bandwidth=0.0)
    found = split()
    assert isinstance(found, SplitForecast)
    assert found.to_dict()["bound"] in ("prefill", "decode")
