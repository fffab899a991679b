"""A server that admits a request when another leaves: how many it holds, and how fast they go."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import foretell as ft
from core_models import llama
from foretell.core.solver import ContinuousBatchingModel, ContinuousBatchingResult, ServingModel
from foretell.cost.serving_batch import expected_blocks, mean_scale

MODEL = ContinuousBatchingModel()
H100 = ft.load_hardware("h100")


def solve(*args: Any, model: Any = "llama-3.1-8b", hardware: Any = H100, **more: Any) -> ContinuousBatchingResult:
    return MODEL.solve(model, hardware, *args, **more)


def test_one_configuration_has_one_time_between_tokens() -> None:
    """8B, 32 requests of 2048 tokens: both solvers say the same, not 7.68 and 7.36 ms."""
    for batch in (1, 32, 200):
        for share in (0.5, "calibrated"):
            server = solve(2048, batch, efficiency=share)
            assert server.max_active_requests == batch
            batched = ServingModel().solve("llama-3.1-8b", H100, 2048, batch, efficiency=share)
            assert server.itl_s == batched.itl_s
    assert solve(2048, 32).itl_s == pytest.approx((2 * (8.03e9 - 128256 * 4096) + 32 * 2048 * 131072) / 3.35e12, rel=0.01)


def test_throughput_pays_for_prompts() -> None:
    """Others' prompts are read between two tokens: time per output token exceeds that of a step, throughput falls short."""
    shares = [solve(2048, 32, output_tokens=out) for out in (1024, 256, 64)]
    for one in shares:
        assert one.tpot_s is not None
        assert one.itl_s is not None
        alone = ServingModel().solve("llama-3.1-8b", H100, 2048 - int(one.output_tokens)).ttft_s
        prompts = 32 * alone / one.output_tokens  # a step has so many prompts to read
        # requests are shorter than at their end, where `itl` is; what a step and prompts read of weights is read once
        assert 0.6 * (one.itl_s + prompts) < one.tpot_s < one.itl_s + prompts
        assert one.requests_per_s < 32 / (alone + one.tpot_s * (one.output_tokens - 1)) * 1.001
        assert one.throughput_tokens_per_sec == pytest.approx(one.requests_per_s * one.output_tokens)
    assert [s.throughput_tokens_per_sec for s in shares] == sorted((s.throughput_tokens_per_sec for s in shares), reverse=True)
    assert shares[2].tpot_s is not None
    assert shares[0].tpot_s is not None
    assert shares[2].tpot_s > 4 * shares[0].tpot_s


def test_blocks_hold_what_lengths_need_and_the_last_one_is_partly_empty() -> None:
    """Exponential lengths cut at 4096, mean 1024, blocks of 16: 0.76 % of the blocks is empty; 75 % of what is reserved."""
    one = solve(4096, 256, mean_request_tokens=1024)
    assert one.memory_fragmentation_pct == pytest.approx(0.7619, abs=1e-3)
    assert one.static_fragmentation_pct == 75.0
    assert one.paged_kv_cache_size_bytes == pytest.approx(34.6235e9, rel=1e-5)
    assert solve(2048, 4, mean_request_tokens=300, page_size=128).memory_fragmentation_pct == pytest.approx(18.579, abs=1e-3)
    assert solve(8192, 64).memory_fragmentation_pct == 0.0  # whole blocks, all equally long
    assert solve(1000, 64).memory_fragmentation_pct == pytest.approx(100 * (1 - 1000 / 1008))
    pages = [solve(4096, 8, mean_request_tokens=500, page_size=page).memory_fragmentation_pct or 0.0 for page in (1, 16, 64, 256)]
    assert pages == sorted(pages)
    assert pages[0] < 0.2


def test_the_law_of_lengths_has_the_mean_that_was_asked() -> None:
    rng = np.random.default_rng(1)
    for mean, longest, block in ((100.0, 150.0, 16), (1024.0, 4096.0, 16), (30.0, 1000.0, 64)):
        drawn = np.minimum(rng.exponential(mean_scale(mean, longest), 400_000), longest)
        assert drawn.mean() == pytest.approx(mean, rel=0.01)
        assert np.ceil(drawn / block).mean() == pytest.approx(expected_blocks(mean, longest, block), rel=0.01)


def test_memory_decides_how_many_are_resident() -> None:
    one = solve(8192, 1000)
    assert one.bound == "memory"
    assert one.max_active_requests == one.kv_cache_tokens // 8192
    assert one.kv_cache_tokens * 131072 < 0.92 * H100.available_bytes - 16.06e9
    more = solve(8192, 1000, mean_request_tokens=2048)
    assert more.max_active_requests == pytest.approx(4 * one.max_active_requests, rel=0.05)
    assert more.static_max_active_requests == one.max_active_requests
    assert more.speedup_vs_static is not None
    assert more.speedup_vs_static > 1.05
    assert solve(2048, 8).bound == "max_batch_size"
    assert solve(2048, 8).speedup_vs_static == 1.0
    assert solve(8192, 1000, memory_share=0.5).max_active_requests < 0.5 * one.max_active_requests
    assert solve(8192, 1000, kv_format="fp8").max_active_requests == pytest.approx(2 * one.max_active_requests, abs=2)
    wide = solve(8192, 1000, model="llama-3.1-70b", tp_size=4)
    assert wide.feasible
    assert wide.devices == 4


