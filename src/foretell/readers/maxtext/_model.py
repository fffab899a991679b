"""The model that MaxText's keys describe, as the content of a config.json.

Source: AI-Hypercomputer/maxtext e591f30 ``src/maxtext/configs/types.py`` (DecoderBlockType, get_individual_scales),
``src/maxtext/models/*.py``, ``src/maxtext/utils/globals.py`` HF_IDS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foretell.readers.maxtext._keys import SHAPE
from foretell.readers.maxtext._layers import MODEL_NAMES, NAMES, Layers, is_base

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder

__all__ = ["model"]

_ACTS: Final = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "relu": "relu", "sigmoid": "silu"}
_PLAIN: Final = {"default": "llama", "llama2": "llama", "mistral": "mistral", "gemma": "gemma", "olmo3": "olmo3"}
_UNDESCRIBED: Final = ("simple", "simple_mlp", "qwen3_custom_moe")
_SHAPED: Final = ("base_emb_dim", "base_num_decoder_layers", "decoder_block", "base_num_query_heads", "base_mlp_dim")


def model(b: Builder, layers: Layers) -> None:
    """Take the model: of the keys, or by the name that MaxText has for it."""
    named = layers.get(*MODEL_NAMES)
    name = "" if named is None else named.text().replace("-Instruct", "")
    if name not in ("", "default") and layers.model is None and named is not None:
        if name in NAMES:
            b.model(NAMES[name], named, f"MaxText's {name}, whose file is not here")
        else:
            b.needs("model", f"{named.where}: the file of {name} is not here")
        _overridden(b, layers, frozenset(SHAPE.split()))
        return
    if named is not None:
        b.harmless(named)
    if layers.model is not None and layers.run is not None:
        _overridden(b, layers, frozenset(layers.model.keys()))
    found = next((found for key in _SHAPED if (found := layers.get(key)) is not None), None)
    block = layers.word("decoder_block")
    if block in _UNDESCRIBED:
        b.needs("model", f"decoder_block {block} is not described here")
        return
    made = _described(b, layers, block)
    if made is None:
        decoder = layers.get("decoder_block")
        assert decoder is not None  # noqa: S101  # the default is described
        allowed = (*_PLAIN, *_MAKERS, *_UNDESCRIBED)
        raise decoder.error("is no decoder block of MaxText", allowed=allowed)
    label = name if name not in ("", "default") else f"{block} of MaxText's keys"
    b.model({**made, "_name_or_path": label}, found, "built as MaxText builds it")


def _overridden(b: Builder, layers: Layers, keys: frozenset[str]) -> None:
    """Say which keys of the run the model's file decides: it stands above the run's file, and below the command."""
    command, override = b.sources.overrides, layers.get("override_model_config")
    above = override is not None and override.flag()
    for key in sorted(keys):
        for document in layers.documents:
            found = None if document is layers.model or is_base(document) else document.get(key)
            of_model = None if layers.model is None else layers.model.at(key)
            if found is None or (of_model is not None and of_model.plain() == found.node.plain()):
                continue
            if document is command and not above:
                hint = "MaxText stops with this error, unless override_model_config=true"
                raise found.error("is said by the model's file as well", hint=hint)
            if document is command and layers.model is None:
                b.doubt(found, "both", "changes the model, whose file is not here")
            elif document is not command:
                b.note(f"{found.where}: {key} does nothing: the file of the model stands above it (pyconfig.py)")
                b.harmless(found)


def _scales(layers: Layers) -> tuple[int, int, int]:
    """Return what ``global_parameter_scale`` multiplies: width, heads with inner width, and layers (get_individual_scales)."""
    scale = layers.whole("global_parameter_scale", minimum=1)
    found = layers.get("global_parameter_scale")
    if scale & (scale - 1) or scale > 2**30:
        assert found is not None  # noqa: S101  # the default is 1
        raise found.error("must be a power of 2")
    base, rest = divmod(scale.bit_length() - 1, 3)
    return 2 ** (base + (rest > 1)), 2 ** (base + (rest > 0)), 2**base


def _described(b: Builder, layers: Layers, block: str) -> dict[str, Any] | None:
    """Return the content of a config.json; None where the block is not known."""
    width, heads, depth = _scales(layers)
    acts = layers.get("mlp_activations")
    if acts is not None and not any(acts.listed()):
        raise acts.error("must name an activation")
    words = ("silu", "linear") if acts is None else tuple(word.casefold() for word in acts.listed() if word)
    inner = heads * layers.whole("base_mlp_dim", minimum=1)
    of_expert = layers.whole("base_moe_mlp_dim")
    made: dict[str, Any] = {
        "hidden_size": width * layers.whole("base_emb_dim", minimum=1),
        "num_hidden_layers": depth * layers.whole("base_num_decoder_layers", minimum=1),
        "num_attention_heads": heads * layers.whole("base_num_query_heads", minimum=1),
        "num_key_value_heads": heads * layers.whole("base_num_kv_heads", minimum=1),
        "head_dim": layers.whole("head_dim", minimum=1),
        "intermediate_size": inner,
        "moe_intermediate_size": inner if of_expert < 1 else heads * of_expert,
        "vocab_size": layers.whole("vocab_size", minimum=1),
        **_capped(layers),
        "tie_word_embeddings": layers.flag("logits_via_embedding"),
        "hidden_act": _ACTS.get(words[0], words[0]),
        "attention_bias": layers.flag("attention_bias"),
        "max_position_embeddings": None,
        "sliding_window": None,
    }
    sparse, window = layers.whole("num_experts", minimum=1), layers.whole("sliding_window_size")
    if sparse > 1:
        experts = {"num_experts": sparse, "num_local_experts": sparse, "n_routed_experts": sparse}
        top = layers.whole("num_experts_per_tok", minimum=1)
        made |= {**experts, "num_experts_per_tok": top, "top_k_experts": top}
    if window > 0 and block not in _PLAIN:
        made["sliding_window"] = window
    if block in _PLAIN:
        return _plain(made, layers, block, gated=len(words) > 1, sparse=sparse > 1, window=window)
    maker = _MAKERS.get(block)
    return None if maker is None else maker(b, made, layers)


def _capped(layers: Layers) -> dict[str, Any]:
    """Return the soft caps, zero being none."""
    names = {"final_logits_soft_cap": "final_logit_softcapping", "attn_logits_soft_cap": "attn_logit_softcapping"}
    caps = {name: found.real(minimum=0) for key, name in names.items() if (found := layers.get(key)) is not None}
    return {name: cap for name, cap in caps.items() if cap}


def _plain(made: dict[str, Any], layers: Layers, block: str, *, gated: bool, sparse: bool, window: int) -> dict[str, Any]:
    """Llama's layer and those that differ in little; with experts, Mixtral's."""
    if sparse and block in ("default", "llama2", "mistral"):
        return {**made, "model_type": "mixtral", "intermediate_size": made["moe_intermediate_size"]}
    if not gated and block in ("default", "llama2", "mistral"):
        return {**made, "model_type": "gpt-generic", "norm": "rmsnorm", "position_embedding": "rope"}
    if layers.flag("use_qk_norm") and block in ("default", "llama2", "mistral"):
        return {**made, "model_type": "qwen3"}
    more = {"sliding_window": window} if window > 0 and block in ("mistral", "olmo3") else {}
    return {**made, **more, "model_type": _PLAIN[block]}


def _gpt3(_: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    rows = layers.whole("trainable_position_size")
    learned = {"position_embedding": "learned", "max_position_embeddings": rows} if rows > 0 else {"position_embedding": "none"}
    biased = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
    return {**made, **learned, **biased, "model_type": "gpt-generic", "norm": "layernorm", "hidden_act": "gelu"}


def _mixtral(_: Builder, made: dict[str, Any], _layers: Layers) -> dict[str, Any]:
    return {**made, "model_type": "mixtral", "intermediate_size": made["moe_intermediate_size"]}


def _gemma2(_: Builder, made: dict[str, Any], _layers: Layers) -> dict[str, Any]:
    return {**made, "model_type": "gemma2", "num_hidden_layers": 2 * made["num_hidden_layers"]}  # a local and a global one


def _gemma3(_: Builder, made: dict[str, Any], _layers: Layers) -> dict[str, Any]:
    return {**made, "model_type": "gemma3_text", "sliding_window_pattern": 6}


def _gemma4(_: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    few, wide = layers.whole("global_num_kv_heads"), layers.whole("global_head_dim")
    return {
        **made,
        "model_type": "gemma4_text",
        "global_head_dim": wide or made["head_dim"],
        "num_global_key_value_heads": few or made["num_key_value_heads"],
        "attention_k_eq_v": layers.flag("share_kv_projections"),
        "enable_moe_block": "num_experts" in made,
        "num_kv_shared_layers": layers.whole("num_kv_shared_layers"),
        "hidden_size_per_layer_input": layers.whole("hidden_size_per_layer_input"),
        "vocab_size_per_layer_input": layers.whole("vocab_size_per_layer_input"),
        "use_double_wide_mlp": layers.flag("use_double_wide_mlp"),
    }


def _small(b: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    """E2B (whose layers without keys are twice as wide) sees everything in every fifth layer, E4B in every sixth."""
    period = 5 if layers.flag("use_double_wide_mlp") else 6
    kinds = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(made["num_hidden_layers"])]
    return {**_gemma4(b, made, layers), "layer_types": kinds}


def _qwen(b: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    block, sparse = layers.word("decoder_block"), "num_experts" in made
    if block == "qwen2":
        return {**made, "model_type": "qwen2" if made["attention_bias"] else "llama"}
    if block == "envy" and (decoder := layers.get("decoder_block")) is not None:
        b.doubt(decoder, "memory", "Envy's layer is counted as that of Qwen 3 with experts")
    more = {"decoder_sparse_step": layers.whole("interleave_moe_layer_step", minimum=1)} if sparse else {}
    return {**made, **more, "model_type": "qwen3_moe" if sparse else "qwen3"}


def _next(_: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    block, sparse = layers.word("decoder_block"), "num_experts" in made
    kind = "qwen3_next" if block == "qwen3_next" else "qwen3_5_moe_text" if sparse else "qwen3_5_text"
    return {
        **made,
        "model_type": kind,
        "full_attention_interval": layers.whole("inhomogeneous_layer_cycle_interval", minimum=1),
        "shared_expert_intermediate_size": layers.whole("shared_experts") * made["moe_intermediate_size"],
        "linear_num_key_heads": layers.whole("gdn_num_key_heads", minimum=1),
        "linear_num_value_heads": layers.whole("gdn_num_value_heads", minimum=1),
        "linear_key_head_dim": layers.whole("gdn_key_head_dim", minimum=1),
        "linear_value_head_dim": layers.whole("gdn_value_head_dim", minimum=1),
        "linear_conv_kernel_dim": layers.whole("gdn_conv_kernel_dim", minimum=1),
        "partial_rotary_factor": _share(layers),
    }


def _share(layers: Layers) -> float:
    found = layers.get("partial_rotary_factor")
    return 1.0 if found is None else found.real(minimum=0, maximum=1)


def _gpt_oss(_: Builder, made: dict[str, Any], _layers: Layers) -> dict[str, Any]:
    return {**made, "model_type": "gpt_oss", "intermediate_size": made["moe_intermediate_size"]}


def _llama4(_: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    interval = layers.whole("nope_layer_interval")
    return {
        **made,
        "model_type": "llama4_text",
        "intermediate_size": made["moe_intermediate_size"],
        "intermediate_size_mlp": made["intermediate_size"],
        "interleave_moe_layer_step": layers.whole("interleave_moe_layer_step", minimum=1),
        "no_rope_layer_interval": interval if interval > 0 else made["num_hidden_layers"] + 1,
        "use_qk_norm": layers.flag("use_qk_norm"),
        "attention_chunk_size": layers.whole("chunk_attn_window_size"),
    }


def _deepseek(b: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    score, indexed = layers.get("routed_score_func"), layers.get("use_indexer")
    kind = "deepseek_v3" if score is not None and score.text() == "sigmoid" else "deepseek_v2"
    if indexed is not None and indexed.flag():
        kind = "deepseek_v32"
        made |= {"index_n_heads": layers.whole("indexer_n_heads"), "index_head_dim": layers.whole("indexer_head_dim")}
    streams = layers.get("mhc_expansion_rate")
    if streams is not None and streams.whole() > 1:
        b.doubt(streams, "more", "several residual streams: one is counted")
    made.pop("head_dim")
    return {
        **made,
        "model_type": kind,
        "q_lora_rank": layers.whole("q_lora_rank") or None,
        "kv_lora_rank": layers.whole("kv_lora_rank", minimum=1),
        "qk_nope_head_dim": layers.whole("qk_nope_head_dim"),
        "qk_rope_head_dim": layers.whole("qk_rope_head_dim"),
        "v_head_dim": layers.whole("v_head_dim", minimum=1),
        "n_shared_experts": layers.whole("shared_experts"),
        "first_k_dense_replace": layers.whole("first_num_dense_layers"),
    }


def _deepseek4(_: Builder, made: dict[str, Any], layers: Layers) -> dict[str, Any]:
    ratios = layers.get("compress_ratios")
    return {
        **made,
        "model_type": "deepseek_v4",
        "q_lora_rank": layers.whole("q_lora_rank"),
        "o_lora_rank": layers.whole("o_lora_rank"),
        "o_groups": layers.whole("o_groups"),
        "qk_rope_head_dim": layers.whole("qk_rope_head_dim"),
        "hc_mult": layers.whole("mhc_expansion_rate", minimum=1),
        "index_n_heads": layers.whole("indexer_n_heads"),
        "index_head_dim": layers.whole("indexer_head_dim"),
        "compress_ratios": [] if ratios is None else _numbers(ratios),
    }


def _numbers(found: Found) -> list[int]:
    words = found.listed()
    if not all(word.isdecimal() for word in words):
        raise found.error("must be a list of whole numbers")
    return [int(word) for word in words]


_MAKERS: Final = {
    "gpt3": _gpt3,
    "mixtral": _mixtral,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "gemma4_small": _small,
    "qwen2": _qwen,
    "qwen3": _qwen,
    "qwen3_moe": _qwen,
    "envy": _qwen,
    "qwen3_next": _next,
    "qwen3_5": _next,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "deepseek": _deepseek,
    "deepseek4": _deepseek4,
}
