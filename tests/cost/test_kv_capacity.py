"""KV capacity: what engines printed when they started, and hand-checked bytes per token, weights and ledgers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.arch import load_model
from foretell.arch.architecture import Architecture
from foretell.cost.kv_capacity import KvCapacity, kv_capacity, with_draft
from foretell.cost.kv_layout import placement, stages
from foretell.cost.kv_search import best_batch, pool_change, share_interval
from foretell.cost.served_weights import FORMATS, stored_bits, weight_format
from foretell.errors import CombinationError, InputError
from foretell.machine.hardware import HardwareNode, load_hardware
from foretell.recipe.engines import ENGINES, resolve_serving
from foretell.recipe.serving import ServingRecipe, Speculation

GIB = 2**30


def arch(name: str) -> Architecture:
    return load_model(name).architecture


def device(name: str, gib: float | None = None) -> HardwareNode:
    found = load_hardware(name)
    return found if gib is None else replace(found, usable_memory_bytes=int(gib * GIB), usable_memory_range_bytes=None)


def capacity(model: str, hardware: str = "h100-sxm-80gb", **flags: Any) -> KvCapacity:
    return kv_capacity(arch(model), device(hardware), ServingRecipe(**flags))


# -- what engines printed -------------------------------------------------------------------------------------

LLM_D: dict[str, Any] = {"version": "0.11.0", "max_model_len": 16000, "memory_share": 0.9}


@pytest.mark.parametrize(
    ("model", "flags", "weights", "activation", "pool"),
    [
        ("llama-3.1-8b", {}, 14.99, 4.76, 51.38),
        ("qwen3-0.6b", {}, 1.12, 5.56, 64.45),
        ("qwen3-32b", {}, 61.03, 5.64, 4.45),
        ("qwen3-32b", {"tp": 2}, 30.59, 5.64, 34.49),
        ("llama-3.3-70b", {"tp": 2, "weights": "fp8"}, 33.88, 4.84, 32.00),
        ("gpt-oss-20b", {"weights": "mxfp4"}, 13.47, 7.38, 50.28),
    ],
)
def test_vllm_on_h100_as_its_log_says(model: str, flags: dict[str, Any], weights: float, activation: float, pool: float) -> None:
    """llm-d-planner docs/empirical-vllm-memory-results.md, GiB."""
    found = capacity(model, **LLM_D, **flags)
    assert found.budget.weights / GIB == pytest.approx(weights, abs=0.08)
    assert found.budget.activation / GIB == pytest.approx(activation, abs=0.02)
    assert found.pool_bytes / GIB == pytest.approx(pool, abs=0.08)


def test_a_model_that_does_not_fit_is_refused_by_what_is_missing() -> None:
    """The same document: weights 67.72 GiB, -1.44 GiB left.  vllm#23278: weights 65.97 GiB (Marlin), -2.14 GiB."""
    llama = capacity("llama-3.3-70b", version="0.11.0", weights="fp8", memory_share=0.9)
    assert not llama.feasible
    assert llama.tokens == 0
    assert llama.pool_bytes / GIB == pytest.approx(-1.44, abs=0.06)
    assert llama.shortfall_bytes == pytest.approx(-llama.pool_bytes + 16 * llama.bytes_per_token)
    assert llama.interval[0] == 0
    gpt = capacity("gpt-oss-120b", version="0.10.1", weights="mxfp4")
    assert not gpt.feasible
    assert gpt.pool_bytes / GIB == pytest.approx(-2.14, abs=0.05)


@pytest.mark.parametrize(("length", "blocks", "torch"), [(20000, 1952, 17.06), (29000, 1478, 17.98)])
def test_vllms_first_engine_profiles_one_prompt_of_full_length(length: int, blocks: int, torch: float) -> None:
    """vllm#10517, RTX 3090: each token of the longest prompt costs 110,592 B beside gate, up, and down at once."""
    recipe = ServingRecipe(version="0.6.4", max_model_len=length, memory_share=0.9)
    found = kv_capacity(arch("llama-3.1-8b"), device("rtx3090", 23.58), recipe)
    assert (found.budget.weights + found.budget.activation) / GIB == pytest.approx(torch, abs=0.02)
    assert found.blocks == pytest.approx(blocks, rel=0.02)
    assert found.holds_longest == (length == 20000)  # "0.82x": the engine refuses to start


