"""What NeMo 1 spells in its own way, and recipes of precision by name.

Source: NVIDIA/NeMo v2.4 ``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``, ``nemo/collections/nlp/models/
language_modeling/megatron_base_model.py``, ``nemo/collections/llm/recipes/precision/mixed_precision.py``;
NVIDIA-NeMo/Megatron-Bridge ``src/megatron/bridge/training/mixed_precision.py``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from foretell.readers.bridge._fields import made

if TYPE_CHECKING:
    from foretell.readers._document import Found
    from foretell.readers._reading import Sources

__all__ = ["nemo_one", "precision"]

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
