"""One batch of sequences: how long until the first token, how long between tokens, and does it fit."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import foretell as ft
from core_models import llama, mixtral, vit
from foretell.core.solver import ServingModel, ServingResult
from foretell.units import quantity

MODEL = ServingModel()
H100 = ft.load_hardware("h100")
GB = 1e9
TABLE = 128256 * 4096
"""Of an 8B model: elements of the token table, whose rows are looked up and not multiplied."""


def solve(seq_len: int, batch: int = 1, model: Any = "llama-3.1-8b", hardware: Any = H100, **more: Any) -> ServingResult:
    return MODEL.solve(model, hardware, seq_len, batch, **more)


# -- faults that calculators of serving have had, with the value that is right ---------------------------------


def test_routed_experts_are_read_and_multiplied_where_tokens_visit_them() -> None:
    """Mixtral 8x7B on one MI300X, 2048 tokens: 84.2 ms and 5.24 ms (host left out: 4.9), not 296 ms and 18.0 ms."""
    mi300x = ft.load_hardware("mi300x")
    one = solve(2048, model="mixtral-8x7b", hardware=mi300x)
    assert one.ttft_s == pytest.approx(84.2e-3, rel=0.03)
    active = 12.88e9 - 32000 * 4096  # less the token table
    kept = 2048 * 32 * 8 * 256 * 2
    assert one.itl_s == pytest.approx((2 * active + kept) / mi300x.memory_bandwidth_bytes_per_s, rel=0.01)
    assert one.itl_s == pytest.approx(4.9e-3, rel=0.02)
    many = solve(2048, 64, model="mixtral-8x7b", hardware=mi300x)  # all experts are visited
    assert many.step_breakdown_s["experts"] * mi300x.memory_bandwidth_bytes_per_s == pytest.approx(2 * 45.1e9, rel=0.01)


def test_a_prompt_of_deepseek_v3_multiplies_37_of_671_billion_parameters() -> None:
    """72 GB200 taken as one device, fp8, 4096 tokens: 1.87 ms and attention, not 34.1 ms."""
    rack = ft.HardwareNode("rack", int(72 * 186e9), 72 * 8e12, {"fp8": 72 * 4.5e15, "bf16": 72 * 2.25e15})
    one = solve(4096, model="deepseek-v3", hardware=rack, precision="fp8")
    linear = 1.87e-3
    attention = 61 * 4096 * 4097 / 2 * 2 * 128 * (192 + 128) / (0.5 * 72 * 2.25e15)
    assert one.ttft_s == pytest.approx(linear + attention, rel=0.15)
    assert one.ttft_s < 34.1e-3 / 10


def test_decoding_is_bound_by_arithmetic_where_the_batch_is_large() -> None:
    """8B, 1024 sequences that see 256 tokens: 33.3 ms at half of the peak, 332.6 at a twentieth, not 15.4 whatever it is."""
    fast, slow = (solve(256, 1024, efficiency=share) for share in (0.5, 0.05))
    for one, floor in ((fast, 33.3e-3), (slow, 332.6e-3)):
        products = floor * (1 - TABLE / 8.03e9)
        assert one.step_breakdown_s["matmul"] + one.step_breakdown_s["head"] == pytest.approx(products, rel=0.01)
        assert products < one.itl_s < products + 1024 * 256 * 131072 / 3.35e12 + 5e-3  # keys and values are read besides
    assert slow.itl_s > 7 * fast.itl_s
    light = solve(256, 4)
    assert solve(256, 4, efficiency=0.1).itl_s == pytest.approx(light.itl_s, rel=1e-3)  # memory decides


def test_a_first_token_takes_as_long_as_weights_and_kept_tokens_are_read() -> None:
    """8B: 4.79 ms for one token (less the token table), 6.08 ms where 32,767 are in the prefix cache; not 0.04 and 0.08."""
    weights = 2 * (8.03e9 - TABLE) / 3.35e12
    assert solve(1).ttft_s == pytest.approx(weights, rel=0.005)
    assert solve(1).ttft_s == pytest.approx(4.79e-3, rel=0.07)
    cached = solve(32768, cached_prefix_len=32767)
    assert cached.ttft_s == pytest.approx(weights + 32768 * 131072 / 3.35e12, rel=0.01)
    assert cached.ttft_s == pytest.approx(6.08e-3, rel=0.06)
    assert cached.prompt_cache_hit_ratio == 32767 / 32768


def test_a_model_is_served_on_several_devices_with_room_for_their_processes() -> None:
    """70B in fp16 does not fit one H100, and fits two: 70.6 GB each, beside the process."""
    one, two = (solve(2048, model="llama-3.1-70b", tp_size=tp) for tp in (1, 2))
    assert (one.feasible, two.feasible, two.devices) == (False, True, 2)
    assert two.model_weights_size_bytes == pytest.approx(70.6 * GB, rel=0.01)
    assert two.available_memory_bytes == H100.available_bytes < H100.memory_bytes
    assert two.breakdown_bytes["process"] > 0.5 * GB
    assert two.itl_s == pytest.approx(one.itl_s / 2, rel=0.01)
    # what only the nameplate would hold does not fit
    full = next(batch for batch in range(1, 400) if not solve(2048, batch).feasible)
    assert full * 2048 * 131072 + 16.06e9 < H100.memory_bytes
    eight = solve(4096, 8, model="mixtral-8x7b", tp_size=8, ep_size=8)
    assert eight.feasible
    assert eight.model_weights_size_bytes == pytest.approx(2 * 46.7e9 / 8, rel=0.01)
    assert solve(2048, model="llama-3.1-70b", pp_size=2).model_weights_size_bytes == pytest.approx(70.6 * GB, rel=0.05)


def test_a_draft_needs_memory_and_its_tokens_are_verified() -> None:
    """8B with an 8B draft, 16 sequences of 8192 tokens: 17.2 GB of keys and values more.

    1024 sequences, 5 tokens verified a step of which 2.77 are kept: 60 ms of arithmetic a token at least, not 9.8 ms.
    """
    pair = solve(8192, 16, hardware="b200", draft_model="llama-3.1-8b")
    assert pair.breakdown_bytes["draft_kv_cache"] == pytest.approx(17.18 * GB, rel=0.001)
    assert pair.breakdown_bytes["draft_weights"] == pytest.approx(16.06 * GB, rel=0.005)
    alone = solve(8192, 16, hardware="b200")
    more = pair.total_memory_required_bytes - alone.total_memory_required_bytes
    assert more == pytest.approx(17.18 * GB + 16.06 * GB, rel=0.01)
    large = solve(256, 1024, draft_model="llama-3.2-1b")
    assert large.tokens_per_step == pytest.approx((1 - 0.7**5) / 0.3)
    floor = 2 * (8.03e9 - TABLE) * 5 * 1024 / (0.5 * 989.4e12) / large.tokens_per_step
    assert floor == pytest.approx(60e-3, rel=0.1)
    assert floor < large.itl_s < 1.5 * floor
    never = solve(256, 1, draft_model="llama-3.2-1b", draft_acceptance_rate=0.0)
    assert never.tokens_per_step == 1.0
    assert never.itl_s > solve(256).itl_s  # drafts that are never kept cost time
    always = solve(256, 1, draft_model="llama-3.2-1b", draft_acceptance_rate=1.0, draft_tokens=3)
    assert always.tokens_per_step == 4.0
    assert always.itl_s < solve(256).itl_s


def test_both_nodes_have_to_hold_the_weights() -> None:
    """A 70B model does not fit the T4 that is to read its prompts, however large the node is that decodes."""
    apart = solve(2048, model="llama-3.1-70b", hardware="t4", decode_hardware="mi300x")
    assert not apart.feasible
    assert (apart.nodes["prefill"]["feasible"], apart.nodes["decode"]["feasible"]) == (False, True)
    assert apart.memory_utilization > 8
    assert "over" in apart.constraint_trace[0]
    assert "within" in apart.constraint_trace[1]
    assert solve(2048, hardware="h100", decode_hardware="a100").feasible


def test_heads_have_their_own_width_and_attention_is_causal() -> None:
    """PaLM's 48 heads are 256 wide, not 18432 / 48 = 384; 8B, 131,072 tokens: 13.4 s, not 22.5 s."""
    assert solve(131072).ttft_s == pytest.approx(13.4, rel=0.05)
    sizes: dict[str, Any] = {
        "layers": 118,
        "hidden_dim": 18432,
        "heads": 48,
        "kv_heads": 1,
        "ffn_dim": 73728,
        "vocab_size": 256000,
    }
    wide, own = (ft.TransformerWorkload("palm", 540e9, head_dim=width, **sizes) for width in (384, 256))
    kept = solve(65536, model=own).kv_cache_size_bytes
    assert kept == 65536 * 118 * 2 * 256 * 2
    assert solve(65536, model=wide).kv_cache_size_bytes == 1.5 * kept
    products = 2 * 2 * 118 * 18432 * 48 * (384 - 256) * 65536  # of queries and outputs, the one head of keys and values aside
    scores = 2 * 118 * 65536 * 65537 / 2 * 48 * 2 * (384 - 256)
    more = solve(65536, model=wide).ttft_s - solve(65536, model=own).ttft_s
    assert more == pytest.approx((products + scores) / (0.5 * 989.4e12), rel=0.05)


