"""TensorRT-LLM: ``trtllm-serve MODEL ... --config FILE`` (once ``--extra_llm_api_options``), and that file alone.

Source: TensorRT-LLM 1.2 (tensorrt_llm/commands/serve.py get_llm_args, tensorrt_llm/llmapi/llm_args.py).  What a file says takes
the place of the command's flag (``update_llm_args_with_extra_dict``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foretell.readers._arguments import POSITIONAL
from foretell.readers._family import Family
from foretell.readers._reading import Builder, Change, Reading, Sources, refused
from foretell.readers.engines._flags import (
    Flags,
    alone,
    command_flags,
    engine_variables,
    engine_version,
    file_flags,
    followed,
    words_of,
)
from foretell.readers.engines._model import Served, known_draft, served_model
from foretell.readers.engines._trtllm_keys import GRAMMAR, OWN, TABLES
from foretell.readers.engines._variables import tensorrt_variable

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Spell

__all__ = ["FAMILY"]

_SURE: Final = 0.7
_DTYPES: Final = {"auto": None, "float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_CACHES: Final = {"auto": None, "fp8": "fp8", "nvfp4": "nvfp4", "int8": "int8", "float16": "fp16", "bfloat16": "bf16"}
_ALGORITHMS: Final = {
    "FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_BLOCK_SCALES": "fp8", "NVFP4": "nvfp4", "W4A16_AWQ": "int4",
    "W4A16": "int4", "W4A16_GPTQ": "int4", "W4A8_AWQ": "int4", "W8A16": "int8", "W8A16_GPTQ": "int8",
    "INT8": "int8", "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_MXFP4": "mxfp4", "W4A8_MXFP4_MXFP8": "mxfp4",
}  # fmt: skip
"""quant_config.quant_algo (tensorrt_llm/quantization/mode.py)."""
_OTHER: Final = {
    "disaggregated": "starts a router between servers", "disaggregated_mpi_worker": "starts a part of a disaggregated server",
    "mm_embedding_serve": "encodes images", "embeddings": "makes embeddings",
}  # fmt: skip


def _claims(document: Document) -> float:
    keys = frozenset(key.replace("-", "_") for key in document.keys())  # noqa: SIM118  # no mapping
    known = len(keys & GRAMMAR.known)
    return _SURE * known / len(keys) if keys & OWN else 0.0


def _starts(launch: Launcher) -> bool:
    return launch.name == "trtllm-serve" or launch.program == "tensorrt_llm.commands.serve"


def _read(sources: Sources) -> Reading:
    b = Builder("trtllm", sources, verb="serve")
    command = sources.main if sources.main.form == "arguments" else None
    flags, single = _flags(sources, command)
    model, served = single or flags.get("model"), Served()
    if model is not None:
        served = served_model(b, model)
    else:
        b.needs("model", "the file names no model: trtllm-serve MODEL does")
    b.default("engine", "tensorrt-llm", "the program that is started")
    engine_version(b, "tensorrt-llm")
    _formats(b, flags, served)
    _layout(b, flags, served)
    flags.count(b, "max_model_len", "max_seq_len")
    flags.count(b, "max_num_seqs", "max_batch_size")
    flags.count(b, "max_num_batched_tokens", "max_num_tokens")
    flags.count(b, "block_size", "kv_cache_config.tokens_per_block")
    flags.share(b, "gpu_memory_utilization", "kv_cache_config.free_gpu_memory_fraction", "free_gpu_memory_fraction")
    flags.switch(b, "chunked_prefill", "enable_chunked_prefill")
    _graphs(b, flags)
    _speculation(b, flags)
    _adapters(b, flags)
    flags.rest(b, TABLES, GRAMMAR, "TensorRT-LLM")
    b.world()
    b.settings.pop("gpus", None)
    engine_variables(b, ("TRTLLM_", "TLLM_"), tensorrt_variable)
    return b.reading(_spelling(flags))


def _flags(sources: Sources, command: Document | None) -> tuple[Flags, Found | None]:
    """Return the flags of the file above those of the command, and the model that stands alone."""
    if command is None:
        return Flags((file_flags(sources.main, GRAMMAR),)), None
    given = command_flags(sources, GRAMMAR)
    sources.main = given
    words = words_of(given)
    if words and words[0].text() in ("serve", "grpc"):
        words.pop(0)
    elif words and words[0].text() in _OTHER:
        raise refused(command, f"trtllm-serve {words[0].text()} {_OTHER[words[0].text()]}: no server of tokens")
    documents = followed(sources, given, GRAMMAR, _claims)
    if len(words) <= 1:
        given.get(POSITIONAL)
    return Flags(tuple(dict.fromkeys((*documents, given)))), alone(words)


def _formats(b: Builder, flags: Flags, served: Served) -> None:
    """Take the formats of weights, and of keys and values."""
    kept = flags.get("kv_cache_config.dtype", "kv_cache_dtype", "quant_config.kv_cache_quant_algo")
    if kept is not None:
        b.set("kv_dtype", kept.choice(_CACHES), kept)
    made = flags.get("quant_config.quant_algo")
    if made is not None:
        kind = _ALGORITHMS.get(made.text().strip().upper())
        if kind is None:
            b.doubt(made, "memory", "a format of weights that is not known here")
        else:
            b.set("weights", kind, made)
    dtype, backend = flags.get("dtype"), flags.get("backend")
    if dtype is not None:
        half = dtype.choice(_DTYPES)
        if half is not None and not served.quantized and b.given("weights") is None:
            b.set("weights", half, dtype)
        else:
            b.harmless(dtype)
    if backend is not None and backend.text().strip().casefold() in ("tensorrt", "trt", "_autodeploy"):
        b.doubt(backend, "both", "engines that were built, or deployed automatically, run otherwise than the PyTorch backend")
    elif backend is not None:
        b.harmless(backend)


def _layout(b: Builder, flags: Flags, served: Served) -> None:
    """Take the layout; attention with data parallelism has a copy on each rank."""
    tp, copies = flags.get("tensor_parallel_size"), flags.get("enable_attention_dp")
    flags.count(b, "pp", "pipeline_parallel_size")
    every = 1 if tp is None else tp.whole()
    apart = copies is not None and copies.flag() and every > 1
    if tp is not None:
        b.set("tp", 1 if apart else every, tp, "each rank has attention of its own" if apart else "")
    if copies is not None and apart:
        b.set("dp", every, copies, "one copy of attention on each rank")
        b.set("dp_kind", "attention", copies)
    elif copies is not None:
        b.harmless(copies)
    ep = flags.get("moe_expert_parallel_size")
    if ep is not None and served.architecture is not None and not served.experts:
        b.harmless(ep)
    elif ep is not None and ep.real() > 0:
        b.set("ep", ep.whole(), ep)
    each = flags.get("gpus_per_node")
    if each is not None:
        b.set("gpus_per_node", each.whole(), each)


def _graphs(b: Builder, flags: Flags) -> None:
    """A null where the configuration of CUDA graphs stands turns them off."""
    for document in flags.documents:
        node = document.at("cuda_graph_config")
        if node is not None and node.value is None:
            from foretell.readers._document import Found  # noqa: PLC0415  # beside it

            document.mark(node)
            b.set("enforce_eager", value=True, found=Found(document, "cuda_graph_config", node))
            return


def _speculation(b: Builder, flags: Flags) -> None:
    """Take who proposes tokens, and how many."""
    method = flags.get("speculative_config.decoding_type")
    if method is None:
        return
    word = method.text().strip().casefold().replace("_", "")
    tokens = flags.get("speculative_config.max_draft_len", "speculative_config.num_nextn_predict_layers")
    draft = flags.get("speculative_config.speculative_model", "speculative_config.speculative_model_dir")
    kind = {"mtp": "mtp", "eagle": "eagle", "eagle3": "eagle", "drafttarget": "draft"}.get(word)
    if word in ("ngram", "lookahead", "sa", "auto"):
        b.doubt(method, "speed", "tokens are proposed from the text itself, which takes no memory")
    elif kind is None or (kind == "draft" and (draft is None or not known_draft(draft.text().strip()))):
        b.doubt(method, "more", "a head or a model that proposes tokens, which is not known here")
    else:
        b.set("speculative", kind, method)
        if tokens is not None:
            b.set("draft_tokens", tokens.whole(maximum=64), tokens)
        if kind == "draft" and draft is not None:
            b.set("draft", draft.text().strip(), draft)
    for found in (tokens, draft):
        if found is not None and not any(s.origin.key == found.key for s in b.settings.values()):
            b.harmless(found)


def _adapters(b: Builder, flags: Flags) -> None:
    on = flags.on("enable_lora")
    if on is not None:
        b.doubt(on, "more", "room for adapters on every matrix, and their products")


_NUMBERS: Final = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch_size", "max_num_batched_tokens": "max_num_tokens",
}  # fmt: skip
_FLAG: Final = {"tensor_parallel_size": "tp_size", "pipeline_parallel_size": "pp_size"}


def _spelling(flags: Flags) -> Spell:
    """Return what writes an option into the file or, where it has no such key, as a flag."""

    def change(key: str, value: str | float) -> list[Change]:
        document = flags.holder(key)
        new = _FLAG.get(key, key) if document.form == "arguments" else key
        return [Change(document, key if document.has(key) else new, value)]

    def spell(name: str, value: str | bool) -> list[Change] | None:
        if isinstance(value, bool):
            return None
        if name in _NUMBERS and not (name == "tp" and any(d.has("enable_attention_dp") for d in flags.documents)):
            return change(_NUMBERS[name], int(value)) if value.isdecimal() else None
        nested = any(document.has("kv_cache_config") for document in flags.documents)
        if name == "gpu_memory_utilization":
            key = "kv_cache_config.free_gpu_memory_fraction"
            return change(key if nested else "free_gpu_memory_fraction", float(value))
        if name == "kv_dtype" and nested and value in ("fp8", "nvfp4"):
            return change("kv_cache_config.dtype", value)
        return None

    return spell


FAMILY: Final = Family("trtllm", "TensorRT-LLM (trtllm-serve, or its configuration file)", _claims, _read, _starts)
