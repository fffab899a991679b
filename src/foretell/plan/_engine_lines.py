"""How each serving engine writes a deployment on its command line.

Names are those of the engines' own sources:

- vLLM: vllm/engine/arg_utils.py (EngineArgs.add_cli_args, 0.11), vllm/config/speculative.py
- SGLang: docs/advanced_features/server_arguments.md (0.5)
- TensorRT-LLM: tensorrt_llm/commands/serve.py, tensorrt_llm/llmapi/llm_args.py (1.x)
- LMDeploy: lmdeploy/cli/utils.py, lmdeploy/cli/serve.py (0.16)
- llama.cpp: tools/server/README.md (the help text, 2026)
- Text Generation Inference: launcher/src/main.rs (3.3)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from foretell.plan._engine_line import (
    CONFIG,
    MODEL,
    Line,
    Values,
    kept_format,
    number_type,
    replicated,
    stored_format,
    version_of,
)

__all__ = ["ENGINES"]

# -- vLLM -----------------------------------------------------------------------------------------------------

_VLLM_KV: Final = {"fp8": "fp8", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2", "fp32": "float32"}
_SERVE: Final = (0, 6)
"""`vllm serve`; before, the module of the API server."""
_SPECULATIVE: Final = (0, 8, 4)
"""--speculative-config; before, one flag each."""


def _vllm(line: Line) -> None:
    r, version = line.recipe, version_of(line)
    if version >= _SERVE:
        line.words += ["vllm", "serve", line.model]
    else:
        line.words += ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", line.model]
    dtype, made, kv = number_type(line), stored_format(line, ("fp8",)), kept_format(line, _VLLM_KV)
    line.put("--dtype", dtype, when=dtype is not None)
    line.put("--quantization", made, when=made is not None)
    line.put("--tensor-parallel-size", r.tp, when=r.tp > 1)
    line.put("--pipeline-parallel-size", r.pp, when=r.pp > 1)
    line.put("--data-parallel-size", r.dp, when=r.dp_kind == "attention" and r.dp > 1)
    replicated(line, "--data-parallel-size" if version >= (0, 9) else None, experts=False)  # its ranks share the experts
    line.put("--enable-expert-parallel", when=r.ep > 1)
    if r.ep > 1 and r.ep != r.tp * (r.dp if r.dp_kind == "attention" else 1):
        line.notes.append(f"experts are spread over all ranks by vLLM, not over {r.ep}")
    line.put_asked(
        max_model_len="--max-model-len",
        max_num_seqs="--max-num-seqs",
        max_num_batched_tokens="--max-num-batched-tokens",
        memory_share="--gpu-memory-utilization",
        block_size="--block-size",
    )
    line.put("--kv-cache-dtype", kv, when=kv is not None)
    if "chunked_prefill" in line.asked:
        line.put("--enable-chunked-prefill" if r.chunked_prefill else "--no-enable-chunked-prefill")
    line.put("--enforce-eager", when=r.enforce_eager)
    _vllm_speculation(line, version)


def _vllm_speculation(line: Line, version: tuple[int, ...]) -> None:
    spec = line.recipe.speculation
    if spec is None:
        return
    if version < _SPECULATIVE:
        line.put("--speculative-model", line.draft)
        line.put("--num-speculative-tokens", spec.tokens)
        return
    config: Values = {"method": {"draft": "draft_model", "mtp": "mtp", "eagle": "eagle3"}[spec.method]}
    if spec.method != "mtp":
        config["model"] = line.draft
    config["num_speculative_tokens"] = spec.tokens
    line.put("--speculative-config", json.dumps(config))


# -- SGLang ---------------------------------------------------------------------------------------------------

_SGLANG_KV: Final = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def _sglang(line: Line) -> None:
    r = line.recipe
    line.words += ["python", "-m", "sglang.launch_server", "--model-path", line.model]
    dtype, made, kv = number_type(line), stored_format(line, ("fp8",)), kept_format(line, _SGLANG_KV)
    line.put("--dtype", dtype, when=dtype is not None)
    line.put("--quantization", made, when=made is not None)
    shared = r.dp if r.dp_kind == "attention" else 1
    line.put("--tp-size", r.tp * shared, when=r.tp * shared > 1)  # all ranks, those of attention's copies among them
    line.put("--pp-size", r.pp, when=r.pp > 1)
    if shared > 1:
        line.put("--dp-size", r.dp)
        line.put("--enable-dp-attention")
    replicated(line, "--dp-size")
    line.put("--ep-size", r.ep, when=r.ep > 1)
    line.put_asked(
        max_model_len="--context-length",
        max_num_seqs="--max-running-requests",
        max_num_batched_tokens="--chunked-prefill-size",
        memory_share="--mem-fraction-static",
        block_size="--page-size",
    )
    if "chunked_prefill" in line.asked and not r.chunked_prefill:
        line.put("--chunked-prefill-size", -1, when="max_num_batched_tokens" not in line.asked)
    line.put("--kv-cache-dtype", kv, when=kv is not None)
    line.put("--disable-cuda-graph", when=r.enforce_eager)
    spec = r.speculation
    if spec is not None:
        line.put("--speculative-algorithm", {"draft": "STANDALONE", "mtp": "NEXTN", "eagle": "EAGLE3"}[spec.method])
        line.put("--speculative-draft-model-path", line.draft, when=spec.method != "mtp")
        line.put("--speculative-num-steps", spec.tokens)  # a chain: one token a step, and the one before them
        line.put("--speculative-eagle-topk", 1)
        line.put("--speculative-num-draft-tokens", spec.tokens + 1)


# -- TensorRT-LLM ---------------------------------------------------------------------------------------------

_TENSORRT_KV: Final = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4", "int8": "int8"}


def _tensorrt(line: Line) -> None:
    r = line.recipe
    line.words += ["trtllm-serve", line.model]
    if version_of(line) < (1, 0):
        line.notes.append("before 1.0 the model is an engine that trtllm-build made with these formats and limits")
    stored_format(line)
    shared = r.dp if r.dp_kind == "attention" else 1
    line.put("--tp_size", r.tp * shared, when=r.tp * shared > 1)
    line.put("--pp_size", r.pp, when=r.pp > 1)
    line.put("--ep_size", r.ep, when=r.ep > 1)
    replicated(line, None)
    line.put_asked(max_model_len="--max_seq_len", max_num_seqs="--max_batch_size", max_num_batched_tokens="--max_num_tokens")
    line.put("--enable_chunked_prefill", when="chunked_prefill" in line.asked and bool(r.chunked_prefill))
    cache: Values = {}
    kv = kept_format(line, _TENSORRT_KV)
    if kv is not None:
        cache["dtype"] = kv
    if "block_size" in line.asked:
        cache["tokens_per_block"] = r.block_size
    if "memory_share" in line.asked and cache:
        cache["free_gpu_memory_fraction"] = r.memory_share  # the file's section takes the place of the flag
    elif "memory_share" in line.asked:
        line.put("--kv_cache_free_gpu_memory_fraction", r.memory_share)
    if cache:
        line.config["kv_cache_config"] = cache
    if shared > 1:
        line.config["enable_attention_dp"] = True
    if r.enforce_eager:
        line.config["cuda_graph_config"] = None
    if r.speculation is not None:
        names = {"draft": "Draft_Target", "mtp": "MTP", "eagle": "Eagle3"}
        config: Values = {"decoding_type": names[r.speculation.method], "max_draft_len": r.speculation.tokens}
        if r.speculation.method != "mtp":
            config["speculative_model"] = line.draft
        line.config["speculative_config"] = config
    line.put("--extra_llm_api_options", CONFIG, when=bool(line.config))


# -- LMDeploy -------------------------------------------------------------------------------------------------

_LMDEPLOY_KV: Final = {"int8": "8", "int4": "4", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8_e5m2"}
_LMDEPLOY_FORMATS: Final = {"int4": "awq", "fp8": "fp8", "mxfp4": "mxfp4"}


def _lmdeploy(line: Line) -> None:
    r = line.recipe
    line.words += ["lmdeploy", "serve", "api_server", line.model]
    dtype, kv = number_type(line), kept_format(line, _LMDEPLOY_KV)
    line.put("--dtype", dtype, when=dtype in ("bfloat16", "float16"))
    stored_format(line)
    line.put("--model-format", _LMDEPLOY_FORMATS.get(r.weights), when=r.weights in _LMDEPLOY_FORMATS)
    line.put("--tp", r.tp, when=r.tp > 1)
    if r.pp > 1:
        line.notes.append("LMDeploy has no pipeline stages")
    line.put("--dp", r.dp, when=r.dp_kind == "attention" and r.dp > 1)
    line.put("--ep", r.ep, when=r.ep > 1)
    replicated(line, None)
    line.put_asked(
        max_model_len="--session-len",
        max_num_seqs="--max-batch-size",
        max_num_batched_tokens="--max-prefill-token-num",
        memory_share="--cache-max-entry-count",
        block_size="--cache-block-seq-len",
    )
    line.put("--quant-policy", kv, when=kv is not None)
    if r.enforce_eager:
        line.put("--backend", "pytorch")
        line.put("--eager-mode")
    spec = r.speculation
    if spec is not None:
        line.put("--speculative-algorithm", {"draft": "eagle", "mtp": "deepseek_mtp", "eagle": "eagle3"}[spec.method])
        line.put("--speculative-draft-model", line.draft, when=spec.method != "mtp")
        line.put("--speculative-num-draft-tokens", spec.tokens)
        if spec.method == "draft":
            line.notes.append("LMDeploy proposes with heads on the model's own states, not with a model of its own")


# -- llama.cpp ------------------------------------------------------------------------------------------------

_GGML_KV: Final = {"q8_0": "q8_0", "int8": "q8_0", "q4_0": "q4_0", "int4": "q4_0", "fp32": "f32"}


def _llama_cpp(line: Line) -> None:
    r = line.recipe
    line.words += ["llama-server", "--model", line.model]
    if line.model == MODEL:
        line.notes[-1] = f"{MODEL}: a GGUF file of {line.found.workload.name} in {r.weights}"
    line.put("--n-gpu-layers", 999)  # all of them
    if r.tp > 1 or r.pp > 1:
        line.put("--split-mode", "row" if r.tp > 1 else "layer")
    seats, length = r.max_num_seqs or 1, r.max_model_len or 1
    line.put("--parallel", seats)
    line.put("--ctx-size", seats * length)  # of all slots together
    if "max_num_batched_tokens" in line.asked:
        line.put("--ubatch-size", r.max_num_batched_tokens)
        line.put("--batch-size", max(2048, r.max_num_batched_tokens or 0))
    kv = kept_format(line, _GGML_KV)
    if kv is not None:
        line.put("--flash-attn", "on")  # values that are quantised need it
        line.put("--cache-type-k", kv)
        line.put("--cache-type-v", kv)
    replicated(line, None)
    spec = r.speculation
    if spec is not None:
        line.put("--model-draft", line.draft, when=spec.method != "mtp")
        new = not r.version
        line.put("--spec-type", {"draft": "draft-simple", "mtp": "draft-mtp", "eagle": "draft-eagle3"}[spec.method], when=new)
        line.put("--spec-draft-n-max" if new else "--draft-max", spec.tokens)
        if not new:
            line.notes.append("newer builds: --spec-draft-n-max in place of --draft-max")


# -- Text Generation Inference --------------------------------------------------------------------------------

_TGI_KV: Final = {"fp8": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn", "fp8_e5m2": "fp8_e5m2"}


def _tgi(line: Line) -> None:
    r = line.recipe
    line.words += ["text-generation-launcher", "--model-id", line.model]
    dtype, made, kv = number_type(line), stored_format(line, ("fp8",)), kept_format(line, _TGI_KV)
    line.put("--dtype", dtype, when=dtype in ("bfloat16", "float16"))
    line.put("--quantize", made, when=made is not None)
    line.put("--num-shard", r.tp, when=r.tp > 1)
    if r.pp > 1:
        line.notes.append("Text Generation Inference has no pipeline stages")
    replicated(line, None)
    line.put_asked(
        max_model_len="--max-total-tokens",
        max_num_seqs="--max-batch-size",
        max_num_batched_tokens="--max-batch-prefill-tokens",
        memory_share="--cuda-memory-fraction",
    )
    line.put("--kv-cache-dtype", kv, when=kv is not None)
    line.put("--cuda-graphs", 0, when=r.enforce_eager)
    if r.speculation is not None:
        line.put("--speculate", r.speculation.tokens)


ENGINES: Final[dict[str, Callable[[Line], None]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt-llm": _tensorrt,
    "lmdeploy": _lmdeploy,
    "llama.cpp": _llama_cpp,
    "tgi": _tgi,
}
"""Engine -> what writes its command line."""
