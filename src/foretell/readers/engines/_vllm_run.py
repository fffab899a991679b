"""What vLLM's flags make of a server.

Source: vLLM 0.33.0 (vllm/engine/arg_utils.py, config/cache.py, config/compilation.py, config/model.py, config/parallel.py,
config/speculative.py, config/vllm.py, model_executor/layers/quantization/__init__.py); flags of versions before: 0.8.5, 0.12.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers.engines._flags import human
from foretell.readers.engines._model import Served, held_format, known_draft
from foretell.readers.engines._vllm_keys import LORA, VERSION
from foretell.readers.engines._vllm_length import check_length

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder
    from foretell.readers.engines._flags import Flags

__all__ = ["DEFAULT", "engine"]

DEFAULT: Final = f"default of vLLM {VERSION}"
_DTYPES: Final = {"auto": None, "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
_CACHES: Final = {
    "auto": None, "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32", "fp8": "fp8", "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2", "fp8_inc": "fp8", "fp8_per_token_head": "fp8", "int8_per_token_head": "int8",
    "int4_per_token_head": "int4", "nvfp4": "nvfp4", "nvfp4_4over6": "nvfp4", "fp8_ds_mla": "fp8", "nvfp4_ds_mla": "nvfp4",
    "turboquant_k8v4": "", "turboquant_4bit_nc": "", "turboquant_k3v4_nc": "", "turboquant_3bit_nc": "", "octave_k3v4": "",
    "octave_k3v3": "", "octave_k3v3_compact": "", "ultraquant_4bit": "",
}  # fmt: skip
"""Format of keys and values -> format here; empty: none that is known."""
_LATENT: Final = ("fp8_ds_mla", "nvfp4_ds_mla")
_ONLINE: Final = {
    "fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "fp8_per_channel": "fp8", "ptpc_fp8": "fp8",
    "experts_int8": "int8", "int8": "int8", "int8_per_channel_weight_only": "int8", "nvfp4_per_token": "nvfp4", "mxfp8": "mxfp8",
}  # fmt: skip
"""What vLLM makes of 16 bits while it loads."""
_STORED: Final = {
    "awq": "int4", "auto_awq": "int4", "awq_marlin": "int4", "gptq": "int4", "auto_gptq": "int4", "gptq_marlin": "int4",
    "gptq_marlin_24": "int4", "marlin": "int4", "moe_wna16": "int4", "fbgemm_fp8": "fp8", "modelopt": "fp8",
    "modelopt_fp4": "nvfp4", "modelopt_mxfp8": "mxfp8", "petit_nvfp4": "nvfp4", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4",
    "deepseek_v4_fp8": "fp8", "tpu_int8": "int8", "rtn": "int8",
}  # fmt: skip
"""What a checkpoint is stored in that is read so; others say it in their own file."""
_OWN: Final = ("compressed-tensors", "quark", "torchao", "inc", "auto-round", "humming", "modelopt_mixed", "online", "fp_quant",
               "ipex", "hqq", "aqlm", "bitblas", "gptq_bitblas", "deepspeedfp", "neuron_quant", "auto_round")  # fmt: skip
MTP: Final = "mtp"
_PROPOSERS: Final = {"eagle": "eagle", "eagle3": "eagle", "draft_model": "draft"}
_HEADS: Final = ("medusa", "mlp_speculator", "dflash", "dspark", "extract_hidden_states", "custom_class")
_NO_MODEL: Final = ("ngram", "ngram_gpu", "[ngram]", "suffix")


def engine(b: Builder, flags: Flags, served: Served, *, long: bool) -> None:
    """Take everything that the flags say of the engine and its layout.

    ``long``: the environment lets a sequence be longer than the model's file allows.
    """
    b.default("engine", "vllm", "the program that is started")
    _purpose(b, flags)
    _weights(b, flags, served)
    _cache(b, flags)
    _layout(b, flags, served)
    _limits(b, flags, served, long=long)
    _graphs(b, flags)
    _speculation(b, flags)
    _adapters(b, flags)


def _purpose(b: Builder, flags: Flags) -> None:
    """A server that makes no tokens is no server here."""
    for key, texts in (("task", ("generate", "auto", "draft", "transcription")), ("runner", ("generate", "auto", "draft")),
                       ("convert", ("auto",))):  # fmt: skip
        found = flags.get(key)
        if found is not None and found.text().strip().casefold() in texts:
            b.harmless(found)
        elif found is not None:
            b.doubt(found, "both", "the server makes embeddings or scores, no tokens: it is counted as if it made tokens")


def _weights(b: Builder, flags: Flags, served: Served) -> None:
    """Take the format of the weights: the flag's, the checkpoint's, or the 16-bit type."""
    method, dtype, loads = flags.get("quantization"), flags.get("dtype"), flags.get("load_format")
    half = None if dtype is None else dtype.choice(_DTYPES)
    if loads is not None:
        b.harmless(loads)
    if method is None and loads is not None and loads.text() == "bitsandbytes":
        method = loads
    if method is not None:
        _quantized(b, method, served)
    if dtype is None:
        return
    if method is None and half is not None and not served.quantized and b.given("weights") is None:
        b.set("weights", half, dtype)
    else:
        b.harmless(dtype)


def _quantized(b: Builder, found: Found, served: Served) -> None:
    word = found.text().strip().casefold().replace("autoround", "auto-round")
    known = served.quantized or b.given("weights") is not None
    if word in _ONLINE and not (known and word == "fp8"):
        b.set("weights", _ONLINE[word], found)
    elif word == "bitsandbytes" and not known:
        b.set("weights", "int4", found, "bitsandbytes: 4 bits and a scale for each 64")
        b.doubt(found, "memory", "bitsandbytes keeps 4.5 bits a weight, or 8 where its file says so; int4 is counted")
    elif known or word in ("gguf", *_OWN):
        b.harmless(found)
        if not known:
            b.doubt(found, "memory", "the checkpoint's own file says how it is stored, and is not known: 16 bits are counted")
    elif word in _STORED:
        b.set("weights", _STORED[word], found)
    else:
        allowed = sorted((*_ONLINE, *_STORED, *_OWN, "bitsandbytes", "gguf"))
        raise found.error("is no quantisation of vLLM that is known here", allowed=allowed)


def _cache(b: Builder, flags: Flags) -> None:
    """Take the format of keys and values."""
    found = flags.get("kv_cache_dtype")
    if found is None:
        return
    kind = found.choice(_CACHES)
    if kind == "":
        b.doubt(found, "both", "keys and values in a format that is not known here: 16 bits are counted")
        return
    b.set("kv_dtype", kind, found)
    if found.text().strip().casefold() in _LATENT:
        b.doubt(found, "more-memory", "the rotary part of the latent stays in 16 bits, and scales lie beside it")


def _layout(b: Builder, flags: Flags, served: Served) -> None:
    """Take tensor, pipeline, data and expert parallelism."""
    tp, pp = flags.count(b, "tp", "tensor_parallel_size"), flags.count(b, "pp", "pipeline_parallel_size")
    dp = flags.get("data_parallel_size")
    copies = 1 if dp is None else dp.whole()
    inner = (1 if tp is None else tp.whole()) * (1 if pp is None else pp.whole())
    shared = flags.get("enable_expert_parallel")
    spread = shared is not None and shared.flag()
    moe = served.experts > 0 or (served.architecture is None and spread)
    if dp is not None:
        b.set("dp", copies, dp)
        if moe and copies > 1:
            b.set("dp_kind", "attention", dp, "routed experts are spread over all ranks (config/parallel.py)")
    ranks = (1 if tp is None else tp.whole()) * copies
    if shared is not None and spread and moe and ranks > 1:
        b.set("ep", ranks, shared, "all ranks of tensor and data parallelism (config/parallel.py)")
    elif shared is not None:
        b.harmless(shared)
    nodes, local = flags.get("nnodes"), flags.get("data_parallel_size_local")
    for found in (nodes, local):
        if found is not None:
            b.harmless(found)
    if nodes is not None and nodes.whole() > 1 and inner * copies % nodes.whole() == 0:
        b.set("gpus_per_node", inner * copies // nodes.whole(), nodes, "ranks over nodes")
    elif local is not None and 0 < local.whole(minimum=0) < copies:
        b.set("gpus_per_node", inner * local.whole(), local, "ranks that this node starts")


def _limits(b: Builder, flags: Flags, served: Served, *, long: bool) -> None:
    """Take the scheduler's limits and the memory flag."""
    longest = flags.get("max_model_len")
    if longest is not None and longest.text().strip().casefold() in ("auto", "-1"):
        b.set("max_model_len", "auto", longest, "the longest sequence that fits")
    elif longest is not None:
        b.set("max_model_len", human(longest), longest)
        if not long:
            check_length(longest, human(longest), flags, served)
    else:
        why = "what the model's file allows (config/model.py); vLLM does not start where one such sequence does not fit"
        b.default("max_model_len", served.longest, f"default of vLLM {b.version}: {why}")
    flags.count(b, "max_num_seqs", "max_num_seqs")
    flags.count(b, "max_num_batched_tokens", "max_num_batched_tokens")
    flags.count(b, "block_size", "block_size")
    flags.share(b, "gpu_memory_utilization", "gpu_memory_utilization")
    flags.switch(b, "chunked_prefill", "enable_chunked_prefill")