def test_a_server_of_1024_sequences_on_a_small_device() -> None:
    """vllm#17122, L40S, spring of 2025: 158,656 tokens (log of a build between 0.8.3 and 0.8.5)."""
    assert capacity("llama-3.1-8b", "l40s", version="0.8.3", max_model_len=32768).tokens == pytest.approx(158656, rel=0.03)


def test_the_rank_that_samples_is_the_limit() -> None:
    """vllm#13061, two RTX 4090 (23.55 GiB): activation 0.19 GiB on the other rank, but 81,536 tokens."""
    recipe = ServingRecipe(version="Feb 2025", tp=2, memory_share=0.98)
    qwen = arch("qwen2.5-14b")
    found = kv_capacity(qwen, device("rtx4090", 23.55), recipe)
    assert found.tokens == pytest.approx(81536, rel=0.03)


def test_reductions_that_hold_their_inputs_cost_layers_times_the_prompt() -> None:
    """vllm#2031: 20,865 blocks of 16 tokens for Llama-2-70B on four A100, where the allocator's own count gave 31,615."""
    flags = {"engine": "vllm", "weights": "fp16", "tp": 4}
    held = capacity("llama-2-70b", "a100-sxm-80gb", version="0.2.5", **flags)
    freed = capacity("llama-2-70b", "a100-sxm-80gb", version="0.2.6", **flags)
    assert held.tokens == pytest.approx(16 * 20865, rel=0.06)
    assert (freed.pool_bytes - held.pool_bytes) / GIB == pytest.approx(2 * 80 * 4096 * 8192 * 2 / GIB, abs=0.1)


def test_sglang_and_tensorrt_llm() -> None:
    """vllm#21348 (SGLang, four H100, 0.93: 367,404 tokens); TensorRT-LLM#1400 (0.8, A100: 69,524,783,104 bytes)."""
    config = dict(arch("qwen3-235b-a22b").config)
    config.pop("quantization_config", None)
    sglang = kv_capacity(
        load_model(config).architecture,
        device("h100-sxm-80gb"),
        ServingRecipe(engine="sglang", version="Jul 2025", weights="fp8", tp=4, memory_share=0.93),
    )
    assert sglang.tokens == pytest.approx(367404, rel=0.04)
    trt = capacity("llama-2-7b", "a100-sxm-80gb", engine="tensorrt-llm", version="0.8", weights="int8", kv="fp16")
    assert trt.pool_bytes == pytest.approx(69_524_783_104, rel=0.02)


# -- bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "flags", "expected"),
    [
        ("llama-3.1-8b", {}, 32 * 8 * 256 * 2),
        ("llama-3.1-8b", {"kv": "fp8"}, 32 * 8 * 256),
        ("llama-3.1-8b", {"tp": 8}, 32 * 256 * 2),
        ("llama-3.1-8b", {"tp": 16}, 32 * 256 * 2),  # heads are replicated
        ("llama-3.1-8b", {"kv": "int8", "engine": "lmdeploy"}, 32 * 8 * (256 + 8)),  # scale and zero point of each vector
        ("deepseek-v3", {"weights": "fp8"}, 61 * 576 * 2),
        ("deepseek-v3", {"weights": "fp8", "tp": 8}, 61 * 576 * 2),  # the latent belongs to all heads
        ("deepseek-v3", {"weights": "fp8", "engine": "vllm", "version": "0.6.6"}, 61 * 128 * (192 + 128) * 2),
        ("glm-5", {"weights": "fp8", "tp": 8}, 78 * (576 * 2 + 128 + 4)),  # keys of the indexer
        ("glm-5", {"weights": "fp8", "tp": 8, "kv": "fp8"}, 78 * (656 + 128 + 4)),
        ("gemma-2-9b", {"version": "0.7.3"}, 42 * 8 * 512 * 2),
    ],
)
def test_bytes_per_token(model: str, flags: dict[str, Any], expected: int) -> None:
    assert capacity(model, "b300-sxm", **flags).bytes_per_token == expected


