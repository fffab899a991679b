"""Environment variables of serving engines, by what they do.

Sources: vLLM 0.33.0 vllm/envs.py; SGLang 0.5.23 python/sglang/srt/environ.py; TensorRT-LLM 1.2 docs/source.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from foretell.readers._reading import Effect

__all__ = ["VLLM_DEFAULTS", "sglang_variable", "tensorrt_variable", "vllm_variable"]

_KERNELS: Final[tuple[Effect, str]] = ("speed", "chooses kernels")

_VLLM: Final[dict[str, tuple[Effect, str]]] = {
    "VLLM_USE_V1": ("both", "0 is vLLM's first engine, whose scheduler and memory differ: say engine_version"),
    "VLLM_MLA_DISABLE": ("more", "all heads are kept in place of the latent"),
    "VLLM_PP_LAYER_PARTITION": ("memory", "which layers each stage has"),
    "VLLM_VLLM_PROFILER_ESTIMATE_CUDAGRAPHS": ("memory", "whether CUDA graphs count against the memory flag"),
    "VLLM_REPLICATE_EMBED": ("more-memory", "the token table is on each rank"),
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": ("memory", "layers with local attention let go of tokens"),
    "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE": ("memory", "a workspace of FlashInfer"),
    "VLLM_DEEPEP_BUFFER_SIZE_MB": ("memory", "buffers of DeepEP"),
    "VLLM_CPU_KVCACHE_SPACE": ("memory", "the pool on CPUs"),
    "VLLM_VLLM_PROFILE_INCLUDE_ATTN": ("memory", "what the profiling run counts"),
    "VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD": ("more", "4-bit weights are kept in 16 bits"),
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": ("more", "8-bit weights are kept in 16 bits where the GPU has no MX units"),
    "VLLM_USE_V2_MODEL_RUNNER": ("both", "another model runner"),
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB": ("memory", "scores of the index of sparse attention"),
}
"""Variables that change memory."""
VLLM_DEFAULTS: Final = {
    "VLLM_USE_V1": ("1",),
    "VLLM_VLLM_PROFILER_ESTIMATE_CUDAGRAPHS": ("1",),
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": ("1",),
    "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD": ("1",),
    "VLLM_USE_DEEP_GEMM": ("1",),
    "VLLM_USE_FLASHINFER_SAMPLER": ("1",),
}
"""Values that are the defaults; of others 0 (envs.py)."""
_VLLM_HARMLESS: Final = re.compile(
    r"VLLM_(.*(LOG|TIMEOUT|_PORT|_HOST|_IP|URL|CACHE_ROOT|CACHE_DIR|CONFIG_ROOT|_PATH|API_KEY|USAGE|TRACK|DEBUG|BUILD_|IMAGE_TAG"
    r"|PLUGINS|ASSETS|MEDIA_|_FETCH_|TELEMETRY|COMPILE_CACHE|NCCL_SO|MODELSCOPE|PRECOMPILED|SERIALIZATION|VALIDATION|TOOL_"
    r"|PARSER|PROCESS_NAME|INSTANCE_ID|RAY_|MULTIPROC|MULTIPROCESSING|RPC_|RINGBUFFER|TEST_|_PROFILER|NVTX|DOCKER|SHUTDOWN"
    r"|ALLOW_LONG_MAX_MODEL_LEN|RUNTIME_LORA_UPDATING|WARMUP|VERSION|RESPONSES|KEEP_ALIVE|READY|LOADER_BACKEND|HEARTBEAT"
    r"|OUTLINES|XGRAMMAR|FUEL|HTTP_|SKIP_P2P|DP_(SIZE|RANK|MASTER)|TARGET_DEVICE|SYNC_CHECK|FASTOKENS|RUST|CI_ENV|FORCE_AOT_LOAD"
    r"|MEGA_AOT|AOT_COMPILE|PYTHONHASHSEED|TRACE).*)"
)


def vllm_variable(name: str) -> tuple[Effect, str] | None:
    """Return what a variable of vLLM's does; None where it changes neither memory nor speed."""
    if name in _VLLM:
        return _VLLM[name]
    return None if _VLLM_HARMLESS.fullmatch(name) else _KERNELS


_SGLANG: Final = {
    "SGLANG_INT4_WEIGHT": "weights are made 4 bits while they load",
    "SGLANG_DSV4_FP4_DEQUANT": "4-bit experts are kept wider",
    "SGLANG_MAMBA_CONV_DTYPE": "the format of recurrent states",
    "SGLANG_MAMBA_SSM_DTYPE": "the format of recurrent states",
    "SGLANG_SHARED_EXPERT_TP1": "shared experts are on each rank",
    "SGLANG_ENABLE_EMBED_REPLICATION": "the token table is on each rank",
    "SGLANG_MOE_PADDING": "experts are padded",
    "SGLANG_FLASHINFER_WORKSPACE_SIZE": "a workspace of FlashInfer",
    "SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": "set aside for symmetric memory",
}
_SGLANG_HARMLESS: Final = re.compile(
    r"(?:SGLANG|SGL)_(.*(LOG|TIMEOUT|PORT|HOST|_IP|DIR|PATH|CACHE_DIR|DEBUG|TRACE|PROFILE|TEST|CHECK|CRASH|DUMP|METRICS|CI"
    r"|MODELSCOPE|HEALTH|CANARY|COREDUMP|IPC|PLUGINS|WARMUP|OTLP|REQUEST_|ROLE_NAMESPACES|OVERWRITE_LONGER_CONTEXT|DISABLED_MODEL"
    r"|EXTERNAL|VERSION|THINK|REASONING_EFFORT|TOOL|EXA_|NUMA|AFFINITY|SEED|JIT_CACHE|PRECOMPILE|PATCH|VISIBLE_DEVICE).*)"
)


def sglang_variable(name: str) -> tuple[Effect, str] | None:
    """Return what a variable of SGLang's does; None where it changes neither memory nor speed."""
    if name in _SGLANG:
        return "memory", _SGLANG[name]
    return None if _SGLANG_HARMLESS.fullmatch(name) else _KERNELS


_TENSORRT_HARMLESS: Final = re.compile(
    r"(?:TRTLLM|TLLM)_(.*(LOG|TIMEOUT|PORT|HOST|URL|DIR|PATH|DEBUG|TRACE|PROFILE|TEST|DUMP|WORKER_DISABLE_GC|SERVER_DISABLE_GC"
    r"|NUMA|AFFINITY|WORLD|MPI|IPC|NVTX|KVCACHE_TIME_OUTPUT).*)"
)


def tensorrt_variable(name: str) -> tuple[Effect, str] | None:
    """Return what a variable of TensorRT-LLM's does; None where it changes neither memory nor speed."""
    return None if _TENSORRT_HARMLESS.fullmatch(name) else _KERNELS