def test_a_precision_has_its_own_rate_or_none() -> None:
    """What a device lacks is refused and named, and never priced at its fastest rate."""
    orin = ft.HardwareNode("orin", int(64e9), 204e9, {"fp16": 43e12, "int8": 275e12})
    half = solve(2048, hardware=orin)
    assert half.ttft_s == pytest.approx(2 * 6.98e9 * 2048 / (0.5 * 43e12), rel=0.1)
    for lacking in ("bf16", "fp32", "int4", "fp8"):
        with pytest.raises(ft.InputError, match=r"precision='\w+' has no known peak on orin; allowed: fp16, int8"):
            solve(2048, hardware=orin, precision=lacking)
    with pytest.raises(ft.InputError, match="has no known peak on NVIDIA H100"):
        solve(2048, precision="int4")
    full = solve(2048, precision="fp32")
    assert full.ttft_s == pytest.approx(2 * 6.98e9 * 2048 / (0.5 * 66.9e12), rel=0.05)
    assert full.kv_cache_size_bytes == 2 * 2048 * 131072
    with pytest.raises(ft.InputError, match="precision='fp99' is not a known number format"):
        solve(2048, precision="fp99")
    with pytest.raises(ft.InputError, match="not a format that models are served in"):
        solve(2048, precision="nf4")


