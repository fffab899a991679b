"""Serving engines by version.

Each table holds what changed, oldest first; a version has the changes of all entries up to it.  Sources are the engines' own
source files at that version.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

from foretell.recipe.engine_profile import Change, Engine

__all__ = ["CHANGES", "CHECKED", "TENSORRT", "engine_at"]

_V1 = {
    "limits": "v1-1024",
    "chunked_prefill": True,
    "long_chunked": False,
    "mixed": True,
    "eager": False,
    "context": True,
    "communicators": 2,
    "graph_largest": 512,
    "latent_block": 64,
}

VLLM: Final = (
    Change(
        "0.2.0",
        "2023-09",
        "vllm/engine/arg_utils.py, worker/worker.py, model_executor/layers/sampler.py (fp16: 2 + 2 + 8 + 8 + 10 bytes)",
        {
            "limits": "v0",
            "chunked_prefill": False,
            "mixed": False,
            "windows": False,
            "latent": False,
            "graphs": False,
            "graph_largest": 256,
            "eager": True,
            "sampler": 30.0,
            "communicators": 0,
            "held_reductions": True,
            "chunk": 512,
            "hopper_experts": "marlin",
        },
    ),
    Change(
        "0.2.5",
        "2023-12",
        "worker/worker.py: all that the device holds counts",
        {"context": True, "communicators": 2, "leftovers": True},
        2031,
    ),
    Change("0.2.6", "2023-12", "worker/worker.py: TORCH_NCCL_AVOID_RECORD_STREAMS", {"held_reductions": False, "graphs": True}),
    Change("0.4.0", "2024-03", "worker/worker.py: less what was used before", {"context": False}),
    Change("0.5.5", "2024-08", "engine/arg_utils.py", {"long_chunked": True, "sampler": 38.0}),
    Change("0.6.4", "2024-11", "worker/worker.py: allocated peak, and all else that the device holds", {"context": True}, 9352),
    Change("0.6.5", "2024-12", "utils.py memory_profiling", {"context": False, "chunk": 2048}, 10511),
    Change("0.7.0", "2025-01", "utils.py memory_profiling: the cache is emptied first", {"leftovers": False}, 12126),
    Change("0.7.1", "2025-02", "engine/arg_utils.py, worker/worker.py", {"latent": True}),
    Change("0.8.0", "2025-03", "v1/worker/gpu_worker.py, v1/sample/ops/topk_topp_sampler.py, config.py", _V1),
    Change("0.8.4", "2025-04", "engine/arg_utils.py: fewer sequences unless on H100, H200", {"limits": "v1-named"}),
    Change("0.8.5", "2025-04", "engine/arg_utils.py: large defaults from 70 GiB on", {"limits": "v1-a100"}),
    Change("0.9.0", "2025-05", "engine/arg_utils.py: large defaults are not for A100", {"limits": "v1"}, 17885),
    Change("0.9.2", "2025-06", "v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py", {"context": False, "windows": True}),
    Change(
        "0.11.0",
        "2025-10",
        "v1/worker/gpu_worker.py: first snapshot after NCCL; model_executor/layers/quantization/mxfp4.py",
        {"communicators": 1, "graph_kinds": 2, "hopper_experts": "hopper"},
    ),
    Change("0.12.0", "2025-12", "config/vllm.py, v1/core/kv_cache_utils.py", {"graph_step": (8, 16), "spread": 1.25}),
    Change(
        "0.17.0",
        "2026-03",
        "v1/sample/ops/topk_topp_triton.py (2 + 4 + 4 + 4 bytes)",
        {"sampler": 14.0, "sampler_rows": True, "spread": 1.5},
    ),
    Change("0.20.0", "2026-04", "config/cache.py, envs.py", {"memory_share": 0.92, "graphs_count": True, "full_tokens": True}),
    Change("0.21.0", "2026-05", "envs.py: FlashInfer's sampler", {"sampler_rows": False}),
    Change("0.33.0", "2026-11", "engine/arg_utils.py get_batch_defaults", {"limits": "v1-160"}),
)

SGLANG: Final = (
    Change(
        "0.3.0",
        "2024-09",
        "python/sglang/srt/server_args.py, model_executor/model_runner.py",
        {
            "share": "static",
            "memory_share": None,
            "limits": "sglang-2024",
            "block_size": 1,
            "mixed": False,
            "chunks_mixed": False,  # enable_mixed_chunk is off
            "activation": False,
            "windows": False,
            "graph_largest": 160,
            "communicators": 2,
            "context": True,
            "hopper_experts": "hopper",
            "sampler": 10.0,
        },
    ),
    Change("0.4.8", "2025-06", "server_args.py", {"limits": "sglang-2025", "windows": True, "window_ratio": 0.8}),
    Change("0.5.3", "2025-10", "server_args.py _handle_gpu_memory_settings", {"limits": "sglang", "state_ratio": 0.9}),
)

TENSORRT_LLM: Final = (
    Change(
        "0.5.0",
        "2023-10",
        "docs/source/reference/memory.md, tensorrtllm_backend README (kv_cache_free_gpu_mem_fraction)",
        {
            "share": "free",
            "limits": "trt-256",
            "block_size": 128,
            "chunked_prefill": False,
            "admission": "reserve",
            "graphs": False,
            "windows": False,
            "latent": False,
            "context": True,
            "embedding_whole": True,
            "sampler": 8.0,
        },
    ),
    Change("0.10.0", "2024-06", "docs/source/release-notes.md: tokens_per_block 64", {"block_size": 64}),
    Change("0.14.0", "2024-11", "docs/source/release-notes.md: max_batch_size 2048", {"limits": "trt-2048"}),
    Change("0.16.0", "2024-12", "docs/source/release-notes.md: chunked context by default", {"chunked_prefill": True}),
    Change("0.19.0", "2025-05", "docs/source/release-notes.md: latent attention", {"latent": True}),
    Change(
        "1.0.0",
        "2025-09",
        "docs/source/release-notes.md: PyTorch backend by default; tensorrt_llm/llmapi/llm_args.py",
        {
            "block_size": 32,
            "chunked_prefill": False,
            "graphs": True,
            "graph_largest": 128,
            "windows": True,
            "embedding_whole": False,
        },
    ),
)

LMDEPLOY: Final = (
    Change(
        "0.2.0",
        "2024-01",
        "lmdeploy/messages.py TurbomindEngineConfig: half of the device's memory",
        {
            "share": "device",
            "memory_share": 0.5,
            "limits": "lmdeploy-128",
            "block_size": 128,
            "graphs": False,
            "activation": False,
            "context": True,
            "windows": False,
            "latent": False,
            "sampler": 8.0,
        },
    ),
    Change(
        "0.2.2",
        "2024-02",
        "lmdeploy/messages.py: 0.8 of what is free after loading",
        {"share": "free", "memory_share": 0.8, "block_size": 64},
    ),
    Change("0.7.0", "2025-01", "lmdeploy/utils.py get_max_batch_size", {"limits": "lmdeploy", "latent": True}),
)

LLAMA_CPP: Final = (
    Change(
        "b1500",
        "2023-11",
        "common/common.h (gpt_params), examples/server/README.md",
        {
            "share": "slots",
            "memory_share": None,
            "limits": "llama.cpp-512",
            "block_size": 1,
            "admission": "reserve",
            "graphs": False,
            "windows": False,
            "latent": False,
            "context": True,
            "embedding_on_host": True,
            "sampler": 4.0,
        },
    ),
    Change("b2400", "2024-03", "common/common.h: n_batch 2048, n_ubatch 512", {"limits": "llama.cpp"}),
    Change("b5500", "2025-05", "src/llama-kv-cache: windows and latent attention", {"windows": True, "latent": True}),
)

TGI: Final = (
    Change(
        "1.0.0",
        "2023-07",
        "server/text_generation_server/models/flash_causal_lm.py warmup, models/globals.py TGI_WIGGLE_ROOM",
        {
            "limits": "tgi",
            "memory_share": 0.95,
            "chunked_prefill": False,
            "mixed": False,
            "admission": "reserve",
            "eager": True,
            "windows": False,
            "latent": False,
            "context": True,
            "graph_largest": 32,
            "sampler": 8.0,
        },
    ),
    Change(
        "3.0.0",
        "2024-12",
        "models/globals.py: FlashInfer (blocks of 1 token), prefill chunking",
        {"memory_share": 0.9, "chunked_prefill": True, "mixed": True, "block_size": 1, "latent": True},
    ),
)

CHANGES: Final[dict[str, tuple[Change, ...]]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "tensorrt-llm": TENSORRT_LLM,
    "lmdeploy": LMDEPLOY,
    "llama.cpp": LLAMA_CPP,
    "tgi": TGI,
    "other": (Change("0", "2023-01", "taken as vLLM's, whose pool most engines follow", {"limits": "v0", "chunk": 2048}),),
}

CHECKED: Final = {
    "vllm": "0.33.0",
    "sglang": "0.5.12",
    "tensorrt-llm": "1.2.0",
    "lmdeploy": "0.16.0",
    "llama.cpp": "b6000",
    "tgi": "3.3.6",
}
"""The latest release whose sources were read: later ones may differ."""

TENSORRT: Final = (
    ((9, 2), "0.8.0"),
    ((9, 3), "0.9.0"),
    ((10, 0), "0.10.0"),
    ((10, 1), "0.11.0"),
    ((10, 3), "0.12.0"),
    ((10, 4), "0.14.0"),
    ((10, 6), "0.15.0"),
    ((10, 7), "0.16.0"),
    ((10, 8), "0.17.0"),
    ((10, 9), "0.19.0"),
    ((10, 10), "0.20.0"),
    ((10, 11), "0.21.0"),
)
"""TensorRT release -> TensorRT-LLM that depends on it (docs/source/release-notes.md): results are often published with it."""


@functools.cache
def engine_at(name: str, index: int) -> Engine:
    """Return an engine with the changes up to one, by its place in the table.

    >>> engine_at("vllm", -1).memory_share, engine_at("vllm", 0).mixed
    (0.92, False)
    """
    table = CHANGES[name]
    engine = Engine(name)
    for change in table[: index % len(table) + 1]:
        engine = replace(
            engine, **change.changes, version=change.since, released=change.released, source=f"{change.source} at {change.since}"
        )
    return engine