def _graphs(b: Builder, flags: Flags) -> None:
    """Take whether CUDA graphs are captured."""
    eager = flags.get("enforce_eager")
    if eager is not None:
        b.set("enforce_eager", eager.flag(), eager)
    mode = flags.get("compilation_config.cudagraph_mode")
    level = flags.get("optimization_level", "O0", "O1", "O2", "O3")
    short = flags.get("compilation_config")  # a level alone, as "-O3" was
    if mode is not None and mode.text().strip().upper() in ("NONE", "0"):
        b.set("enforce_eager", value=True, found=mode, why="no CUDA graphs")
    elif mode is not None and mode.text().strip().upper() == "FULL_AND_PIECEWISE":
        b.harmless(mode)
    elif mode is not None:
        b.doubt(mode, "both", "what is captured as CUDA graphs")
    for found in (level, short):
        if found is None or not found.node.scalar:
            continue
        number = found.key.removeprefix("O") if found.node.value is True else found.text().strip().removeprefix("O")
        if number == "0":
            b.set("enforce_eager", value=True, found=found, why="nothing is compiled or captured")
        elif number in ("2", "3"):
            b.harmless(found)
        else:
            b.doubt(found, "both", "what is compiled and captured")


def _speculation(b: Builder, flags: Flags) -> None:
    """Take who proposes tokens, and how many."""
    method = flags.get("speculative_config.method", "spec_method")
    draft = flags.get("speculative_config.model", "spec_model", "speculative_model")
    tokens = flags.get("speculative_config.num_speculative_tokens", "spec_tokens", "num_speculative_tokens")
    said = method or draft
    if said is None:
        for found in (tokens, flags.get("speculative_config")):
            if found is not None:
                b.harmless(found)
        return
    name = "" if draft is None else draft.text().strip()
    kind = _proposer(b, said, "" if method is None else method.text().strip().casefold(), name)
    if kind is not None:
        b.set("speculative", kind, said)
        if tokens is not None:
            b.set("draft_tokens", tokens.whole(maximum=64), tokens)
    if kind == "draft" and draft is not None:
        b.set("draft", name, draft)
    for found in (method, draft, tokens):
        if found is not None and not any(s.origin.key == found.key for s in b.settings.values()):
            b.harmless(found)


