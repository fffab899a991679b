"""SGLang: ``python -m sglang.launch_server --model-path MODEL``, ``sglang serve MODEL``, and the files of flags that these name.

Source: SGLang 0.5.23 (python/sglang/srt/arg_groups/fields/*.py and parallel_hook.py, cli/serve.py, server_args.py).
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
    human,
    words_of,
)
from foretell.readers.engines._model import Served, known_draft, served_model
from foretell.readers.engines._sglang_keys import GRAMMAR, LORA, TABLES
from foretell.readers.engines._variables import sglang_variable

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._launch import Launcher
    from foretell.readers._reading import Spell

__all__ = ["FAMILY"]

_MODULES: Final = (
    "sglang.launch_server",
    "sglang_router.launch_server",
    "sglang.srt.server",
    "sglang.srt.entrypoints.http_server",
)
_SIGNS: Final = GRAMMAR.known - {"dtype", "quantization", "config", "device", "host", "port", "revision", "nnodes", "node_rank"}
_SURE: Final = 0.65
_DTYPES: Final = {"auto": None, "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
_CACHES: Final = {"auto": None, "bf16": "bf16", "bfloat16": "bf16", "fp8_e5m2": "fp8_e5m2", "fp8_e4m3": "fp8_e4m3",
                  "fp4_e2m1": "nvfp4", "mxfp4": "nvfp4", "mxfp8": "fp8"}  # fmt: skip
_ONLINE: Final = {"fp8": "fp8", "mxfp8": "mxfp8", "nvfp4_online": "nvfp4", "w8a8_fp8": "fp8", "w8a8_int8": "int8"}
"""What SGLang makes of 16 bits while it loads (server_args.py QUANTIZATION_CHOICES)."""
_STORED: Final = {
    "awq": "int4", "awq_marlin": "int4", "gptq": "int4", "gptq_marlin": "int4", "marlin": "int4", "moe_wna16": "int4",
    "w4afp8": "int4", "modelopt": "fp8", "modelopt_fp8": "fp8", "modelopt_fp4": "nvfp4", "petit_nvfp4": "nvfp4", "mxfp4": "mxfp4",
    "mxfp_w4a8": "mxfp4", "quark_mxfp4": "mxfp4", "quark_int4fp8_moe": "int4",
}  # fmt: skip
_OWN: Final = ("compressed-tensors", "auto-round", "auto-round-int8", "modelopt_mixed", "modelslim", "quark", "gguf", "humming",
               "unquant", "qoq", "mlx_q4", "mlx_q8")  # fmt: skip
_NO_MODEL: Final = ("NGRAM", "NONE")
_HEADS: Final = ("DFLASH", "DSPARK", "DOMINO", "UNO", "PHOENIX", "LOOKAHEAD")
_SPREAD: Final = ("deepep", "mooncake", "nixl", "mori", "ascend_fuseep", "flashinfer", "megamoe", "deepep_v2", "pplx")
"""Ways of routed tokens that spread the experts over all ranks of tensor parallelism."""


def _claims(document: Document) -> float:
    keys = {key.replace("-", "_") for key in document.keys()}  # noqa: SIM118  # no mapping
    keys = {GRAMMAR.short.get(key, key) for key in keys}
    if not keys:
        return 0.0
    own, known = len(keys & _SIGNS), len(keys & GRAMMAR.known)
    named = 1.0 if "model_path" in keys else 0.75
    return _SURE * named * known / len(keys) * min(1.0, own / 2) if own else 0.0


def _starts(launch: Launcher) -> bool:
    return launch.name == "sglang" or launch.program in _MODULES


def _read(sources: Sources) -> Reading:
    b = Builder("sglang", sources, verb="serve")
    command = sources.main if sources.main.form == "arguments" else None
    flags, single = _flags(sources, command)
    named = flags.get("model_path")
    model, served = single or named, Served()
    if model is not None:
        served = served_model(b, model)
    else:
        b.needs("model", "the flags name no model (--model-path)")
    b.default("engine", "sglang", "the program that is started")
    engine_version(b, "sglang")
    _formats(b, flags, served)
    ranks = _layout(b, flags, served)
    _limits(b, flags, ranks)
    _graphs(b, flags)
    _speculation(b, flags)
    _adapters(b, flags)
    embeds = flags.on("is_embedding")
    if embeds is not None:
        b.doubt(embeds, "both", "the server makes embeddings, no tokens: it is counted as if it made tokens")
    kind = flags.get("model_type", "load_format")
    if kind is not None:
        b.harmless(kind)
    flags.rest(b, TABLES, GRAMMAR, "SGLang")
    b.world()
    b.settings.pop("gpus", None)
    engine_variables(b, ("SGLANG_", "SGL_"), sglang_variable)
    return b.reading(_spelling(flags, served))


def _flags(sources: Sources, command: Document | None) -> tuple[Flags, Found | None]:
    """Return the flags of the command above those of its file, and the model that stands alone."""
    if command is None:
        return Flags((file_flags(sources.main, GRAMMAR),)), None
    given = command_flags(sources, GRAMMAR)
    sources.main = given
    words = words_of(given)
    launch = sources.launch
    if launch is not None and launch.name == "sglang":
        verb = words.pop(0).text() if words else "help"
        if verb != "serve":
            raise refused(command, f"sglang {verb} starts no server that is known here", hint="Known is sglang serve MODEL")
    documents = [given, *followed(sources, given, GRAMMAR, _claims)]
    if len(words) <= 1:
        given.get(POSITIONAL)
    return Flags(tuple(dict.fromkeys(documents))), alone(words)


def _formats(b: Builder, flags: Flags, served: Served) -> None:
    """Take the formats of weights, and of keys and values."""
    method, dtype = flags.get("quantization"), flags.get("dtype")
    known = served.quantized or b.given("weights") is not None
    if method is not None:
        word = method.text().strip().casefold()
        if word in _ONLINE and not known:
            b.set("weights", _ONLINE[word], method)
        elif known or word in _OWN:
            b.harmless(method)
            if not known and word != "unquant":
                b.doubt(
                    method, "memory", "the checkpoint's own file says how it is stored, and is not known: 16 bits are counted"
                )
        elif word in _STORED:
            b.set("weights", _STORED[word], method)
        elif word == "bitsandbytes":
            b.set("weights", "int4", method, "bitsandbytes: 4 bits and a scale for each 64")
            b.doubt(method, "memory", "bitsandbytes keeps 4.5 bits a weight; int4 is counted")
        else:
            raise method.error("is no quantisation of SGLang that is known here",
                               allowed=sorted((*_ONLINE, *_STORED, *_OWN, "bitsandbytes")))  # fmt: skip
    if dtype is not None:
        half = dtype.choice(_DTYPES)
        if method is None and not known and half is not None:
            b.set("weights", half, dtype)
        else:
            b.harmless(dtype)
    kept = flags.get("kv_cache_dtype")
    if kept is not None:
        b.set("kv_dtype", kept.choice(_CACHES), kept)


def _layout(b: Builder, flags: Flags, served: Served) -> int:
    """Take the layout; return how many ranks attention has of its own, which share the limits."""
    tp, dp, own = flags.get("tp_size"), flags.get("dp_size"), flags.get("attn_dp_size")
    flags.count(b, "pp", "pp_size")
    every = 1 if tp is None else tp.whole()
    switch = flags.on("enable_dp_attention")
    if own is not None and own.whole() > 1:
        ranks, at = own.whole(), own
    elif switch is not None and dp is not None:
        ranks, at = dp.whole(), dp
    else:
        ranks, at = 1, None
    if switch is not None:
        b.harmless(switch)
    if at is not None and every % ranks:
        raise at.error(f"must divide tp_size {every}: the ranks of attention are of tensor parallelism")
    if tp is not None:
        b.set("tp", every // ranks, tp, "" if ranks == 1 else f"{every} ranks, of which attention's copies take {ranks}")
    if at is not None and ranks > 1:
        b.set("dp", ranks, at, "attention has copies on the ranks of tensor parallelism")
        b.set("dp_kind", "attention", at)
    elif dp is not None:
        b.set("dp", dp.whole(), dp)
    for found in (dp, own):
        if found is not None and found is not at and (ranks > 1 or found is own):
            b.harmless(found)
    _experts(b, flags, served, every)
    nodes = flags.get("nnodes")
    if nodes is not None:
        b.harmless(nodes)
        stages = b.given("pp") or 1
        world = every * (stages if isinstance(stages, int) else 1)
        if nodes.whole() > 1 and world % nodes.whole() == 0:
            b.set("gpus_per_node", world // nodes.whole(), nodes, "ranks over nodes")
    return ranks


def _experts(b: Builder, flags: Flags, served: Served, every: int) -> None:
    """Take how many ranks share the experts."""
    ep, way = flags.get("ep_size"), flags.get("moe_a2a_backend")
    spread = way is not None and way.text().strip().casefold() in _SPREAD
    if way is not None and spread:
        b.doubt(way, "both", "how routed tokens travel, with buffers of its own")
    elif way is not None:
        b.harmless(way)
    if served.architecture is not None and not served.experts:
        if ep is not None:
            b.harmless(ep)
    elif spread and way is not None and every > 1:
        b.set("ep", every, way, "such a way spreads experts over all ranks")
        if ep is not None:
            b.harmless(ep)
    elif ep is not None:
        b.set("ep", ep.whole(), ep)


def _limits(b: Builder, flags: Flags, ranks: int) -> None:
    """Take the scheduler's limits, each of one rank of attention, and the memory flag."""
    flags.count(b, "max_model_len", "context_length")
    flags.share(b, "gpu_memory_utilization", "mem_fraction_static")
    flags.count(b, "block_size", "page_size")
    running, chunk = flags.get("max_running_requests"), flags.get("chunked_prefill_size")
    why = f"of each of {ranks} ranks of attention" if ranks > 1 else ""
    if running is not None:
        b.set("max_num_seqs", max(1, human(running) // ranks), running, why)
    if chunk is not None and chunk.text().strip() == "-1":
        b.set("chunked_prefill", value=False, found=chunk, why="-1: prompts are read whole")
    elif chunk is not None:
        b.set("max_num_batched_tokens", max(1, human(chunk) // ranks), chunk, why)


def _graphs(b: Builder, flags: Flags) -> None:
    """Take whether CUDA graphs are captured."""
    off = flags.get("disable_cuda_graph", "disable_decode_cuda_graph")
    if off is not None:
        b.set("enforce_eager", off.flag(), off)
    kind = flags.get("cuda_graph_backend_decode")
    if kind is not None and kind.text().strip().casefold() == "disabled":
        b.set("enforce_eager", value=True, found=kind)
    elif kind is not None:
        b.doubt(kind, "both", "what is captured as CUDA graphs")


def _speculation(b: Builder, flags: Flags) -> None:
    """Take who proposes tokens, and how many."""
    method, draft = flags.get("speculative_algorithm"), flags.get("speculative_draft_model_path")
    steps, wide, tokens = (flags.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    rest = [found for found in (draft, steps, wide, tokens) if found is not None]
    if method is None:
        for found in rest:
            b.harmless(found)
        return
    word = method.text().strip().upper()
    kind = {"EAGLE": "eagle", "EAGLE3": "eagle", "NEXTN": "mtp", "STANDALONE": "draft", "FROZEN_KV_MTP": "mtp"}.get(word)
    if word == "EAGLE" and draft is None:
        kind = "mtp"  # the model's own layer
    if word in _NO_MODEL:
        b.doubt(method, "speed", "tokens are proposed from the text itself, which takes no memory")
    elif word in _HEADS:
        b.doubt(method, "more", "a head that proposes tokens, which is not known here")
    elif kind is None:
        allowed = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", *_HEADS, *_NO_MODEL)
        raise method.error("is no way of proposing tokens that is known here", allowed=allowed)
    elif kind == "draft" and (draft is None or not known_draft(draft.text().strip())):
        b.doubt(method, "more", "the model that proposes tokens is not known here")
    else:
        b.set("speculative", kind, method)
        if steps is not None:
            b.set("draft_tokens", steps.whole(maximum=64), steps)
        elif tokens is not None:
            b.set("draft_tokens", max(1, tokens.whole(maximum=65) - 1), tokens, "less the one before them")
        if kind == "draft" and draft is not None:
            b.set("draft", draft.text().strip(), draft)
        if wide is not None and wide.whole() > 1:
            b.doubt(wide, "speed", "several tokens are proposed at a place, as a tree; one is counted")
            rest.remove(wide)
    for found in rest:
        if not any(s.origin.key == found.key for s in b.settings.values()):
            b.harmless(found)


def _adapters(b: Builder, flags: Flags) -> None:
    """Adapters that are served take room on every matrix."""
    on, paths = flags.get("enable_lora"), flags.get("lora_paths")
    if paths is not None:
        b.doubt(paths, "more", "adapters on every matrix, and their products")
    elif on is not None and on.flag():
        b.doubt(on, "more", "room for adapters on every matrix, and their products")
    if on is not None and (paths is not None or not on.flag()):
        b.harmless(on)
    for key in LORA:
        found = flags.get(key)
        if found is not None:
            b.harmless(found)


_NUMBERS: Final = {"pp": "pp-size", "max_model_len": "context-length", "block_size": "page-size"}
_SHARED: Final = {"max_num_seqs": "max-running-requests", "max_num_batched_tokens": "chunked-prefill-size"}


def _spelling(flags: Flags, served: Served) -> Spell:
    """Return what writes an option as a flag."""

    def change(flag: str, value: str | float) -> list[Change]:
        key = flag.replace("-", "_")
        document = flags.holder(key)
        return [Change(document, key if document.has(key) else flag, value)]

    def spell(name: str, value: str | bool) -> list[Change] | None:
        if isinstance(value, bool):
            eager = name == "enforce_eager" and value
            return [Change(flags.holder("disable_cuda_graph"), "disable-cuda-graph", value=True, flag=True)] if eager else None
        plain = not any(document.has(key) for document in flags.documents for key in ("attn_dp_size", "enable_dp_attention"))
        number = _NUMBERS.get(name) or (_SHARED | {"tp": "tp-size"} if plain else {}).get(name)
        if number is not None:
            return change(number, int(value)) if value.isdecimal() else None
        if name == "gpu_memory_utilization":
            return change("mem-fraction-static", float(value))
        if name == "kv_dtype" and value in ("fp8", "fp8_e4m3", "fp8_e5m2"):
            return change("kv-cache-dtype", "fp8_e4m3" if value == "fp8" else value)
        if name == "weights" and value == "fp8" and not served.quantized:
            return change("quantization", "fp8")
        return None

    return spell


FAMILY: Final = Family("sglang", "SGLang (sglang.launch_server, or a file of its flags)", _claims, _read, _starts)
