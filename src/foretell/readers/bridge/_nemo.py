"""What NeMo 1 spells in its own way, recipes of precision by name, and models by the name of their class.

Source: NVIDIA/NeMo v2.4 ``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``, ``nemo/collections/nlp/models/
language_modeling/megatron_base_model.py``, ``nemo/collections/llm/recipes/precision/mixed_precision.py``;
NVIDIA-NeMo/Megatron-Bridge ``src/megatron/bridge/training/mixed_precision.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers.bridge._fields import made, short

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Sources

__all__ = ["CLASSES", "named_model", "nemo_one", "precision"]

_ACTIVATIONS: Final = {
    "gelu": ("gelu", False), "swiglu": ("silu", True), "fast-swiglu": ("silu", True), "geglu": ("gelu", True),
    "fast-geglu": ("gelu", True), "reglu": ("relu", True), "fast-reglu": ("relu", True), "squared-relu": ("relu2", False),
    "relu": ("relu", False), "approx-gelu": ("gelu", False), "openai-gelu": ("gelu", False), "quick-gelu": ("quick_gelu", False),
}  # fmt: skip
_NORMS: Final = {
    "layernorm": "LayerNorm",
    "layernorm1p": "LayerNorm",
    "low_precision_layernorm": "LayerNorm",
    "rmsnorm": "RMSNorm",
}
_OPTIMIZERS: Final = {
    "fused_adam": ("adam", False), "adam": ("adam", False), "adamw": ("adam", False), "distributed_fused_adam": ("adam", True),
    "mcore_distributed_optim": ("adam", True), "megatron_fused_adam": ("adam", False), "sgd": ("sgd", False),
}  # fmt: skip
_PLAIN: Final = {
    "seq_length": "model.encoder_seq_length",
    "recompute_granularity": "model.activations_checkpoint_granularity",
    "recompute_method": "model.activations_checkpoint_method",
    "recompute_num_layers": "model.activations_checkpoint_num_layers",
    "tp_comm_overlap": "model.ub_tp_comm_overlap",
    "use_flash_attn": "model.use_flash_attention",
    "mamba_num_groups": "model.mamba_ssm_ngroups",
}
"""Argument -> NeMo 1's field."""
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
    "starcoder2config3b": "starcoder2-3b", "starcoder2config7b": "starcoder2-7b", "starcoder2config15b": "starcoder2-15b",
}  # fmt: skip
"""Classes of NeMo 2 (in lower case) -> models of the catalog."""


def named_model(sources: Sources) -> tuple[Found, str] | None:
    """Return the model that a class names: ``model.config._target_: ...Llama3Config8B``."""
    found = sources.get("model.config._target_")
    if found is None:
        return None
    name = CLASSES.get(short(found))
    return None if name is None else (found, name)


def precision(sources: Sources) -> dict[str, Found]:
    """Return the arguments that the name of a recipe, or Lightning's of a precision, means."""
    found = sources.get("mixed_precision", "trainer.plugins.precision", "trainer.precision", "trainer.plugins._target_")
    if found is None or not found.node.scalar:
        return {}
    word = found.text().casefold().replace("-", "_")
    half = "bf16" if "bf16" in word else "fp16" if re.search(r"fp16|(^|_)16", word) else ""
    out = {half: made(found, value=True)} if half else {}
    if "nvfp4" in word:
        out["fp4_format"] = made(found, "e2m1")
    elif "fp8" in word:
        out["fp8_format"] = made(found, "hybrid")
        kind = (
            "mxfp8"
            if "mxfp8" in word
            else "tensorwise"
            if "current" in word
            else "blockwise"
            if "subchannel" in word
            else "delayed"
        )
        out["fp8_recipe"] = made(found, kind)
    if half == "fp16":
        out["grad_reduce_in_bf16"] = made(found, value=True)
    return out


def nemo_one(sources: Sources) -> dict[str, Found]:
    """Return what a configuration of NeMo 1 says, under the names of Megatron-LM's arguments."""
    out = {name: found for name, key in _PLAIN.items() if (found := sources.get(key)) is not None}
    if (found := sources.get("model.activation")) is not None:
        function, gated = found.choice(_ACTIVATIONS)
        out["activation_func"], out["gated_linear_unit"] = made(found, function), made(found, value=gated)
    if (found := sources.get("model.normalization")) is not None:
        out["normalization"] = made(found, found.choice(_NORMS))
    if (found := sources.get("model.bias")) is not None and not found.flag():
        out["disable_bias_linear"] = made(found, value=True)
    if (found := sources.get("model.optim.name")) is not None:
        optimizer, distributed = found.choice(_OPTIMIZERS)
        out["optimizer"], out["use_distributed_optimizer"] = made(found, optimizer), made(found, value=distributed)
    if (found := sources.get("model.transformer_engine")) is not None and not found.flag():
        out["transformer_impl"] = made(found, "local")
    if (found := sources.get("model.fp8")) is not None and found.flag():
        out["fp8_format"] = made(found, "hybrid")
    kind, model = sources.get("model.tokenizer.type"), sources.get("model.tokenizer.model")
    library = sources.get("model.tokenizer.library")
    if kind is not None:
        huge = library is not None and library.text() == "huggingface"
        out["tokenizer_type"] = made(kind, "HuggingFaceTokenizer" if huge else kind.text())
        if huge:
            out["tokenizer_model"] = kind
    if model is not None:
        out["tokenizer_model"] = model
        out.setdefault("tokenizer_type", made(model, "SentencePieceTokenizer"))
    return out