# -- the rest of the answer -----------------------------------------------------------------------------------


def test_memory_is_a_ledger() -> None:
    one = solve(4096, 8)
    assert one.kv_cache_size_bytes == 4096 * 8 * 131072
    assert sum(one.breakdown_bytes.values()) == one.total_memory_required_bytes
    assert one.memory_utilization == one.total_memory_required_bytes / one.available_memory_bytes
    assert sum(one.step_breakdown_s.values()) == pytest.approx(one.step_s)
    assert one.total_memory_required.to("GB").magnitude == pytest.approx(one.total_memory_required_bytes / 1e9)
    text = one.explain()
    assert all(word in text for word in ("weights", "kv_cache", "activations", "process", "time to first token"))
    plain = one.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert dict(one)["feasible"] is True


def test_keys_and_values_follow_the_model() -> None:
    deepseek = solve(4096, model="deepseek-v3", hardware="b300", precision="fp8", tp_size=8)
    assert deepseek.kv_cache_size_bytes == 4096 * 61 * 576  # the latent, whole on each rank
    gemma = [solve(s, model="gemma-2-9b").kv_cache_size_bytes for s in (4096, 8192)]
    assert gemma[1] - gemma[0] == gemma[0] / 2  # half of the layers see 4096 tokens
    four = [solve(2048, model="llama-3.1-70b", tp_size=tp, hardware="b200").kv_cache_size_bytes for tp in (8, 16)]
    assert four[0] == four[1]  # heads are copied where there are more ranks than heads
    mamba = [solve(s, model="mamba-2.8b").kv_cache_size_bytes for s in (1, 4096)]
    assert mamba[0] == mamba[1] > 0


def test_a_longer_prefix_in_the_cache_is_quicker_and_as_large() -> None:
    times = [solve(8192, cached_prefix_len=cached) for cached in (0, 1024, 4096, 8191)]
    assert [t.ttft_s for t in times] == sorted((t.ttft_s for t in times), reverse=True)
    assert len({t.total_memory_required_bytes - t.breakdown_bytes["activations"] for t in times}) == 1
    for wrong in (8192, 9000):
        with pytest.raises(ft.CombinationError, match=f"cached_prefix_len={wrong} must be shorter than the sequence"):
            solve(8192, cached_prefix_len=wrong)


def test_a_prompt_in_chunks_stalls_for_one_of_them() -> None:
    whole, cut = solve(8192, cached_prefix_len=4096), solve(8192, cached_prefix_len=4096, prefill_chunk_tokens=512)
    assert (whole.prefill_chunks, whole.prefill_chunk_time_s, whole.decode_stall_bound_s) == (1, None, None)
    assert cut.prefill_chunks == 8
    assert cut.prefill_chunk_time_s is not None
    assert cut.decode_stall_bound_s is not None
    assert cut.prefill_chunk_time_s < cut.decode_stall_bound_s < 1.1 * cut.prefill_chunk_time_s  # the last one sees the most
    assert cut.ttft_s == pytest.approx(8 * cut.prefill_chunk_time_s)
    assert whole.ttft_s < cut.ttft_s < 1.1 * whole.ttft_s
    tiny = solve(64, prefill_chunk_tokens=1)
    assert tiny.prefill_chunks == 64
    assert tiny.ttft_s == pytest.approx(64 * solve(1).ttft_s, rel=0.01)  # the weights are read for each


