"""Models that a configuration names by a class, which has their shape as its defaults.

Source: NVIDIA/NeMo v2.4 ``nemo/collections/llm/gpt/model``, NVIDIA-NeMo/Megatron-Bridge v0.2.0 to v0.6.0
``src/megatron/bridge/models``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from foretell.catalog import loader
from foretell.readers.bridge._fields import made, short
from foretell.readers.megatron._model import Shape

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Builder, Sources
    from foretell.readers.bridge._fields import Fields

__all__ = ["CLASSES", "FULL", "dropped", "experts", "named_model", "of_class"]

CLASSES: Final = {
    "llama2config7b": "llama-2-7b", "llama2config13b": "llama-2-13b", "llama2config70b": "llama-2-70b",
    "llama3config8b": "llama-3-8b", "llama3config70b": "llama-3-70b", "llama31config8b": "llama-3.1-8b",
    "llama31config70b": "llama-3.1-70b", "llama31config405b": "llama-3.1-405b", "llama32config1b": "llama-3.2-1b",
    "llama32config3b": "llama-3.2-3b", "codellamaconfig34b": "codellama-34b", "mistralconfig7b": "mistral-7b-v0.1",
    "mistralnemoconfig12b": "mistral-nemo-12b", "mistralnemoconfig123b": "mistral-large-123b",
    "mixtralconfig8x7b": "mixtral-8x7b", "mixtralconfig8x22b": "mixtral-8x22b", "nemotron4config15b": "nemotron-4-15b",
    "nemotron4config340b": "nemotron-4-340b", "gemmaconfig2b": "gemma-2b", "gemmaconfig7b": "gemma-7b",
    "gemma2config2b": "gemma-2-2b", "gemma2config9b": "gemma-2-9b", "gemma2config27b": "gemma-2-27b",
    "qwen2config500m": "qwen2-0.5b", "qwen2config1p5b": "qwen2-1.5b", "qwen2config7b": "qwen2-7b", "qwen2config72b": "qwen2-72b",
    "qwen25config500m": "qwen2.5-0.5b", "qwen25config1p5b": "qwen2.5-1.5b", "qwen25config3b": "qwen2.5-3b",
    "qwen25config7b": "qwen2.5-7b", "qwen25config14b": "qwen2.5-14b", "qwen25config32b": "qwen2.5-32b",
    "qwen25config72b": "qwen2.5-72b", "qwen3config600m": "qwen3-0.6b", "qwen3config1p7b": "qwen3-1.7b",
    "qwen3config4b": "qwen3-4b", "qwen3config8b": "qwen3-8b", "qwen3config14b": "qwen3-14b", "qwen3config32b": "qwen3-32b",
    "qwen3config30b_a3b": "qwen3-30b-a3b", "qwen3config235b_a22b": "qwen3-235b-a22b", "deepseekv3config": "deepseek-v3",
    "deepseekv2config": "deepseek-v2", "deepseekv2liteconfig": "deepseek-v2-lite", "gptossconfig120b": "gpt-oss-120b",
    "gptossconfig20b": "gpt-oss-20b", "nemotronhconfig8b": "nemotron-h-8b", "nemotronhconfig56b": "nemotron-h-56b",
    "codellamaconfig7b": "codellama-7b", "codellamaconfig13b": "codellama-13b", "llama31nemotronnano8bconfig": "llama-3.1-8b",
    "llama31nemotron70bconfig": "llama-3.1-70b", "llama4experts16config": "llama-4-scout",
    "llama4experts128config": "llama-4-maverick", "mistralconfig": "mistral-7b-v0.3",
    "mistralsmall3config24b": "mistral-small-24b",
    "gemma3config1b": "gemma-3-1b", "gemma3config4b": "gemma-3-4b", "gemma3config12b": "gemma-3-12b",
    "gemma3config27b": "gemma-3-27b", "qwen3moeconfig30b_a3b": "qwen3-30b-a3b", "qwen3moeconfig235b_a22b": "qwen3-235b-a22b",
    "qwen3nextconfig80b_a3b": "qwen3-next-80b-a3b", "kimik2config": "kimi-k2", "glm45config355b": "glm-4.5",
    "glm45airconfig106b": "glm-4.5-air", "olmoeconfig": "olmoe-7b-a1b", "nemotronhmodel8bconfig": "nemotron-h-8b",
    "nemotronhmodel56bconfig": "nemotron-h-56b", "nemotronnanoconfig9bv2": "nemotron-nano-9b-v2",
    "nemotronnano9bv2config": "nemotron-nano-9b-v2", "nemotron3nanoconfig": "nemotron-3-nano-30b-a3b",
    "starcoder2config3b": "starcoder2-3b", "starcoder2config7b": "starcoder2-7b", "starcoder2config15b": "starcoder2-15b",
}  # fmt: skip
"""Classes of NeMo 2 (in lower case) -> models of the catalog.

