"""Weights that stream through a wafer, or from a host through an accelerator, layer by layer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import foretell as ft
from core_models import llama, mixtral, vit
from foretell.core.solver import WeightStreamingModel, WeightStreamingResult
from foretell.units import quantity

MODEL = WeightStreamingModel()
WAFER = ft.load_hardware("cerebras-wse3")
PEAK = 0.5 * 15600e12
LAYER = 855_654_400
"""Parameters of one layer of a 70B model."""


def solve(*args: Any, model: Any = "llama-3.1-70b", hardware: Any = WAFER, **more: Any) -> WeightStreamingResult:
    return MODEL.solve(model, hardware, *args, **more)


def test_attention_has_all_query_heads_and_their_width() -> None:
    """70B, 8192 tokens: 2.20e12 FLOP a layer with masked pairs, half of that causal; not 1.37e11 (of the key heads)."""
    one = solve(8192, phase="prefill")
    scores = one.layer_compute_time_s * PEAK - 2 * LAYER * 8192
    assert 2 * scores == pytest.approx(4 * 8192**2 * 64 * 128, rel=0.01)
    assert 2 * scores == pytest.approx(2.20e12, rel=0.01)
    wide = ft.TransformerWorkload(
        "wide", 10e9, layers=20, hidden_dim=4096, heads=32, kv_heads=8, head_dim=256, ffn_dim=14336, vocab_size=32000
    )
    assert solve(1024, model=wide).kv_cache_size_bytes == 1024 * 20 * 8 * 2 * 256 * 2


def test_a_latent_is_kept_and_not_all_heads() -> None:
    """DeepSeek-V3, 4096 tokens in 16 bits: 0.288 GB, not 7.16."""
    one = solve(4096, model="deepseek-v3")
    assert one.kv_cache_size_bytes == 61 * 576 * 4096 * 2
    assert one.kv_cache_size_bytes == pytest.approx(0.288e9, rel=0.001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": -4}, "batch_size=-4"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"seq_len": 0}, "seq_len=0"),
        ({"seq_len": math.nan}, "seq_len=nan"),
        ({"efficiency": 7}, "efficiency=7"),
        ({"efficiency": -0.5}, "efficiency=-0.5"),
        ({"phase": "banana"}, "phase='banana' is not known; allowed: decode, prefill"),
        ({"phase": None}, "phase"),
        ({"precision": "fp8"}, "precision='fp8' has no known peak on Cerebras CS-3 .*allowed: fp16, bf16"),
        ({"precision": "fp99"}, "precision='fp99'"),
        ({"injection_bandwidth": 0}, "injection_bandwidth=0"),
        ({"injection_bandwidth": "fast"}, "injection_bandwidth='fast'"),
        ({"weights": "int3"}, "weights='int3'"),
        ({"model": vit()}, "one after the other"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": "llama-3.1-70b", "hardware": WAFER, "seq_len": 2048}
    with pytest.raises(ft.InputError, match=message):
        MODEL.solve(**(given | change))


def test_a_pass_takes_as_long_as_its_slower_part() -> None:
    slow, fast = solve(2048), solve(2048, injection_bandwidth="1000 TB/s")
    assert slow.layer_injection_time_s == pytest.approx(2 * LAYER / 150e9, rel=1e-3)
    assert slow.bottleneck == "Interconnect-Bandwidth-Bound"
    head = 2 * 128256 * 8192 / 150e9
    assert slow.pass_time_s == pytest.approx(80 * slow.layer_injection_time_s + head, rel=1e-3)
    assert slow.throughput_tokens_per_sec == pytest.approx(1 / slow.pass_time_s)
    busy = solve(2048, 60, injection_bandwidth="1000 TB/s")
    assert busy.bottleneck == "Compute-Bound"
    assert busy.pass_time_s > 80 * busy.layer_compute_time_s
    assert fast.pass_time_s < slow.pass_time_s / 1000
    told = solve(2048, injection_bandwidth=quantity(1.2e12, "byte/s"))
    assert told.throughput_tokens_per_sec == pytest.approx(8.6, rel=0.02)
    assert told.injection_bandwidth_bytes_per_s == 1.2e12


def test_decoding_a_batch_takes_no_longer_until_arithmetic_decides() -> None:
    one, many = solve(2048), solve(2048, 60)
    assert many.pass_time_s == pytest.approx(one.pass_time_s)
    assert many.throughput_tokens_per_sec == pytest.approx(60 * one.throughput_tokens_per_sec)
    assert many.layer_compute_time_s == pytest.approx(60 * one.layer_compute_time_s, rel=0.01)
    best = one.optimal_batch_size
    each = (2 * LAYER + 4 * 2048 * 64 * 128) / PEAK
    assert best == pytest.approx(one.layer_injection_time_s / each, rel=0.01)
    below, above = (solve(2048, batch) for batch in (best, best + 1))
    assert below.bottleneck == "Interconnect-Bandwidth-Bound"
    assert above.bottleneck == "Compute-Bound"


def test_keys_values_and_activations_stay_on_the_wafer() -> None:
    one = solve(2048, 16, phase="prefill")
    assert one.kv_cache_size_bytes == 16 * 2048 * 327680
    assert one.activations_size_bytes > 2 * 16 * 2048 * (2 * 8192 + 28672)
    assert one.weight_buffers_size_bytes == 0  # weights are worked on as they arrive
    assert one.throughput_tokens_per_sec == pytest.approx(16 * 2048 / one.pass_time_s)
    parts = one.kv_cache_size_bytes + one.activations_size_bytes
    assert one.wafer_memory_utilization == pytest.approx(parts / 44e9)
    most = solve(4096, 1).max_batch_size
    fits, over = solve(4096, most), solve(4096, most + 1)
    assert (fits.feasible, over.feasible) == (True, False)
    assert over.throughput_tokens_per_sec == 0.0
    assert "over the" in over.constraint_trace[0]


def test_a_host_streams_through_an_accelerator() -> None:
    """70B on one RTX 4090: two layers are on the card, the rest comes over PCIe for every token."""
    card = ft.load_hardware("rtx4090")
    assert card.pcie is not None
    assert card.pcie.bytes_per_s is not None
    one = solve(2048, hardware=card)
    assert one.feasible
    assert one.layer_injection_time_s == pytest.approx(2 * LAYER / card.pcie.bytes_per_s, rel=1e-3)
    assert one.weight_buffers_size_bytes == pytest.approx(2 * 2 * 128256 * 8192, rel=1e-4)  # the output projection is the largest
    four = solve(2048, hardware=card, precision="bf16", weights="int4")
    assert four.layer_injection_time_s == pytest.approx(one.layer_injection_time_s * 4.15625 / 16, rel=0.01)
    ssd = solve(2048, hardware=card, injection_bandwidth="7 GB/s")
    assert ssd.throughput_tokens_per_sec < one.throughput_tokens_per_sec / 3
    full = solve(2048, hardware=card, efficiency="calibrated")
    assert full.pass_time_s == pytest.approx(one.pass_time_s, rel=0.01)
    assert full.layer_compute_time_s > one.layer_compute_time_s
    with pytest.raises(ft.InputError, match="injection_bandwidth is not known of lone"):
        solve(2048, hardware=ft.HardwareNode("lone", int(80e9), 2e12, {"fp16": 400e12}))


def test_of_routed_experts_those_come_in_that_are_visited() -> None:
    one, many = solve(2048, 1, model="mixtral-8x7b"), solve(2048, 64, model="mixtral-8x7b")
    expert = 3 * 4096 * 14336
    assert (many.layer_injection_time_s - one.layer_injection_time_s) * 150e9 == pytest.approx(2 * 6 * expert, rel=0.01)
    lone = solve(512, 1, model=mixtral())
    assert lone.layer_injection_time_s < 0.4 * solve(512, 64, model=mixtral()).layer_injection_time_s
    assert one.optimal_batch_size > 1000


def test_the_answer_reads_as_data_and_as_text() -> None:
    one = solve(2048, 4)
    plain = one.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert sum(term.bytes for term in one.terms()) == pytest.approx(one.total_memory_required_bytes)
    assert "the two balance at a batch of" in one.explain()
    assert one.layer_injection_time.to("ms").magnitude == pytest.approx(1e3 * one.layer_injection_time_s)
    assert any("estimate" in note for note in one.notes)
    assert any("not confirmed" in note for note in one.notes)


def test_a_sweep_says_what_single_answers_say() -> None:
    axes: dict[str, Any] = {
        "seq_len": [1, 2048, 32768],
        "batch_size": [1, 64, 100_000],
        "phase": ["decode", "prefill", "banana"],
        "injection_bandwidth": [None, "2 TB/s"],
    }
    table = MODEL.sweep(llama(), WAFER, **axes)
    assert len(table) == 54
    for i in range(len(table)):
        row = table.row(i)
        if row["phase"] == "banana":
            assert not row["valid"]
            assert "phase='banana'" in row["reason"]
            continue
        one = MODEL.solve(llama(), WAFER, **{name: row[name] for name in axes})
        assert row["feasible"] == one.feasible
        assert row["bottleneck"] == one.bottleneck
        for name in ("throughput_tokens_per_sec", "layer_compute_time_s", "layer_injection_time_s", "optimal_batch_size"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-9), name
        assert row["max_batch_size"] == one.max_batch_size
    best = table.best("throughput_tokens_per_sec", largest=True)
    assert best is not None
    assert best["phase"] == "prefill"