def test_replicated_heads_are_named() -> None:
    assert "8 key and value heads is held by 2 ranks" in capacity("llama-3.1-8b", tp=16).notes[-1]
    assert "latent is held by each of the 8" in capacity("deepseek-v3", "b200-sxm", tp=8, weights="fp8").notes[-1]


def test_a_pipeline_splits_layers_and_the_stage_that_samples_is_the_limit() -> None:
    whole, halves = capacity("llama-3.3-70b", "b200-sxm"), capacity("llama-3.3-70b", "b200-sxm", pp=2)
    assert halves.bytes_per_token == whole.bytes_per_token / 2
    assert halves.budget.weights == pytest.approx(whole.budget.weights / 2, rel=0.01)
    assert halves.stage.last
    assert [s.count for s in _stages("llama-3.3-70b", pp=3)] == [27, 27, 26]


def _stages(model: str, **flags: Any) -> Any:
    found = arch(model)
    resolved = resolve_serving(ServingRecipe(**flags), device("b200-sxm"), found)
    return stages(found, placement(found, resolved, "10.0"))


@pytest.mark.parametrize(
    ("name", "bits"),
    [("q4_0", 4.64), ("q4_k_m", 4.89), ("q8_0", 8.50)],
)
def test_llama_cpp_files(name: str, bits: float) -> None:
    """Bits per weight that llama.cpp prints for Llama 3 8B (its README of quantize); the token table stays on the host."""
    (stage,) = _stages("llama-3-8b", engine="llama.cpp", weights=name)
    table = 128256 * 4096 * weight_format(name).embedding / 8
    assert stage.embedding == 0
    assert (stage.weights - stage.tables + table) * 8 / 8030261248 == pytest.approx(bits, abs=0.02)


