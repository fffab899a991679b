"""Serving engines: their versions are found in any text, and flags that are left open get the engine's own defaults."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from foretell.arch import load_model
from foretell.errors import InputError
from foretell.machine.hardware import load_hardware
from foretell.recipe.engine_profile import Engine
from foretell.recipe.engine_versions import CHANGES, engine_at
from foretell.recipe.engines import ENGINES, Resolved, engine_of, resolve_serving
from foretell.recipe.serving import ServingRecipe, Speculation

LLAMA = load_model("llama-3.1-8b").architecture


def resolved(hardware: str = "h100-sxm-80gb", *, offline: bool = False, **flags: Any) -> Resolved:
    return resolve_serving(ServingRecipe(**flags), load_hardware(hardware), LLAMA, offline=offline)


@pytest.mark.parametrize(
    ("name", "text", "version", "certain"),
    [
        ("vllm", "0.7.3", "0.7.1", True),
        ("vllm", "0.19.1rc1.dev339+gedc364896", "0.17.0", True),
        ("vllm", "0.6.3.post2.dev308", "0.5.5", True),
        ("vllm", "0.10.0, RHEL 9.6", "0.9.2", True),
        ("vllm", "0.20.1+transformers-5.8.1", "0.20.0", True),
        ("vllm", "0.6.x", "0.6.5", True),
        ("vllm", "0.2.x + PR2031", "0.2.5", True),
        ("vllm", "0.6.4+ (PR10511)", "0.6.5", True),
        ("vllm", "nightly (Feb 2026)", "0.12.0", True),
        ("vllm", "(2026-06)", "0.21.0", True),
        ("vllm", "(2023, Splitwise paper)", "0.2.6", True),
        ("vllm", "Jul 2025", "0.9.2", True),
        ("vllm", "vLLM, 8 pods x 2 GPUs, random", "0.33.0", False),
        ("vllm", "1Cat-vLLM 1.0.0+flash_attn_v100-1.0.0", "0.33.0", False),
        ("vllm", "0.1.7", "0.2.0", False),
        ("vllm", None, "0.33.0", True),
        ("sglang", "0.5.6.post2", "0.5.3", True),
        ("sglang", "(May 2025) PD+DeepEP+TBO", "0.3.0", True),
        ("sglang", "Jul 2025", "0.4.8", True),
        ("sglang", "default", "0.5.3", False),
        ("tensorrt-llm", "1.0 (PyTorch backend)", "1.0.0", True),
        ("tensorrt-llm", "0.20 (PyTorch backend)", "1.0.0", True),
        ("tensorrt-llm", "TensorRT 10.2.0, CUDA 12.4", "0.10.0", True),
        ("tensorrt-llm", "TensorRT 10.11.0.33, CUDA 12.9", "0.19.0", True),
        ("tensorrt-llm", "1.1.0rc2.post2", "1.0.0", True),
        ("tensorrt-llm", "0.5?", "0.5.0", True),
        ("tensorrt-llm", "NIM 1.8.0 (TensorRT-LLM)", "1.0.0", False),
        ("lmdeploy", "TurboMind 0.2.0", "0.2.0", True),
        ("llama.cpp", "(May 2024) llama-bench", "b2400", True),
        ("llama.cpp", "Metal (Nov 2023)", "b1500", True),
        ("llama.cpp", "b6123", "b5500", True),
    ],
)
def test_a_version_is_read_from_any_text(name: str, text: str | None, version: str, certain: bool) -> None:
    engine, _, known = engine_of(name, text)
    assert (engine.name, engine.version, known) == (name, version, certain)


def test_a_version_that_is_not_known_says_what_stands_for_it() -> None:
    assert "0.33.0, which stands for it" in engine_of("vllm", "3.1.0")[1][0]
    assert "names no version" in engine_of("vllm", "some build")[1][0]
    assert "older than the oldest known" in engine_of("tgi", "0.9.4")[1][0]
    assert engine_of("vllm", "0.11.0")[1] == ()


def test_an_unknown_engine_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InputError, match=r"engine='vlm' is not an engine that is known.*Did you mean vllm\?") as caught:
        engine_of("vlm")
    assert list(caught.value.allowed or ()) == list(ENGINES)
    with pytest.raises(InputError, match="version=0.7 must be text"):
        engine_of("vllm", 0.7)  # type: ignore[arg-type]
    engine, notes, certain = engine_of("other", "MLC-LLM")
    assert not certain
    assert "not known" in notes[0]
    assert engine.admission == "grow"


def test_other_spellings_are_the_same_engine() -> None:
    assert engine_of("TRT-LLM", "1.0")[0] is engine_of("tensorrt-llm", "1.0")[0]
    assert engine_of("TurboMind")[0].name == "lmdeploy"


@pytest.mark.parametrize("name", ENGINES)
def test_tables_change_known_traits_in_the_order_of_time(name: str) -> None:
    table = CHANGES[name]
    assert [c.released for c in table] == sorted(c.released for c in table)
    known = {f.name for f in fields(Engine)}
    for before, change in zip((None, *table), table, strict=False):
        assert set(change.changes) <= known
        assert change.source
        if before is not None:
            old = engine_at(name, table.index(before))
            assert any(getattr(old, key) != value for key, value in change.changes.items()), change.since


@pytest.mark.parametrize(
    ("version", "hardware", "offline", "seqs", "tokens"),
    [
        ("0.6.4", "h100-sxm-80gb", False, 256, 512),  # 131,072 tokens: read in chunks, of 512 then
        ("0.7.3", "h100-sxm-80gb", False, 256, 2048),
        ("0.4.3", "h100-sxm-80gb", False, 256, 131072),  # a prompt has to fit a step
        ("0.8.2", "l40s", False, 1024, 2048),
        ("0.8.4", "l40s", False, 256, 2048),
        ("0.8.4", "a100-sxm-80gb", False, 256, 2048),
        ("0.8.5", "a100-sxm-80gb", False, 1024, 8192),
        ("0.9.0", "a100-sxm-80gb", False, 256, 2048),  # large steps made A100 slower
        ("0.11.0", "h100-sxm-80gb", False, 1024, 8192),
        ("0.11.0", "h100-sxm-80gb", True, 1024, 16384),
        ("0.11.0", "rtx4090", False, 256, 2048),
        ("0.22.0", "b200-sxm", False, 1024, 8192),
        (None, "b200-sxm", False, 1024, 16384),
        (None, "gb10-dgx-spark", False, 256, 2048),
    ],
)
def test_vllm_limits_follow_from_version_and_device(
    version: str | None, hardware: str, offline: bool, seqs: int, tokens: int
) -> None:
    recipe = resolved(hardware, offline=offline, version=version).recipe
    assert (recipe.max_num_seqs, recipe.max_num_batched_tokens) == (seqs, tokens)


def test_a_short_step_bounds_its_sequences() -> None:
    assert resolved(max_num_batched_tokens=512).recipe.max_num_seqs == 512


@pytest.mark.parametrize(
    ("version", "hardware", "tp", "share"),
    [
        ("0.4.6", "h100-sxm-80gb", 1, 0.88),
        ("0.4.6", "h100-sxm-80gb", 8, 0.81),
        ("0.4.9", "h100-sxm-80gb", 8, 0.831),  # (81559 - 13.5 x 1024) / 81559 = 0.8305
        ("0.5.6", "h100-sxm-80gb", 8, 0.818),  # 512 + 12288 + 1024 + 1024 = 14,848 of 81,559
        ("0.5.6", "rtx4090", 1, 0.847),  # 512 + 3072 + 48 + 128 = 3,760 of 24,564
        ("0.5.6", "b200-sxm", 8, 0.852),  # 512 + 24576 + 1024 + 1024 = 27,136 of 183,359
    ],
)
def test_sglang_leaves_what_it_estimates(version: str, hardware: str, tp: int, share: float) -> None:
    found = resolved(hardware, engine="sglang", version=version, tp=tp).recipe.memory_share
    assert found == pytest.approx(share, abs=0.0006)


def test_a_longer_chunk_lowers_sglangs_share() -> None:
    short, long = (resolved(engine="sglang", max_num_batched_tokens=tokens).recipe.memory_share for tokens in (8192, 16384))
    assert short is not None
    assert long is not None
    assert short - long == pytest.approx(1.5 * 8192 / 81559, abs=0.001)


def test_what_is_given_stays_and_the_rest_is_named() -> None:
    found = resolved(memory_share=0.8, max_num_seqs=64, kv="fp8")
    assert (found.recipe.memory_share, found.recipe.max_num_seqs, found.recipe.kv) == (0.8, 64, "fp8")
    assert "block_size=16" in found.assumed
    assert not any(flag.startswith(("memory_share", "max_num_seqs", "kv=")) for flag in found.assumed)
    open_flags = ("speculation", "version")
    assert all(getattr(found.recipe, f.name) is not None for f in fields(ServingRecipe) if f.name not in open_flags)


def test_how_engines_schedule() -> None:
    v0, v1, trt, sglang = (
        engine_of(name, version)[0]
        for name, version in (("vllm", "0.7.3"), ("vllm", "0.11.0"), ("tensorrt-llm", "0.14.0"), ("sglang", "0.5.6"))
    )
    assert [e.mixed for e in (v0, v1, trt, sglang)] == [False, True, True, False]
    assert [e.admission for e in (v0, v1, trt, sglang)] == ["grow", "grow", "reserve", "grow"]
    assert [e.share for e in (v0, v1, trt, sglang)] == ["total", "total", "free", "static"]
    assert not resolved(engine="tensorrt-llm", version="0.14.0").recipe.chunked_prefill
    assert resolved(engine="tensorrt-llm", version="0.16.0").recipe.chunked_prefill
    assert not resolved(version="0.7.3", max_model_len=8192).recipe.chunked_prefill
    assert resolved(version="0.7.3", max_model_len=40000).recipe.chunked_prefill
    assert resolved(version="0.7.3", max_model_len=8192, chunked_prefill=True).recipe.max_num_batched_tokens == 2048


def test_captured_batches() -> None:
    assert len(resolved(version="0.11.0").graph_sizes) == 67  # 1, 2, 4, then 8 to 512 in steps of 8
    assert len(resolved("a100-sxm-80gb", version="0.19.0").graph_sizes) == 51  # steps of 16 above 256
    assert len(resolved(version="0.7.3").graph_sizes) == 35
    assert resolved(enforce_eager=True).graph_sizes == ()
    assert resolved(max_num_seqs=4).graph_sizes == (1, 2, 4, 8)
    assert resolved(max_num_seqs=4, speculation=Speculation(tokens=3)).graph_sizes[-1] == 32
    assert resolved(engine="tensorrt-llm", version="0.14.0").graph_sizes == ()
    assert resolved(engine="sglang", version="0.5.6", tp=8).graph_sizes[-1] == 512


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tp", 0),
        ("tp", 2.5),
        ("pp", -1),
        ("max_num_seqs", 0),
        ("max_model_len", True),
        ("memory_share", 1.2),
        ("memory_share", 0.0),
    ],
)
def test_flags_that_no_engine_takes_are_refused(flag: str, value: object) -> None:
    given: dict[str, Any] = {flag: value}
    with pytest.raises(InputError, match=flag):
        resolved(**given)


def test_a_model_that_says_no_length_gets_one_with_a_note() -> None:
    plain = load_model("mamba-2.8b").architecture
    found = resolve_serving(ServingRecipe(), load_hardware("l4"), plain, longest=4096)
    assert found.recipe.max_model_len == 4096
    assert "how long a sequence may be" in found.notes[-1]
    again = resolve_serving(replace(found.recipe, max_model_len=512), load_hardware("l4"), plain)
    assert again.recipe.max_model_len == 512
