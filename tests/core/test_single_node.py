"""One device and one batch: which roof decides, in tokens, sequences and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretell as ft
from core_models import llama, mixtral, small, vit
from foretell.arch.operators import Attention
from foretell.core.solver import SingleNodeModel
from foretell.cost.inference import cached, forward_pass
from foretell.cost.kernel_shares import efficiency
from foretell.cost.kernels import Device

MODEL = SingleNodeModel()
H100 = ft.load_hardware("h100")


def test_a_language_model_becomes_bound_by_compute_past_the_ridge_batch() -> None:
    """Each token brings its own activations, about 11 MB, and not a tenth of all weights."""
    by_batch = {batch: MODEL.solve(llama(), "h100", batch_size=batch) for batch in (1, 64, 256, 4096, 65536)}
    assert [one.bottleneck for one in by_batch.values()] == ["Memory", "Memory", "Compute", "Compute", "Compute"]
    assert by_batch[1].ridge_point_flops_per_byte == pytest.approx(0.5 * 989.4e12 / 3.35e12)
    # 0.5 x 989 TFLOP/s over two FLOP a matrix weight; the token table is looked up, not multiplied
    ceiling = 0.5 * 989.4e12 / (2 * (8.03e9 - 128256 * 4096))
    assert by_batch[65536].throughput_per_s == pytest.approx(ceiling, rel=0.01)
    assert by_batch[4096].throughput_per_s == pytest.approx(30_791, rel=0.1)
    more = (by_batch[64].latency_memory_s - by_batch[1].latency_memory_s) * 3.35e12 / 63
    assert more == pytest.approx(41 * 4096 * 2 * 32, rel=0.1)


def test_decoding_reads_the_weights_once_and_the_cache_of_every_sequence() -> None:
    alone = MODEL.solve(llama(), "h100")
    assert alone.work_unit == "token"
    assert alone.latency_memory_s == pytest.approx(2 * (8.03e9 - 128256 * 4096) / 3.35e12, rel=0.01)
    assert alone.memory_footprint_bytes == pytest.approx(16.06e9, rel=0.001)
    cache = 2 * 32 * 8 * 128 * 2048 * 2  # keys and values x layers x heads x width x tokens x bytes
    full = MODEL.solve(llama(), "h100", seq_len=2048)
    assert full.memory_footprint_bytes - alone.memory_footprint_bytes == pytest.approx(cache, rel=0.001)
    assert (full.latency_memory_s - alone.latency_memory_s) * 3.35e12 == pytest.approx(cache, rel=0.01)


def test_a_token_reads_only_the_experts_that_it_visits() -> None:
    model = mixtral()
    one, many = (MODEL.solve(model, "h200", batch_size=batch) for batch in (1, 64))
    bandwidth = ft.load_hardware("h200").memory_bandwidth_bytes_per_s
    assert one.latency_memory_s * bandwidth == pytest.approx(2 * (model.active_parameters - 32000 * 4096), rel=0.01)
    assert many.latency_memory_s * bandwidth == pytest.approx(2 * model.parameters, rel=0.02)
    assert one.latency_compute_s == pytest.approx(2 * (model.active_parameters - 32000 * 4096) / (0.5 * 989.4e12), rel=0.01)


def test_training_counts_every_token_of_a_sequence() -> None:
    model = ft.load_model("gpt2-xl")
    for tokens, paper in ((128, 9.3e-3), (2048, 149e-3), (8192, 596e-3)):
        one = MODEL.solve(model, "h100", batch_size=4, is_training=True, seq_len=tokens)
        matrices = 6 * (1.5576e9 - 1024 * 1600) * 4 * tokens
        attention = 6 * 48 * 1600 * tokens * 4 * tokens  # causal: half of 12 L h S a token
        assert one.latency_compute_s == pytest.approx((matrices + attention) / (0.5 * 989.4e12), rel=0.01)
        assert one.latency_compute_s > paper
        assert one.work_unit == "sequence"
        assert one.throughput_per_s == pytest.approx(4 / one.latency_s)


def test_an_encoder_is_counted_a_sequence_and_not_a_sequence_a_token() -> None:
    one = MODEL.solve("bert-base", "h100", batch_size=64, seq_len=128)
    assert one.work_unit == "sequence"
    assert one.latency_compute_s == pytest.approx(64 * 22e9 / (0.5 * 989.4e12), rel=0.35)  # 22 GFLOP, and its head
    assert MODEL.solve("bert-base", "h100", batch_size=64).latency_compute_s > 4 * one.latency_compute_s  # 512 tokens


def test_images_have_no_sequence() -> None:
    one = MODEL.solve("resnet-50", "a100", batch_size=64)
    assert one.work_unit == "image"
    assert one.latency_compute_s == pytest.approx(64 * 2 * 4.09e9 / (0.5 * 312e12), rel=0.01)
    with pytest.raises(ft.InputError, match="reads no sequence"):
        MODEL.solve(vit(), "a100", seq_len=128)


def test_counts_alone_are_enough_for_inference() -> None:
    net = ft.CNNWorkload("net", 25e6, 50, inference_flops=8e9)
    one = MODEL.solve(net, "a100", batch_size=64)
    assert one.latency_compute_s == pytest.approx(64 * 8e9 / (0.5 * 312e12))
    assert any("counts only" in note for note in one.notes)
    with pytest.raises(ft.InputError, match="needs inference_flops"):
        MODEL.solve(ft.CNNWorkload("net", 25e6), "a100")
    with pytest.raises(ft.InputError, match="needs its layers"):
        MODEL.solve(net, "a100", is_training=True)


def test_latent_attention_keeps_one_latent_a_token() -> None:
    arch = ft.load_model("deepseek-v3").architecture
    core = next(op for block, _ in arch.blocks() for op in block.ops if isinstance(op, Attention))
    assert cached(arch, core) == 512 + 64
    full, short = (MODEL.solve("deepseek-v3", "b300", precision="fp8", seq_len=s) for s in (4096, 1))
    assert full.memory_footprint_bytes - short.memory_footprint_bytes == pytest.approx(4095 * 61 * 576, rel=0.001)


def test_states_do_not_grow_with_the_sequence() -> None:
    short, long = (MODEL.solve("mamba-2.8b", "h100", batch_size=8, seq_len=s) for s in (1, 4096))
    assert short.latency_s == long.latency_s
    assert short.memory_footprint_bytes == long.memory_footprint_bytes


def test_the_latency_is_the_longer_roof_and_what_is_lost_beside_it() -> None:
    for share in (0.5, "calibrated"):
        one = MODEL.solve(llama(), "h100", batch_size=32, efficiency=share)
        assert one.latency_s == pytest.approx(max(one.latency_compute_s, one.latency_memory_s) + one.latency_overhead_s)
        assert one.latency_overhead_s > 0
        assert one.interval_s[0] < one.latency_s < one.interval_s[1]
    flat = MODEL.solve(llama(), "h100", batch_size=32)
    assert flat.mfu == flat.hfu == pytest.approx(0.5 * flat.latency_compute_s / flat.latency_s)


def test_quantities_and_plain_numbers_are_the_same() -> None:
    one = MODEL.solve(llama(), "h100")
    assert one.latency.to("ms").magnitude == pytest.approx(one.latency_s * 1e3)
    assert one.memory_footprint.to("GB").magnitude == pytest.approx(one.memory_footprint_bytes / 1e9)
    assert one["arithmetic_intensity"].to("FLOP/byte").magnitude == one.arithmetic_intensity_flops_per_byte
    assert one.throughput.to("1/s").magnitude == one.throughput_per_s
    assert one.energy.to("J").magnitude == pytest.approx(one.energy_j)
    assert 0.3 * 700 * one.latency_s <= (one.energy_j or 0.0) <= 700 * one.latency_s
    assert one.to_dict()["latency_s"] == one.latency_s
    assert "FLOP/byte" in one.explain()


def test_what_does_not_fit_says_so() -> None:
    one = MODEL.solve("llama-3-70b", "t4")
    assert not one.feasible
    assert "over the" in one.constraint_trace[-1]
    with pytest.raises(ft.InfeasibleError):
        MODEL.solve("llama-3-70b", "t4", raise_errors=True)
    assert MODEL.solve("llama-3-70b", "mi300x").feasible
    assert not MODEL.solve(llama(), "h100", batch_size=64, is_training=True).feasible


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"precision": "int4"}, "int4.*has no known peak.*fp8"),
        ({"precision": "banana"}, "is not a known number format"),
        ({"efficiency": 0}, "efficiency=0"),
        ({"efficiency": 1.5}, "efficiency=1.5"),
        ({"efficiency": "best"}, "calibrated"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1.5}, "whole number"),
        ({"seq_len": -1}, "seq_len=-1"),
        ({"is_training": "yes"}, "is_training"),
        ({"is_lora": True}, "means nothing in inference"),
        ({"is_training": True, "precision": "nf4"}, "too narrow to train"),
    ],
)
def test_bad_input_is_named(given_settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ft.InputError, match=words):
        MODEL.solve(small(), "h100", **given_settings)


def test_the_headline_rate_never_stands_for_a_precision_that_a_device_lacks() -> None:
    with pytest.raises(ft.InputError, match="fp8.*allowed: .*bf16"):
        MODEL.solve(small(), "a100", precision="fp8")
    with pytest.raises(ft.InputError, match="bf16.*has no known peak"):
        MODEL.solve(small(), "v100", precision="bf16")
    full, half = (MODEL.solve(llama(), "h100", batch_size=65536, precision=p) for p in ("fp32", "fp16"))
    assert full.latency_compute_s / half.latency_compute_s == pytest.approx(989.4 / 66.9, rel=0.01)


def test_weights_of_four_bits_compute_in_sixteen() -> None:
    narrow, half = (MODEL.solve(llama(), "h100", precision=p) for p in ("nf4", "fp16"))
    assert narrow.latency_compute_s == half.latency_compute_s
    assert narrow.latency_memory_s == pytest.approx(half.latency_memory_s * (9 / 16) / 2, rel=0.01)


def test_a_sweep_answers_what_solve_answers() -> None:
    axes: dict[str, Any] = {
        "batch_size": [1, 3, 64],
        "seq_len": [1, 1000, 4096],
        "precision": ["fp16", "fp8", "int4"],
        "efficiency": [0.5, "calibrated"],
        "is_training": [False, True],
        "is_lora": [False, True],
    }
    model = small(model_type="gemma3_text", sliding_window=1000, head_dim=32)
    table = MODEL.sweep(model, "h100", **axes)
    assert len(table) == 216
    for i in range(0, len(table), 5):
        row = table.row(i)
        asked = {name: row[name] for name in axes}
        if not row["valid"]:
            with pytest.raises(ft.InputError):
                MODEL.solve(model, "h100", **asked)
            continue
        one = MODEL.solve(model, "h100", **asked)
        for name, value in row.items():
            if isinstance(value, float) and name not in axes:
                assert value == pytest.approx(getattr(one, name), rel=1e-9)
        assert (row["feasible"], row["bottleneck"]) == (one.feasible, one.bottleneck)
    assert "latency_s" in repr(table)
    assert table.best("throughput_per_s", largest=True)["batch_size"] == 64


def test_a_sweep_refuses_what_is_no_setting() -> None:
    with pytest.raises(ft.InputError, match="batch"):
        MODEL.sweep(small(), "h100", batch=[1, 2])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 512), st.integers(1, 4096), st.floats(1.0, 4.0))
def test_more_bandwidth_is_never_slower(batch: int, tokens: int, factor: float) -> None:
    arch, shares = small().architecture, efficiency(H100.compute_capability, H100.id)
    peak, bandwidth = H100.peak("fp16"), H100.memory_bandwidth_bytes_per_s
    slow, fast = (
        forward_pass(arch, Device(peak, peak, rate, 132.0), shares, batch=batch, seq_len=tokens, weight=2.0)
        for rate in (bandwidth, bandwidth * factor)
    )
    assert fast.seconds <= slow.seconds * (1 + 1e-12)
    assert fast.moved == slow.moved


def test_arrays_and_numbers_agree() -> None:
    arch, shares = mixtral(num_hidden_layers=2).architecture, efficiency(H100.compute_capability, H100.id)
    device = Device(H100.peak("fp16"), H100.peak("fp16"), H100.memory_bandwidth_bytes_per_s, 132.0)
    batches, tokens = np.array([1.0, 7.0, 300.0]), np.array([1.0, 2048.0, 9.0])
    many = forward_pass(arch, device, shares, batch=batches, seq_len=tokens, weight=2.0, longest=2048)
    for i in range(3):
        one = forward_pass(arch, device, shares, batch=batches[i].item(), seq_len=tokens[i].item(), weight=2.0)
        for name in ("flops", "moved", "seconds", "cache", "working"):
            assert getattr(one, name) == pytest.approx(getattr(many, name)[i], rel=1e-12)