def test_keys_and_values_are_sent_to_the_node_that_decodes() -> None:
    one = solve(2048, 4)
    apart = solve(2048, 4, decode_hardware="a100", network_bandwidth="50 GB/s")
    assert apart.kv_transfer_s == pytest.approx(4 * 2048 * 131072 / 50e9)
    assert apart.ttft_s == pytest.approx(one.ttft_s + apart.kv_transfer_s)
    assert apart.itl_s == pytest.approx(one.itl_s * 3.35e12 / 2.039e12, rel=0.01)
    slow = solve(2048, 4, decode_hardware="a100", network_bandwidth=quantity(25e9, "byte/s"), tp_size=2)
    assert slow.kv_transfer_s == pytest.approx(2 * apart.kv_transfer_s)  # all ranks' heads are sent
    assert apart.prefill_chunks == 1


def test_weights_may_be_narrower_than_products() -> None:
    half, four = solve(2048, precision="bf16"), solve(2048, precision="bf16", weights="int4", kv_format="fp8")
    assert four.model_weights_size_bytes == pytest.approx(5.73 * GB, rel=0.01)
    assert four.kv_cache_size_bytes == half.kv_cache_size_bytes / 2
    assert four.ttft_s == pytest.approx(half.ttft_s, rel=0.02)
    assert four.itl_s < 0.4 * half.itl_s
    eight = solve(2048, precision="fp8")
    assert eight.kv_cache_size_bytes == half.kv_cache_size_bytes / 2
    assert eight.ttft_s < 0.6 * half.ttft_s
    assert any("stay in 16 bits" in note for note in eight.notes)


def test_calibrated_times_have_an_interval() -> None:
    flat, full = solve(2048, 8), solve(2048, 8, efficiency="calibrated")
    assert flat.itl_interval_s is None
    assert flat.ttft_interval_s is None
    assert full.itl_interval_s is not None
    assert full.itl_interval_s[0] <= full.itl_s <= full.itl_interval_s[1]
    assert full.itl_s > flat.itl_s * 0.9
    assert full.step_breakdown_s["host"] > 0
    other = solve(2048, 8, efficiency="calibrated", engine="sglang", engine_version="0.4.6")
    assert any("sglang" in note for note in other.notes) or other.itl_s != full.itl_s