def _proposer(b: Builder, said: Found, word: str, name: str) -> str | None:
    """Return who proposes, as an option says it; None, and a doubt, where that is not modelled."""
    if word in _NO_MODEL or name in _NO_MODEL:
        b.doubt(said, "speed", "tokens are proposed from the text itself, which takes no memory")
        return None
    if word == MTP or word.endswith("_mtp"):
        return MTP
    kind = _PROPOSERS.get(word) or ("eagle" if not word and "eagle" in name.casefold() else None)
    if kind is None and not word and held_format(name) is None:
        kind = "draft"
    if kind == "draft" and not known_draft(name):
        b.doubt(said, "more", "the model that proposes tokens is not known here")
        return None
    if kind is None and word and word not in _HEADS:
        allowed = sorted((MTP, *_PROPOSERS, *_HEADS, *_NO_MODEL))
        raise said.error("is no way of proposing tokens that is known here", allowed=allowed)
    if kind is None:
        b.doubt(said, "more", "a head or a model that proposes tokens, which is not known here")
    return kind


def _adapters(b: Builder, flags: Flags) -> None:
    """Adapters that are served take room on every matrix."""
    on = flags.on("enable_lora")
    if on is None:
        return
    slots, rank = flags.get("max_loras"), flags.get("max_lora_rank")
    count, width = (1 if slots is None else slots.whole()), (16 if rank is None else rank.whole())
    b.doubt(on, "more", f"room for {count} adapter{'s' * (count > 1)} of rank {width} on every matrix, and their products")
    for key in LORA:
        found = flags.get(key)
        if found is not None:
            b.harmless(found)
