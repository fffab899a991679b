"""A deployment under a demand: what fits, what is resident, what it answers, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from foretell.core.serving import Deployment, deployment
from foretell.core.serving_demand import Demand
from foretell.core.serving_forecast import serve
from foretell.errors import CombinationError, InputError
from foretell.recipe.serving import ServingRecipe, Speculation

LOAD = {"inputs": 1000.0, "outputs": 200.0}


def served(gpu: str = "h100", model: Any = "llama-3-8b", **flags: Any) -> Deployment:
    return deployment(model, gpu, ServingRecipe(max_model_len=16384, **flags))


def asked(kind: str, found: Deployment | None = None, **more: Any) -> Any:  # fields that hold here
    load: dict[str, Any] = LOAD | more
    return serve(found or served(), Demand(kind, **load))


def _single(found: Deployment) -> Any:
    return asked("single", found)


def test_littles_law_holds_in_every_loop() -> None:
    for found in (asked("closed", concurrency=32.0), asked("open", rate=5.0)):
        in_system = found.requests_per_s * found.request_s
        assert in_system == pytest.approx(found.resident + found.waiting, rel=0.02)


def test_throughput_is_tokens_over_time() -> None:
    one = asked("single")
    assert one.output_tokens_per_s == pytest.approx(200 / (one.ttft_s + 199 * one.itl_s))
    batch = asked("static", concurrency=16.0)
    assert batch.output_tokens_per_s == pytest.approx(16 * 200 / (batch.ttft_s + 199 * batch.itl_s))
    assert batch.total_tokens_per_s == pytest.approx(6 * batch.output_tokens_per_s)


def test_more_in_flight_is_more_throughput_and_slower_tokens() -> None:
    many = [asked("closed", concurrency=float(n)) for n in (1, 4, 16, 64, 256)]
    rates = [one.output_tokens_per_s for one in many]
    itls = [one.itl_s for one in many]
    assert rates == sorted(rates)
    assert itls == sorted(itls)


def test_a_server_that_cannot_keep_up_says_so() -> None:
    top = asked("offline").capacity_requests_per_s
    late = asked("open", rate=1.2 * top)
    assert not late.stable
    assert late.ttft_s == float("inf")
    assert late.to_dict()["ttft_s"] is None
    assert late.backlog_growth_per_s == pytest.approx(0.2 * top, rel=0.01)
    assert any("queue grows" in note for note in late.notes)
    assert asked("open", rate=0.8 * top).stable


def test_kv_holds_the_batch_down_and_the_rest_waits() -> None:
    found = served("rtx4090", weights="int8", activations="bf16")
    full: Any = serve(found, Demand("closed", 3000, 1000, concurrency=200.0))
    assert full.bound == "kv"
    assert full.resident == pytest.approx(full.max_resident, rel=0.01)
    assert full.waiting == pytest.approx(200 - full.resident, rel=0.01)
    assert full.queue_s > 0.9 * full.waiting / full.requests_per_s


def test_what_does_not_fit_is_an_answer() -> None:
    found = asked("single", served("rtx4090", "llama-3-70b"))
    assert not found.feasible
    assert found.ttft_s is None
    assert any("GiB are missing" in note for note in found.notes)


def test_replicas_share_the_load() -> None:
    one = asked("closed", concurrency=16.0)
    four = asked("closed", served(dp=4), concurrency=64.0)
    assert four.output_tokens_per_s == pytest.approx(4 * one.output_tokens_per_s)
    assert four.itl_s == pytest.approx(one.itl_s)
    assert four.gpus == 4


def test_a_prefix_that_is_cached_is_not_computed_but_seen() -> None:
    fresh, cached = (asked("single", inputs=8000.0, cached=float(n)) for n in (0, 7000))
    assert cached.prompt_s < 0.4 * fresh.prompt_s
    assert cached.itl_s == pytest.approx(fresh.itl_s)


def test_speculation_makes_more_than_one_token_of_a_step() -> None:
    found = deployment("llama-3-70b", "h200", ServingRecipe(tp=4, max_model_len=8192))
    spec = ServingRecipe(tp=4, max_model_len=8192, speculation=Speculation(tokens=3, acceptance=0.8))
    drafted = deployment("llama-3-70b", "h200", spec, draft="llama-3.2-1b")
    slow, fast = (_single(one) for one in (found, drafted))
    assert fast.itl_s < slow.itl_s
    never = ServingRecipe(tp=4, max_model_len=8192, speculation=Speculation(tokens=3, acceptance=0.0))
    useless = _single(deployment("llama-3-70b", "h200", never, draft="llama-3.2-1b"))
    assert useless.itl_s > slow.itl_s


def test_the_share_of_the_reference_leaves_the_engine_out() -> None:
    roofs = deployment("llama-3-8b", "h100", efficiency=0.5)
    found = serve(roofs, Demand("single", 2048, 128))
    weights = 2 * 8.03e9 - 2 * 128256 * 4096
    cache = 2 * 32 * 8 * 128 * 2 * (2048 + 64.5)
    assert found.itl_s == pytest.approx((weights + cache) / 3.35e12, rel=0.01)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"kind": "closed"}, "concurrency"),
        ({"kind": "closed", "concurrency": 0.5}, "concurrency"),
        ({"kind": "open"}, "rate"),
        ({"kind": "open", "rate": 0.0}, "rate"),
        ({"kind": "open", "rate": -1.0}, "rate"),
        ({"kind": "open", "rate": float("nan")}, "rate"),
        ({"kind": "single", "inputs": 0}, "input_tokens"),
        ({"kind": "single", "outputs": -3}, "output_tokens"),
        ({"kind": "single", "cached": 1000.0}, "cached_tokens"),
        ({"kind": "single", "cached": -1.0}, "cached_tokens"),
        ({"kind": "banana"}, "load"),
        ({"kind": "single", "longest": 10.0}, "longest_output"),
        ({"kind": "open", "rate": 1.0, "arrival_cv": -0.1}, "arrival_cv"),
        ({"kind": "offline", "requests": 0}, "requests"),
    ],
)
def test_a_demand_that_means_nothing_is_refused(given: dict[str, Any], field: str) -> None:
    load: dict[str, Any] = LOAD | given
    with pytest.raises(InputError, match=field):
        serve(served(), Demand(**load))


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"tp": 3}, "tp"),
        ({"tp": 0}, "tp"),
        ({"pp": 64}, "pp"),
        ({"ep": 2}, "ep"),
        ({"dp_kind": "odd"}, "dp_kind"),
        ({"engine": "vlm"}, "engine"),
        ({"weights": "fp7"}, "weights"),
        ({"kv": "fp7"}, "kv"),
        ({"memory_share": 1.5}, "memory_share"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"speculation": Speculation(tokens=0)}, "speculation.tokens"),
        ({"speculation": Speculation(acceptance=1.2)}, "acceptance"),
        ({"activations": "fp4"}, "activations"),
    ],
)
def test_a_deployment_that_no_engine_runs_is_refused(flags: dict[str, Any], field: str) -> None:
    with pytest.raises((InputError, CombinationError), match=field):
        deployment("llama-3-8b", "h100", ServingRecipe(**flags))


def test_models_that_make_no_tokens_are_refused() -> None:
    for name in ("bert-base", "t5-small", "vit-base"):
        with pytest.raises(InputError, match="token"):
            deployment(name, "h100")


def test_more_ranks_than_kv_heads_is_legal_and_others_are_not() -> None:
    assert served(model="llama-3-8b", tp=16, gpu="gb200").recipe.tp == 16
    with pytest.raises(ft.ForetellError, match="tp"):
        served(model="llama-3-8b", tp=5)


@settings(max_examples=30, deadline=None)
@given(
    inputs=st.integers(1, 12_000),
    outputs=st.integers(1, 2000),
    concurrency=st.integers(1, 600),
    tp=st.sampled_from([1, 2, 4]),
)
def test_answers_are_finite_and_ordered(inputs: int, outputs: int, concurrency: int, tp: int) -> None:
    load = {"inputs": float(inputs), "outputs": float(outputs), "concurrency": float(concurrency)}
    found = asked("closed", served(tp=tp), **load)
    assert 0 < found.ttft_s < 1e5
    assert 0 <= found.itl_s < 1e3
    assert found.ttft_interval_s[0] <= found.ttft_s <= found.ttft_interval_s[1]
    assert found.utilization <= 1.01
    assert sum(found.ledger.values()) > 0
    assert found.decoding <= min(concurrency, found.max_resident) + 1e-6