@pytest.mark.parametrize(
    ("name", "bits"), [("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4 + 20 / 128), ("nvfp4", 4.5), ("mxfp4", 4.25)]
)
def test_embeddings_and_output_stay_in_16_bits(name: str, bits: float) -> None:
    (stage,) = _stages("llama-3-8b", weights=name)
    tables = 2 * 128256 * 4096
    norms = 65 * 4096
    assert stage.weights - stage.tables == pytest.approx((8030261248 - tables - norms) * bits / 8 + 2 * (tables + norms))


def test_experts_are_dealt_out_and_shared() -> None:
    """Mixtral: 8 experts of 3 x 4096 x 14336; four ranks hold the same bytes, whole experts or quarters of all."""
    experts = 32 * 8 * 3 * 4096 * 14336 * 2
    for flags in ({"tp": 4}, {"tp": 4, "ep": 4}, {"tp": 4, "ep": 2}, {"dp": 4, "ep": 4, "dp_kind": "attention"}):
        assert _stages("mixtral-8x7b", **flags)[0].experts == experts / 4
    assert _stages("mixtral-8x7b", dp=4)[0].experts == experts  # copies that share nothing
    assert _stages("mixtral-8x7b", dp=4, ep=4, dp_kind="attention")[0].dense == _stages("mixtral-8x7b")[0].dense


def test_four_bit_experts_alone_and_as_the_file_says_are_the_same() -> None:
    """gpt-oss: its file exempts attention, router and tables by name; the format alone quantises experts."""
    stored = arch("gpt-oss-20b")
    plain = replace(stored, quantized=None, config=stored.config)
    for block_bits, own in zip(stored_bits(stored, FORMATS["mxfp4"]), stored_bits(plain, FORMATS["mxfp4"]), strict=True):
        assert {k: v for k, v in block_bits.items() if v is not None} == {k: v for k, v in own.items() if v is not None}


def test_a_draft_adds_its_layer() -> None:
    none, mtp = (
        _stages("deepseek-v3", tp=8, weights="fp8"),
        _stages("deepseek-v3", tp=8, weights="fp8", speculation=Speculation("mtp")),
    )
    assert mtp[0].count == none[0].count + 1
    assert sum(n for _, n in mtp[0].kept) == 62
    alone, small = capacity("llama-3.1-8b"), capacity("llama-3.2-1b")
    both = with_draft(alone, small)
    assert both.pool_bytes == pytest.approx(alone.pool_bytes - small.stage.weights)
    assert both.bytes_per_token == pytest.approx(alone.bytes_per_token + small.bytes_per_token)
    assert sum(term.bytes for term in both.ledger) == pytest.approx(both.pool_bytes)
    assert both.tokens < alone.tokens


# -- windows and states ---------------------------------------------------------------------------------------


def test_window_layers_stop_growing() -> None:
    """gpt-oss-20b: 12 layers that see 128 tokens, 12 that see all; 2,048 bytes a layer and token."""
    found = capacity("gpt-oss-20b", weights="mxfp4", version="0.11.0")
    assert found.sequence_bytes(16) == 24 * 16 * 2048
    assert found.sequence_bytes(16000) == 12 * 2048 * (16000 + 144)
    old = capacity("gpt-oss-20b", weights="mxfp4", version="0.8.5")
    assert old.sequence_bytes(16000) == 24 * 2048 * 16000
    assert found.concurrency(16000) > 1.9 * old.pool_bytes / old.sequence_bytes(16000)


def test_tokens_as_newer_logs_count_them_see_the_window() -> None:
    older, newer = (capacity("gpt-oss-20b", weights="mxfp4", version=v, memory_share=0.9) for v in ("0.19.0", "0.20.0"))
    per_sequence = 12 * 2048 * (131072 + 8336)  # 127 tokens of the window and a step of 8,192, in whole blocks and one more
    assert newer.tokens == int(newer.pool_bytes / per_sequence * 131072)
    assert older.tokens == int(older.pool_bytes / (24 * 2048 * 16)) * 16


def test_sglang_has_a_pool_for_window_layers() -> None:
    found = capacity("gpt-oss-20b", weights="mxfp4", engine="sglang")
    assert found.tokens == int(found.pool_bytes / (12 * 2048 * (1 + 0.8)))


def test_states_do_not_grow() -> None:
    """Qwen3-Next: 36 of 48 layers keep 524,288 elements in 32 bits; vLLM makes blocks as large as a state."""
    found = capacity("qwen3-next-80b-a3b", tp=4)
    assert found.block_size == 16 * -(-524288 // (16 * 1024))  # 4 bytes / 4 ranks; 1,024 bytes a token and layer
    assert found.sequence_bytes(1) == 48 * 524288
    assert found.sequence_bytes(100 * 512) - found.sequence_bytes(1) == 12 * 99 * 524288


def test_a_model_of_states_alone_holds_any_length() -> None:
    found = capacity("mamba-2.8b", "l4")
    assert found.sequence_bytes(10) == found.sequence_bytes(100000)
    assert found.feasible
    assert found.max_concurrency > 100


def test_arrays_of_lengths() -> None:
    found = capacity("gpt-oss-20b", weights="mxfp4")
    lengths = np.array([1, 100, 5000])
    assert found.concurrency(lengths).tolist() == [found.concurrency(int(n)) for n in lengths]


# -- ledger and flags -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hardware", ["h100-sxm-80gb", "rtx4090", "m3-max"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_the_ledger_sums_to_the_pool(engine: str, hardware: str, model: str) -> None:
    found = capacity(model, hardware, engine=engine, weights="mxfp4" if model == "gpt-oss-20b" else "bf16", max_model_len=4096)
    assert sum(term.bytes for term in found.ledger) == pytest.approx(found.pool_bytes, abs=1.0)
    assert all(term.source and term.what for term in found.ledger)
    low, high = found.interval
    assert low <= found.tokens <= high


@pytest.mark.parametrize("version", ["0.7.3", "0.11.0", "0.19.0", None])
def test_more_sequences_and_longer_steps_leave_less(version: str | None) -> None:
    llama, h100, recipe = arch("llama-3.1-8b"), device("h100-sxm-80gb"), ServingRecipe(version=version, max_model_len=8192)
    assert pool_change(llama, h100, recipe, max_num_seqs=2048, max_num_batched_tokens=8192) < 0
    assert pool_change(llama, h100, recipe, max_num_batched_tokens=65536) < 0
    assert pool_change(llama, h100, recipe, memory_share=0.95) > 0
    assert pool_change(llama, h100, recipe, weights="fp8") > 6e9


def test_a_longer_step_costs_hidden_states_until_a_layer_needs_more_than_the_sampler() -> None:
    llama, h100 = arch("llama-3.1-8b"), device("h100-sxm-80gb")
    few = ServingRecipe(version="0.11.0", max_num_seqs=16, max_model_len=8192)
    step = pool_change(llama, h100, few, max_num_batched_tokens=16384) / 8192
    assert -step == pytest.approx(2 * (2 * 4096 + 3 * 14336))  # a layer: residual, norm, gate, up and their product
    many = replace(few, max_num_seqs=None)
    assert -pool_change(llama, h100, many, max_num_batched_tokens=16384) / 8192 == 2 * 4096


def test_the_interval_of_the_memory_flag() -> None:
    llama, h100 = arch("llama-3.1-8b"), device("h100-sxm-80gb")
    recipe = ServingRecipe(version="0.12.0", max_model_len=16000)
    for sequences in (1.0, 20.0):
        found = share_interval(llama, h100, recipe, sequences=sequences)
        assert found.feasible
        assert found.low is not None
        at = kv_capacity(llama, h100, replace(recipe, memory_share=found.low))
        below = kv_capacity(llama, h100, replace(recipe, memory_share=found.low - 0.001))
        assert at.concurrency(16000) >= sequences > below.concurrency(16000)
        assert kv_capacity(llama, h100, replace(recipe, memory_share=found.high)).budget.rest >= 0
    assert kv_capacity(llama, h100, replace(recipe, memory_share=1.0)).budget.rest < 0
    none = share_interval(llama, h100, recipe, sequences=1000.0)
    assert not none.feasible
    assert "GiB are missing" in none.why


@pytest.mark.parametrize("engine", [e for e in ENGINES if e != "llama.cpp"])
def test_every_engines_flag_has_an_interval(engine: str) -> None:
    llama, a100 = arch("llama-3-8b"), device("a100-sxm-80gb")
    recipe = ServingRecipe(engine=engine, max_model_len=8192)
    found = share_interval(llama, a100, recipe)
    assert found.feasible
    assert found.low is not None
    assert found.high is not None
    assert kv_capacity(llama, a100, replace(recipe, memory_share=found.low)).max_concurrency >= 1
    assert kv_capacity(llama, a100, replace(recipe, memory_share=found.low - 0.001)).max_concurrency < 1
    assert kv_capacity(llama, a100, replace(recipe, memory_share=found.high)).budget.rest >= 0


def test_an_interval_with_nothing_between() -> None:
    """Weights that fit only a share at which a full step does not."""
    recipe = ServingRecipe(version="0.11.0", max_model_len=40960)
    found = share_interval(arch("qwen3-32b"), device("h100-sxm-80gb"), recipe, sequences=1.05)
    assert not found.feasible
    assert found.low is not None
    assert found.high is not None
    assert found.low > found.high
    assert "leaves no room for a full step" in found.why


def test_llama_cpp_reserves_its_slots() -> None:
    found = capacity("llama-3-8b", "rtx4090", engine="llama.cpp", weights="q4_k_m", max_num_seqs=4, max_model_len=8192)
    assert found.pool_bytes == 4 * 8192 * 131072
    assert found.tokens == 32768
    full = capacity("llama-3-8b", "rtx4090", engine="llama.cpp", weights="q4_k_m", max_num_seqs=64, max_model_len=8192)
    assert not full.feasible
    assert full.pool_bytes == pytest.approx(found.budget.device - 64 * 2**30 - 5.2 * GIB, abs=0.5 * GIB)
    assert share_interval(
        arch("llama-3-8b"), device("rtx4090"), ServingRecipe(engine="llama.cpp", weights="q4_k_m", max_model_len=8192)
    ).feasible


def test_more_sequences_allowed_may_admit_fewer() -> None:
    qwen, h100 = arch("qwen3-32b"), device("h100-sxm-80gb")
    recipe = ServingRecipe(version="0.11.0", max_model_len=16000)
    best = best_batch(qwen, h100, recipe, 512)
    admitted = {
        n: min(n, int(kv_capacity(qwen, h100, replace(recipe, max_num_seqs=n)).concurrency(512)))
        for n in (best.max_num_seqs // 2, best.max_num_seqs, 1024)
    }
    assert best.falls
    assert admitted[best.max_num_seqs] == best.admitted > max(admitted[best.max_num_seqs // 2], admitted[1024])
    assert best_batch(arch("llama-3.3-70b"), h100, recipe, 512).admitted == 0


def test_a_flag_that_promises_too_much_is_said() -> None:
    assert "too little for a full step" in capacity("llama-3.1-8b", engine="sglang", memory_share=0.99).notes[-1]


# -- refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "error", "says"),
    [
        ({"weights": "fp7"}, InputError, "weights='fp7'"),
        ({"kv": "fp3"}, InputError, "kv='fp3'"),
        ({"tp": 3}, CombinationError, "must divide the 32 attention heads"),
        ({"ep": 3, "tp": 4}, CombinationError, "must divide the 4 ranks"),
        ({"pp": 33}, InputError, "more stages than the model has layers"),
        ({"engine": "vlllm"}, InputError, "not an engine that is known"),
        ({"dp_kind": "data"}, InputError, "dp_kind"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, Any], error: type[InputError], says: str) -> None:
    with pytest.raises(error, match=says):
        capacity("llama-3.1-8b", **flags)


def test_a_model_that_keeps_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="keeps no keys"):
        capacity("bert-base")


# -- laws -----------------------------------------------------------------------------------------------------


@given(
    model=st.sampled_from(["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "nemotron-h-8b"]),
    tp=st.sampled_from([1, 2, 4]),
    kind=st.sampled_from(["bf16", "fp8", "int4"]),
    version=st.sampled_from([None, "0.7.3", "0.11.0"]),
)
def test_more_ranks_never_hold_more_each(model: str, tp: int, kind: str, version: str | None) -> None:
    one, two = (capacity(model, weights=kind, tp=n, version=version) for n in (tp, 2 * tp))
    assert two.budget.weights <= one.budget.weights
    assert two.bytes_per_token <= one.bytes_per_token


def test_an_unknown_version_widens_the_interval() -> None:
    known, unknown = capacity("llama-3.1-8b"), capacity("llama-3.1-8b", version="some build")
    assert unknown.spread > 2 * known.spread


def test_two_hundred_answers_take_no_time() -> None:
    llama, h100 = arch("llama-3.1-8b"), device("h100-sxm-80gb")
    recipes = [ServingRecipe(max_num_seqs=n, tp=tp) for n in range(8, 408, 8) for tp in (1, 2, 4, 8)]
    best = 1.0
    for _ in range(3):
        start = time.perf_counter()
        for recipe in recipes:
            kv_capacity(llama, h100, recipe)
        best = min(best, (time.perf_counter() - start) / len(recipes))
    assert best < 0.0005
