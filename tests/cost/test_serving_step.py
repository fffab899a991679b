"""Steps of a serving engine: what reads the weights, what reads the cache, and what the ranks and the engine add."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import foretell as ft
from foretell.core.serving import Deployment, deployment
from foretell.cost.serving_load import Load
from foretell.recipe.serving import ServingRecipe, Speculation

LLAMA = "llama-3-8b"


def served(model: Any = LLAMA, gpu: str = "h100", efficiency: float | str = "calibrated", **flags: Any) -> Deployment:
    return deployment(model, gpu, ServingRecipe(**flags), efficiency=efficiency)


def prompt(tokens: float, count: float = 1.0) -> Load:
    return Load(prefill=tokens * count, pairs=count * tokens * (tokens + 1) / 2, prompts=count)


def test_at_full_rates_a_decoding_step_reads_the_weights_and_the_cache_once() -> None:
    found = served(efficiency=1.0)
    step = found.steps.seconds(Load(decode=1, context=1))
    assert step * 3.35e12 == pytest.approx(2 * (8.03e9 - 128256 * 4096), rel=0.01)
    cache = 2 * 32 * 8 * 128 * 2  # keys and values x layers x heads x width x bytes
    more = found.steps.seconds(Load(decode=1, context=10_001)) - step
    assert more * 3.35e12 == pytest.approx(10_000 * cache, rel=0.01)


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    half, tenth = (served(efficiency=share).steps.seconds(Load(decode=1024, context=1024 * 256)) for share in (0.5, 0.05))
    assert tenth > 5 * half  # the cache's traffic stays what it was


def test_the_ledger_sums_to_the_step() -> None:
    for flags in ({}, {"tp": 8}, {"pp": 2}, {"enforce_eager": True}):
        steps = served(**flags).steps
        for load in (Load(decode=32, context=32_000), replace(prompt(2000), decode=8, context=8000)):
            assert sum(steps.ledger(load).values()) == pytest.approx(steps.seconds(load))
            assert all(spent >= 0 for spent in steps.ledger(load).values())


def test_arrays_price_as_numbers_do() -> None:
    steps = served("mixtral-8x7b", "h200", tp=2).steps
    batches = np.array([1.0, 7.0, 64.0, 300.0])
    many = steps.seconds(Load(decode=batches, context=batches * 1000, prefill=batches * 3, pairs=batches * 99, prompts=batches))
    one = [steps.seconds(Load(b, b * 1000, b * 3, b * 99, b)) for b in batches.tolist()]
    assert many.tolist() == pytest.approx(one)


def test_a_copy_at_other_rates_leaves_the_original_as_it_was() -> None:
    steps = served().steps
    both = replace(prompt(2000), decode=8, context=8000)
    before = steps.seconds(both)
    roofs = replace(steps, share=1.0)
    assert roofs.seconds(both) == pytest.approx(served(efficiency=1.0).steps.seconds(both))
    assert steps.seconds(both) == before


def test_a_token_reads_the_experts_that_the_batch_visits() -> None:
    steps = served("mixtral-8x7b", "h200", efficiency=1.0).steps
    one, many = (steps.seconds(Load(decode=n, context=n)) for n in (1.0, 64.0))
    bandwidth = ft.load_hardware("h200").memory_bandwidth_bytes_per_s
    active = ft.load_model("mixtral-8x7b").active_parameters
    assert one * bandwidth == pytest.approx(2 * (active - 32000 * 4096), rel=0.02)
    assert many * bandwidth == pytest.approx(2 * 46.7e9, rel=0.02)


def test_latent_attention_reads_the_latent() -> None:
    steps = served("deepseek-v3", "h200", efficiency=1.0, weights="fp8", kv="bf16", tp=8).steps
    near, far = (steps.seconds(Load(decode=1, context=seen)) for seen in (1.0, 100_001.0))
    width, layers = 512 + 64, 61  # kv_lora_rank + qk_rope_head_dim, whole on every rank
    bandwidth = ft.load_hardware("h200").memory_bandwidth_bytes_per_s
    assert (far - near) * bandwidth == pytest.approx(100_000 * width * layers * 2, rel=0.01)


def test_a_window_bounds_what_a_sequence_reads() -> None:
    steps = served("gpt-oss-20b", "h100", weights="mxfp4").steps
    short, long = (steps.seconds(Load(decode=1, context=seen)) for seen in (1000.0, 100_000.0))
    whole = 24 * 2 * 8 * 64 * 2 * 99_000 / 3.35e12  # all 24 layers over everything
    assert 0.4 * whole < long - short < 0.8 * whole  # every second layer looks back 128 tokens


def test_ranks_share_the_weights_and_pay_for_their_sums() -> None:
    one, eight = (served("llama-3-70b", "h200", tp=tp).steps for tp in (2, 8))
    load = Load(decode=8, context=8 * 500)
    assert eight.ledger(load)["matmul"] < 0.4 * one.ledger(load)["matmul"]
    assert eight.ledger(load)["tensor_parallel"] > 0
    assert one.seconds(load) < 4 * eight.seconds(load)


def test_heads_are_copied_where_ranks_exceed_them() -> None:
    """Eight KV heads on sixteen ranks: each rank keeps a whole one."""
    eight, sixteen = (served("llama-3-70b", "gb200", efficiency=1.0, tp=tp).steps for tp in (8, 16))
    for steps in (eight, sixteen):
        near, far = (steps.seconds(Load(decode=1, context=seen)) for seen in (1.0, 1e6))
        assert (far - near) * steps.device.bandwidth == pytest.approx(1e6 * 80 * 2 * 128 * 2, rel=0.02)


def test_stages_of_a_pipeline_work_on_parts_of_the_batch() -> None:
    one, two = (served("llama-3-70b", "h200", tp=4, pp=pp).steps for pp in (1, 2))
    load = Load(decode=64, context=64 * 1000)
    assert two.seconds(load) < one.seconds(load)  # half the batch is read past the same weights
    alone = Load(decode=1, context=1000)
    assert two.seconds(alone) > one.seconds(alone)  # one sequence waits for both stages


def test_narrow_weights_are_read_quicker_and_multiplied_no_quicker() -> None:
    wide, narrow = served(gpu="a100").steps, served(gpu="a100", weights="int4").steps
    few, many = Load(decode=1, context=500), prompt(4096)
    assert narrow.ledger(few)["matmul"] < 0.45 * wide.ledger(few)["matmul"]
    assert narrow.ledger(many)["matmul"] >= wide.ledger(many)["matmul"]


def test_a_prompt_has_a_floor_and_its_attention_grows_with_the_square() -> None:
    steps = served(efficiency=1.0).steps
    assert steps.seconds(prompt(1)) == pytest.approx(2 * 7.5e9 / 3.35e12, rel=0.05)
    short, long = (steps.ledger(prompt(n))["attention_prefill"] for n in (8192, 131072))
    assert long == pytest.approx(256 * short, rel=0.01)
    causal = 4 * 131072**2 / 2 * 4096 * 32  # two products of 32 layers, half of the pairs
    assert long == pytest.approx(causal / 989.4e12, rel=0.01)


def test_a_draft_and_its_verification_take_time() -> None:
    plain = deployment(LLAMA, "h100", ServingRecipe())
    spec = Speculation(tokens=4, acceptance=0.7)
    drafted = deployment(LLAMA, "h100", ServingRecipe(speculation=spec), draft="llama-3.2-1b")
    load = Load(decode=1, context=1000, width=drafted.width)
    assert drafted.width == 5.0
    assert drafted.seconds(load) > plain.seconds(Load(decode=1, context=1000)) + 4 * 1.2e9 * 2 / 3.35e12
    assert drafted.made == pytest.approx((1 - 0.7**5) / 0.3)


def test_layers_that_propose_tokens_take_theirs() -> None:
    plain, spec = served("deepseek-v3", "h200", weights="fp8", tp=8), Speculation("mtp", tokens=2, acceptance=0.8)
    found = served("deepseek-v3", "h200", weights="fp8", tp=8, speculation=spec)
    load = Load(decode=8, context=8000)
    more = found.seconds(replace(load, width=3.0)) - plain.seconds(load)
    assert more > 2 * plain.seconds(load) / 61 / 2  # two more layers at least, and three tokens instead of one
    with pytest.raises(ft.ForetellError, match="draft"):
        served(speculation=Speculation())
    with pytest.raises(ft.ForetellError, match="draft"):
        deployment(LLAMA, "h100", draft="llama-3.2-1b")


def test_a_low_precision_format_that_a_device_lacks_is_unpacked_with_a_note() -> None:
    found = served(gpu="a100", weights="fp8")
    assert any("no fp8 units" in note for note in found.notes)
    assert found.steps.formats.unpacked
    with pytest.raises(ft.ForetellError, match="fp8"):
        served(gpu="a100", weights="bf16", activations="fp8")


def test_chunks_share_steps_with_decoding_where_the_engine_mixes_them() -> None:
    assert served().limits.mixed
    assert not served(engine="sglang").limits.mixed
    assert not served(engine="sglang", chunked_prefill=True).limits.mixed
    assert served(engine="vllm", version="0.6.0", chunked_prefill=True).limits.mixed
    assert not served(engine="vllm", version="0.6.0", chunked_prefill=False).limits.mixed
