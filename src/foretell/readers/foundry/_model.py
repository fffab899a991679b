"""The model of an llm-foundry file: MPT by its keys, or a name on the hub, with adapters.

Sources: mosaicml/llm-foundry 8c8dd48 ``llmfoundry/models/mpt/configuration_mpt.py``, ``models/utils/config_defaults.py``,
``models/layers/attention.py``, ``ffn.py``, ``norm.py``, ``models/hf/hf_base.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretell.readers._omegaconf import Fields
from foretell.readers.hf._common import attention_settings
from foretell.readers.hf._targets import listed_targets

if TYPE_CHECKING:
    from foretell.readers._omegaconf import Values
    from foretell.readers._reading import Builder

__all__ = ["DEFAULT", "VERSION", "model"]

VERSION: Final = "0.22"
DEFAULT: Final = f"default of llm-foundry {VERSION}"
_IMPLEMENTATIONS: Final = {"flash": "flash", "torch": "eager", "triton": "flash"}
"""``attn_impl``; ``triton`` until 0.4."""
_NORMS: Final = {
    "layernorm": "layernorm",
    "low_precision_layernorm": "layernorm",
    "rmsnorm": "rmsnorm",
    "low_precision_rmsnorm": "rmsnorm",
    "triton_rmsnorm": "rmsnorm",
}
_NETWORKS: Final = {
    "mptmlp": False,
    "mptglu": True,
    "te_ln_mlp": False,
    "torch_dmoe": False,
    "mb_moe": False,
    "mb_dmoe": False,
}
"""``ffn_type``: whether it is gated."""
_SPARSE: Final = ("torch_dmoe", "mb_moe", "mb_dmoe")
_GROUPS: Final = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
_ELSEWHERE: Final = {
    "openai_causal_lm": "asks a model behind an interface",
    "openai_chat": "asks a model behind an interface",
    "fmapi_causal_lm": "asks a model behind an interface",
    "fmapi_chat": "asks a model behind an interface",
}

_HARMLESS: Final = ("max_seq_len", "max_position_embeddings", "attn_config", "rope_scaling", "rope_theta", "use_cache")
"""Keys of ``config_overrides`` that change neither shapes nor kernels, beside ``attn_config.attn_impl``."""


@dataclass(frozen=True, slots=True)
class Model:
    """What the rest of the run has to know of the model."""

    own: bool
    """llm-foundry's own code (MPT), and not transformers'."""
    adapters: bool = False


def model(b: Builder, values: Values) -> Model:
    """Take the model, its attention and its adapters."""
    name = values.get("model.name")
    word = "" if name is None else name.text().strip().casefold()
    if name is not None and word in _ELSEWHERE:
        raise name.error(f"{_ELSEWHERE[word]}: no training run")
    if word in ("mpt_causal_lm", "mosaic_gpt"):
        _mpt(b, values)
        return Model(own=True)
    if word in ("hf_causal_lm", "hf_t5", "finetune_embedding_model", "contrastive_lm", "hf_prefix_lm"):
        return _hub(b, values, word)
    if name is not None:
        b.doubt(name, "both", "a model that is registered by code of your own")
    b.needs("model", "its file names a model that only its own code knows")
    return Model(own=True)


def _mpt(b: Builder, values: Values) -> None:
    """MPTConfig (``models/mpt/configuration_mpt.py``)."""
    reader = Fields(values, "model")
    whole = values.get("model")
    hidden, heads = reader.whole("d_model", 2048), reader.whole("n_heads", 16)
    no_bias, biased = reader.flag("no_bias"), reader.get("attention_bias")
    rope, alibi, learned = (reader.get(key) for key in ("attn_config.rope", "attn_config.alibi", "learned_pos_emb"))
    turned = rope is not None and rope.flag()
    silent = turned or (alibi is not None and alibi.flag()) or (learned is not None and not learned.flag())
    made: dict[str, Any] = {
        "model_type": "gpt-generic",
        "hidden_size": hidden,
        "num_hidden_layers": reader.whole("n_layers", 24),
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(reader, heads),
        "vocab_size": reader.whole("vocab_size", 50368),
        "max_position_embeddings": reader.whole("max_seq_len", 2048),
        "position_embedding": "rope" if turned else "none" if silent else "learned",
        "attention_bias": biased.flag() if biased is not None else not no_bias,
        "attention_out_bias": not no_bias,
        "mlp_bias": not no_bias,
        "tie_word_embeddings": reader.flag("tie_word_embeddings", default=True),
        "qk_layernorm": reader.flag("attn_config.qk_ln") or reader.flag("attn_config.qk_gn"),
    }
    width, window = reader.get("head_dim"), reader.get("attn_config.sliding_window_size")
    if width is not None:
        made["head_dim"] = width.whole()
    if window is not None and window.node.value != -1:
        made["sliding_window"] = window.whole()
    norm = reader.get("norm_type")
    made["norm"] = "layernorm" if norm is None else norm.choice(_NORMS)
    made |= _network(b, reader, hidden)
    b.model({**made, "_name_or_path": "MPT of model.*"}, whole, f"built as llm-foundry {VERSION} builds it")
    found = reader.get("attn_config.attn_impl")
    if found is not None:
        b.set("attention", found.choice(_IMPLEMENTATIONS), found)
    b.default("attention", "flash", f"{DEFAULT} (models/utils/config_defaults.py)")
    _dropout(b, reader)


def _kv_heads(reader: Fields, heads: int) -> int:
    kind = reader.get("attn_config.attn_type")
    word = _GROUPS[0] if kind is None else kind.choice({name: name for name in _GROUPS})
    given = reader.get("attn_config.kv_n_heads")
    if word == _GROUPS[1]:
        return 1
    if word == _GROUPS[2] and given is None and kind is not None:
        raise kind.error("needs attn_config.kv_n_heads")
    return given.whole() if given is not None and word == _GROUPS[2] else heads


def _network(b: Builder, reader: Fields, hidden: int) -> dict[str, Any]:
    """Return the feed-forward network (``models/layers/ffn.py``)."""
    ratio, width = reader.get("expansion_ratio"), reader.get("ffn_config.ffn_hidden_size")
    product = hidden * (4.0 if ratio is None else ratio.real(minimum=0, maximum=1000))
    if width is None and ratio is not None and product != int(product):
        raise ratio.error("times d_model must be a whole number")
    kind, act = reader.get("ffn_config.ffn_type"), reader.get("ffn_config.ffn_act_fn.name")
    word = "mptmlp" if kind is None else kind.text().strip().casefold()
    gated = False if kind is None else kind.choice(_NETWORKS)
    made: dict[str, Any] = {
        "intermediate_size": int(product) if width is None else width.whole(),
        "hidden_act": "gelu" if act is None else act.text(),
        "gated_mlp": gated,
    }
    if word == "te_ln_mlp" and kind is not None:
        b.doubt(kind, "both", "Transformer Engine's fused norm and network")
    if word not in _SPARSE:
        return made
    experts, top_k, style = (reader.get(f"ffn_config.{key}") for key in ("moe_num_experts", "moe_top_k", "mlp_type"))
    made["num_experts"] = 1 if experts is None else experts.whole()
    made["num_experts_per_tok"] = 1 if top_k is None else top_k.whole()
    made["gated_mlp"] = style is not None and style.text().casefold() == "glu"
    return made


def _dropout(b: Builder, reader: Fields) -> None:
    """Take the dropout of the residual stream, which is zero unless it is said; others are named."""
    found = {key: reader.get(key) for key in ("resid_pdrop", "emb_pdrop", "attn_config.attn_pdrop", "attn_pdrop")}
    rates = {key: one.real(minimum=0, maximum=1) for key, one in found.items() if one is not None}
    for key, one in found.items():
        if one is None:
            continue
        if rates[key] and len(set(rates.values())) == 1 and len(rates) > 2:
            b.set("dropout", rates[key], one)
        elif rates[key]:
            b.doubt(one, "more-memory", "dropout keeps a mask")
        else:
            b.harmless(one)


def _hub(b: Builder, values: Values, word: str) -> Model:
    """A model of transformers by its name on the hub (``models/hf/hf_base.py``)."""
    named = values.get("model.pretrained_model_name_or_path")
    if named is None:
        b.needs("model", "model.pretrained_model_name_or_path is not in the file")
    else:
        b.model(named.text(), named)
    if word not in ("hf_causal_lm", "hf_t5") and (kind := values.get("model.name")) is not None:
        b.doubt(kind, "both", "trains embeddings: pairs of texts, and another loss")
    own = named is not None and named.text().startswith("mosaicml/mpt")
    flash, chosen = values.get("model.use_flash_attention_2"), values.get("model.attn_implementation")
    inner = values.get("model.config_overrides.attn_config.attn_impl", "model.attn_config.attn_impl")
    if flash is not None and flash.flag():
        b.set("attention", "flash", flash)
    elif chosen is not None:
        attention_settings(b, chosen)
    elif inner is not None:
        b.set("attention", inner.choice(_IMPLEMENTATIONS), inner)
    elif flash is not None:
        b.harmless(flash)
    b.default("attention", "flash" if own else "eager", f"{DEFAULT} (models/hf/hf_base.py build_inner_model)")
    for name in values.below("model.config_overrides"):
        changed = values.written(f"model.config_overrides.{name}")
        if changed is not None and name in _HARMLESS:
            b.harmless(changed)
        elif changed is not None:
            b.doubt(changed, "both", "changes the model, which is counted as its own configuration says")
    return Model(own=own, adapters=_adapters(b, values))


def _adapters(b: Builder, values: Values) -> bool:
    """PEFT's LoraConfig, the only kind that llm-foundry takes."""
    whole = values.get("model.peft_config")
    if whole is None:
        return False
    kind = values.get("model.peft_config.peft_type")
    if kind is not None and kind.text().strip().upper() != "LORA":
        raise kind.error("is not an adapter that llm-foundry trains", allowed=("LORA",))
    rank, targets = values.get("model.peft_config.r"), values.get("model.peft_config.target_modules")
    if rank is not None:
        b.set("lora_rank", rank.whole(maximum=2**20), rank)
    b.default("lora_rank", 8, "default of PEFT's LoraConfig")
    if targets is None:
        b.needs("lora_targets", "target_modules is not in the file: PEFT chooses by the kind of model")
    else:
        listed_targets(b, targets)
    dropout, more = values.get("model.peft_config.lora_dropout"), values.get("model.peft_config.modules_to_save")
    if dropout is not None:
        b.set("lora_dropout", dropout.real(minimum=0, maximum=1), dropout)
    b.default("lora_dropout", 0.0, "default of PEFT's LoraConfig")
    if more is not None:
        b.set("modules_to_save", more.listed(), more)
    dora = values.get("model.peft_config.use_dora")
    if dora is not None and dora.flag():
        b.set("lora_kind", "dora", dora)
    return True