Megatron-Bridge's (v0.2.0 to v0.3.1 ``models/*/*_provider.py``) are called alike but for ``ModelProvider`` or ``Provider``.
"""
_BARE: Final = re.compile(
    r"gpt(?:model|distillation)?config(?:126m|5b|7b|20b|40b)?|mla(?:model)?config|(?:mla)?transformerconfig|gptmodelconfig"
    r"|distillationconfig|t5config\w*"
)
"""Classes that keep Megatron-Core's 0.1 of dropout; those of named models set 0 (Megatron-Bridge v0.2.0 to v0.6.0 ``models``)."""
_FIRST: Final = ("model.mcore_gpt", "model.encoder_seq_length", "model.megatron_amp_O2", "model.optim", "model.mcore_bert")
"""Keys of NeMo 1, which names no classes."""
_OWN: Final = ("num_layers", "hidden_size", "num_attention_heads", "padded_vocab_size")
_SIZES: Final = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "num_attention_heads": ("num_attention_heads",),
    "padded_vocab_size": ("vocab_size",),
    "num_query_groups": ("num_key_value_heads",),
    "ffn_hidden_size": ("intermediate_size",),
    "kv_channels": ("head_dim",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "moe_router_topk": ("num_experts_per_tok",),
    "moe_ffn_hidden_size": ("moe_intermediate_size",),
}
"""Argument -> keys of config.json for it."""
_OTHER: Final = frozenset((
    "normalization", "gated_linear_unit", "activation_func", "position_embedding_type", "disable_bias_linear", "add_qkv_bias",
    "untie_embeddings_and_output_weights", "qk_layernorm", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
    "qk_pos_emb_head_dim", "v_head_dim", "moe_layer_freq", "moe_shared_expert_intermediate_size", "window_size", "softmax_type",
    "hybrid_layer_pattern", "hybrid_override_pattern", "mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mamba_num_heads",
    "linear_attention_freq", "experimental_attention_variant",
))  # fmt: skip
"""Fields of a model's make that a class has of its own."""
FULL: Final = frozenset(("hidden_size", "num_attention_heads", "normalization"))
"""Fields that a whole dump has, the defaults of its class included."""


def named_model(sources: Sources) -> tuple[Found, str] | None:
    """Return the model that a class names: ``..._target_: ...Llama3Config8B``, ``Llama31ModelProvider70B``."""
    for key in ("model.config._target_", "model._target_"):
        found = sources.get(key)
        name = None if found is None else CLASSES.get(_plain(found))
        if found is not None and name is not None:
            return found, name
    return None


def dropped(sources: Sources, *, bert: bool) -> float:
    """Return the dropout of a configuration that does not say it: 0 but for bare classes and NeMo 1."""
    found = sources.get("model.config._target_", "model.transformer._target_", "model._target_")
    bare = found is not None and _BARE.fullmatch(_plain(found)) is not None
    old = any(
        document is not None and document.at(key) is not None for document in (sources.main, sources.overrides) for key in _FIRST
    )
    return 0.1 if bare or old or bert else 0.0


def _plain(found: Found) -> str:
    """Return a class by the name that NeMo 2 gives it."""
    return re.sub("(?:model)?provider", "config", short(found))


def experts(found: Found) -> dict[str, Found]:
    """Return what all classes of models with experts set in place of Megatron-Core's defaults."""
    own = {"moe_grouped_gemm": made(found, value=True), "moe_token_dispatcher_type": made(found, "alltoall")}
    return {name: replace(value, key=name) for name, value in own.items()}


def of_class(b: Builder, view: Fields, found: Found, model: str) -> Shape:
    """Take the model that a class has as its defaults, with the sizes that are given in place of its own."""
    entry: dict[str, Any] = loader.model_entry(model)["config"]
    config: dict[str, Any] = entry.get("text_config", entry)
    other: dict[str, Any] = {}
    for name, keys in _SIZES.items():
        size, key = view.whole(name), next((key for key in keys if key in config), keys[0])
        if size is not None and size != config.get(key):
            other[key] = size
    patterned = {"num_layers"} if "hybrid_override_pattern" in config else set[str]()
    for name in sorted((_OTHER | patterned) & view.found.keys()):
        b.doubt(view.found[name], "both", f"{model} is taken as its class has it, whatever this field says")
    ahead, left = view.whole("mtp_num_layers", 0, minimum=0) or 0, "prediction layers have no description here: they are left out"
    if model.startswith("deepseek-v3"):
        left = ""
    elif ahead:
        b.doubt(view.found["mtp_num_layers"], "more", left)
    elif model.startswith("glm-4.5") and "mtp_num_layers" not in view.found:  # models/glm/glm45_provider.py (v0.2.0)
        b.doubt_default("mtp_num_layers", "more", f"1; {left}")
    b.model({**config, **other} if other or config is not entry else model, found, f"the defaults of this class: {model}")
    config = config | other
    count: int = next((config[key] for key in _SIZES["num_experts"] if key in config), 0) or 0
    layers, hidden, heads, vocab = (config[_SIZES[name][0]] for name in _OWN)
    return Shape(layers, hidden, heads, vocab, experts=count, predicting=0 if left else ahead)
