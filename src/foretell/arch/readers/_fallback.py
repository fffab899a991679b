"""An unknown model type: read as what its keys describe, or refused with the list of what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from foretell.arch.readers._config import Config
from foretell.arch.readers._registry import Reader, find_reader, known_model_types
from foretell.errors import ConfigError

_KEYS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab_size": ("vocab_size",),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "moe_intermediate_size"),
}
"""What a decoder needs, under any of its names."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_UNREADABLE = (
    "state_size",
    "ssm_state_size",
    "mamba_d_state",
    "linear_num_value_heads",
    "linear_attn_config",
    "conv_L_cache",
    "hybrid_override_pattern",
    "layers_block_type",
    "attn_layer_period",
    "block_configs",
    "block_types",
    "hc_mult",
    "compress_ratios",
    "encoder_layers",
    "num_decoder_layers",
    "is_encoder_decoder",
    "_class_name",
)
"""Keys of layers that are no plain decoder layers: a guess would be wrong by far."""
_TEXT = ("text_config", "llm_config", "language_config")


def _by_class(raw: Mapping[str, object]) -> str | None:
    """The known model type whose class ``architectures`` names (``LlamaForCausalLM`` -> ``llama``)."""
    named = raw.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if not first.endswith("ForCausalLM"):
        return None
    plain = first.removesuffix("ForCausalLM").lower()
    known = {t.replace("_", "").replace("-", ""): t for t in known_model_types()}
    return {"decilm": "nemotron-nas", "rw": "RefinedWebModel"}.get(plain) or known.get(plain)


def fallback(cfg: Config) -> tuple[Reader, Config, tuple[str, ...]]:
    """A reader for an unknown model type, the configuration to give it, and notes that say what was assumed."""
    known = _by_class(cfg.raw)
    read = find_reader(known) if known else None
    if read is not None and known:
        note = f"model_type {cfg.model_type!r} is unknown: read as {known!r}, which its class name says"
        return read, cfg.like(known), (note,)
    if not any(key in cfg.raw for key in _KEYS["hidden_size"]):
        for key in _TEXT:
            nested = cfg.raw.get(key)
            if isinstance(nested, Mapping):
                child = Config(nested, where=cfg.where, prefix=f"{key}.")
                read = find_reader(child.model_type)
                note = f"model_type {cfg.model_type!r} is unknown: only its {key} is read, without any other tower"
                if read is not None:
                    return read, child, (note,)
                read, child, notes = fallback(child)
                return read, child, (note, *notes)
    missing = [key for key, names in _KEYS.items() if not any(cfg.has(name) for name in names)]
    strange = [key for key in _UNREADABLE if cfg.raw.get(key) not in (None, False)]
    if missing or strange:
        why = f"missing: {', '.join(missing)}" if missing else f"not with {', '.join(strange)}"
        raise ConfigError(
            "is not a model type that can be read",
            field="model_type",
            value=cfg.model_type or None,
            allowed=f"a known model type, or a plain decoder with {', '.join(_KEYS)} ({why})",
            where=cfg.where,
            hint=f"{len(known_model_types())} model types are known: `foretell catalog list model-types`",
        )
    like = "llama"
    if cfg.has("kv_lora_rank"):
        like = "deepseek_v3"
    elif any(cfg.has(key) for key in _EXPERTS):
        like = "mixtral"
    read = find_reader(like)
    if read is None:  # pragma: no cover - the three are always there
        raise cfg.error("model_type", cfg.model_type, "a known model type", "correct the value")
    note = f"model_type {cfg.model_type!r} is unknown: read as a decoder like {like!r} from its standard keys"
    return read, cfg, (note,)