def test_what_does_not_fit_serves_nothing() -> None:
    none = solve(2048, model="llama-3.1-70b")
    assert (none.feasible, none.max_active_requests, none.throughput_tokens_per_sec) == (False, 0, 0.0)
    assert (none.ttft_s, none.itl_s, none.tpot_s, none.speedup_vs_static) == (None, None, None, None)
    assert any("are missing on each accelerator" in text for text in none.constraint_trace)
    assert json.loads(json.dumps(none.to_dict(), allow_nan=False)) == none.to_dict()
    long = solve(10_000_000)
    assert not long.feasible
    assert "one request needs more KV" in long.constraint_trace[-1]
    assert "0 output tokens/s" in none.explain()


def test_both_names_of_the_longest_request_are_taken() -> None:
    assert solve(2048, 8).to_dict() == solve(max_seq_len=2048, max_batch_size=8).to_dict()
    assert solve(2048, 8, max_seq_len=2048).feasible
    with pytest.raises(ft.CombinationError, match="max_seq_len=4096 and seq_len name the same thing"):
        solve(2048, max_seq_len=4096)
    with pytest.raises(ft.InputError, match="seq_len is needed"):
        solve()


def test_calibrated_answers_have_intervals() -> None:
    flat, full = solve(2048, 32), solve(2048, 32, efficiency="calibrated", engine="vllm", engine_version="0.11.0")
    assert (flat.tpot_interval_s, flat.throughput_interval, flat.ttft_interval_s) == (None, None, None)
    assert full.tpot_interval_s is not None
    assert full.tpot_s is not None
    assert full.tpot_interval_s[0] <= full.tpot_s <= full.tpot_interval_s[1]
    assert full.throughput_interval is not None
    assert full.throughput_interval[0] <= full.throughput_tokens_per_sec <= full.throughput_interval[1]
    assert full.ttft.to("ms").magnitude == pytest.approx(1e3 * (full.ttft_s or 0))


def test_the_ledger_holds_all_that_the_memory_flag_gives() -> None:
    one = solve(2048, 32)
    assert sum(term.bytes for term in one.terms()) == pytest.approx(0.92 * H100.available_bytes, rel=1e-6)
    assert "kv_pool" in one.explain()
    assert any("memory flag 0.92" in text for text in one.constraint_trace)
    plain = one.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 0}, "seq_len=0"),
        ({"seq_len": math.nan}, "seq_len=nan"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"max_batch_size": True}, "max_batch_size=True"),
        ({"page_size": 0}, "page_size=0"),
        ({"page_size": -16}, "page_size=-16"),
        ({"mean_request_tokens": 0}, "mean_request_tokens=0"),
        ({"mean_request_tokens": 4096}, "mean_request_tokens=4096 .*1 to 2048"),
        ({"mean_request_tokens": math.nan}, "mean_request_tokens=nan"),
        ({"output_tokens": 2048}, "output_tokens=2048 leaves no prompt"),
        ({"output_tokens": 0}, "output_tokens=0"),
        ({"precision": "fp99"}, "precision='fp99'"),
        ({"precision": "int4"}, "has no known peak on NVIDIA H100"),
        ({"efficiency": 2}, "efficiency=2"),
        ({"memory_share": 1.5}, "memory_share=1.5"),
        ({"memory_share": 0}, "memory_share=0"),
        ({"engine": "vlm"}, "engine='vlm'"),
        ({"tp_size": 5}, "tp_size=5"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": H100, "seq_len": 2048}
    with pytest.raises(ft.InputError, match=message):
        MODEL.solve(**(given | change))


def test_a_sweep_says_what_single_answers_say() -> None:
    axes: dict[str, Any] = {
        "seq_len": [512, 8192],
        "max_batch_size": [1, 500],
        "mean_request_tokens": [None, 400],
        "precision": ["fp16", "int4"],
        "page_size": [16, 0],
    }
    table = MODEL.sweep(llama(), H100, **axes)
    assert len(table) == 32
    for i in range(len(table)):
        row = table.row(i)
        if row["precision"] == "int4" or row["page_size"] == 0:
            assert not row["valid"]
            assert row["reason"]
            continue
        one = MODEL.solve(llama(), H100, **{name: row[name] for name in axes})
        for name in ("throughput_tokens_per_sec", "max_active_requests", "itl_s", "tpot_s", "speedup_vs_static"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-9), name
        assert row["feasible"] == one.feasible
    assert "batch_size" not in table.columns
    best = table.best("throughput_tokens_per_sec", largest=True)
    assert best is not None
    assert best["max_batch_size"] == 500
    broken = MODEL.sweep("llama-3.1-70b", "h100", max_seq_len=[2048], tp_size=[1, 2])
    assert broken["feasible"].tolist() == [False, True]
    assert broken["reason"].tolist() == ["does not fit", ""]