def test_what_does_not_fit_says_by_how_much_and_is_timed_all_the_same() -> None:
    one = solve(8192, 512)
    assert not one.feasible
    assert one.memory_utilization > 1
    assert "GiB over" in one.constraint_trace[0]
    assert "times are those it would have" in one.notes[0]
    assert math.isfinite(one.itl_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 0}, "seq_len=0 is below"),
        ({"seq_len": -3}, "seq_len=-3"),
        ({"seq_len": True}, "seq_len=True must be a whole number"),
        ({"seq_len": math.nan}, "seq_len=nan"),
        ({"seq_len": "many"}, "seq_len='many'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1.5}, "batch_size=1.5"),
        ({"batch_size": True}, "batch_size=True"),
        ({"efficiency": 0.0}, "efficiency=0.0"),
        ({"efficiency": 1.5}, "efficiency=1.5"),
        ({"efficiency": "half"}, "efficiency='half'"),
        ({"efficiency": math.nan}, "efficiency=nan"),
        ({"network_bandwidth": 0}, "network_bandwidth=0"),
        ({"network_bandwidth": "-3 GB/s"}, "network_bandwidth"),
        ({"network_bandwidth": "fast"}, "network_bandwidth='fast'"),
        ({"draft_acceptance_rate": 1.1}, "draft_acceptance_rate=1.1"),
        ({"draft_acceptance_rate": -0.1}, "draft_acceptance_rate=-0.1"),
        ({"draft_acceptance_rate": math.nan}, "draft_acceptance_rate=nan"),
        ({"cached_prefix_len": -1}, "cached_prefix_len=-1"),
        ({"cached_prefix_len": True}, "cached_prefix_len=True"),
        ({"prefill_chunk_tokens": 0}, "prefill_chunk_tokens=0"),
        ({"draft_tokens": 0}, "draft_tokens=0"),
        ({"draft_model": "no-such-model"}, "no-such-model"),
        ({"decode_hardware": "no-such-device"}, "no-such-device"),
        ({"tp_size": 3}, "tp_size=3 must divide the attention heads"),
        ({"tp_size": 0}, "tp_size=0"),
        ({"pp_size": 64}, "pp_size=64 exceeds the layers"),
        ({"ep_size": 2}, "ep_size=2 needs a model with routed experts"),
        ({"engine": "vlm"}, "engine='vlm' .*Did you mean"),
        ({"weights": "int3"}, "weights='int3'"),
        ({"kv_format": "int3"}, "kv_format='int3'"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"model": "llama-3.1-8b", "hardware": H100, "seq_len": 2048}
    with pytest.raises(ft.InputError, match=message):
        MODEL.solve(**(given | change))


def test_only_models_that_make_tokens_are_served() -> None:
    for model in (vit(), "bert-base", "flan-t5-base"):
        with pytest.raises(ft.InputError, match="one after the other"):
            solve(128, model=model)
    with pytest.raises(ft.InputError, match="needs its layers"):
        solve(128, model=ft.CNNWorkload("net", 25e6))


def test_a_sweep_says_what_single_answers_say() -> None:
    axes: dict[str, Any] = {
        "seq_len": [1, 512, 8192],
        "batch_size": [1, 7, 300],
        "precision": ["fp16", "fp8"],
        "cached_prefix_len": [0, 256],
        "prefill_chunk_tokens": [None, 128],
        "efficiency": [0.5, "calibrated"],
    }
    table = MODEL.sweep(llama(), H100, **axes)
    assert len(table) == 3 * 3 * 2 * 2 * 2 * 2
    seen = 0
    for i in range(0, len(table), 5):
        row = table.row(i)
        given = {name: row[name] for name in axes}
        if row["cached_prefix_len"] >= row["seq_len"]:
            assert not row["valid"]
            assert "must be shorter" in row["reason"]
            continue
        one = MODEL.solve(llama(), H100, **given)
        seen += 1
        for name in ("ttft_s", "itl_s", "total_memory_required_bytes", "kv_cache_size_bytes", "memory_utilization", "step_s"):
            assert row[name] == pytest.approx(getattr(one, name), rel=1e-9), name
        assert row["feasible"] == one.feasible
        assert row["prefill_chunks"] == one.prefill_chunks
    assert seen > 20
    assert (table["feasible"] <= table["valid"]).all()


def test_a_sweep_walks_layouts_drafts_and_nodes() -> None:
    table = MODEL.sweep(
        "llama-3.1-70b",
        "h100",
        seq_len=2048,
        batch_size=[1, 8],
        tp_size=[1, 3, 4],
        draft_model=[None, "llama-3.2-1b"],
        decode_hardware=[None, "a100"],
    )
    assert len(table) == 24
    broken = table["tp_size"] == 3
    assert (table["valid"] == ~broken).all()
    assert all("must divide" in reason for reason in table["reason"][broken])
    for i in np.flatnonzero(table["valid"]):
        row = table.row(int(i))
        names = ("batch_size", "tp_size", "draft_model", "decode_hardware")
        one = MODEL.solve("llama-3.1-70b", "h100", 2048, **{name: row[name] for name in names})
        assert row["total_memory_required_bytes"] == pytest.approx(one.total_memory_required_bytes)
        assert row["ttft_s"] == pytest.approx(one.ttft_s)
        assert row["itl_s"] == pytest.approx(one.itl_s)
        assert row["feasible"] == one.feasible
    best = table.best()
    assert best is not None
    assert best["tp_size"] == 4
    with pytest.raises(ft.InputError, match="seq_len is needed"):
        MODEL.sweep("llama-3.1-8b", "h100", batch_size=[1])
    with pytest.raises(ft.InputError, match="is not a setting"):
        MODEL.sweep("llama-3.1-8b", "h100", seq_len=1, batch=[1])


def test_more_is_never_quicker_nor_smaller() -> None:
    for model in (llama(), mixtral()):
        times = [solve(2048, batch, model=model) for batch in (1, 2, 8, 33, 128, 500)]
        for name in ("ttft_s", "itl_s", "total_memory_required_bytes"):
            values = [getattr(t, name) for t in times]
            assert values == sorted(values)
        assert [t.throughput_tokens_per_s for t in times] == sorted(t.throughput_tokens_per_s for t in times)
