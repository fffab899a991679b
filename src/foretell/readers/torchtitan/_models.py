"""torchtitan's models by name and flavor, and its configurations in Python that are known without running them.

Source: pytorch/torchtitan until 2026-08 (``torchtitan/models/*/__init__.py``, ``models/*/config_registry.py`` b5bcd76c6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from foretell.arch import config_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONFIGS", "Config", "model_of"]

_CATALOG: Final[Mapping[str, Mapping[str, str]]] = {
    "llama2": {"7B": "llama-2-7b", "13B": "llama-2-13b", "70B": "llama-2-70b"},
    "llama3": {
        "1B": "llama-3.2-1b",
        "3B": "llama-3.2-3b",
        "8B": "llama-3.1-8b",
        "70B": "llama-3.1-70b",
        "405B": "llama-3.1-405b",
    },
    "deepseek_v3": {"16B": "deepseek-v2-lite", "236B": "deepseek-v2", "671B": "deepseek-v3", "kimi_k2": "kimi-k2"},
    "qwen3": {
        "0.6B": "qwen3-0.6b",
        "1.7B": "qwen3-1.7b",
        "4B": "qwen3-4b",
        "8B": "qwen3-8b",
        "14B": "qwen3-14b",
        "32B": "qwen3-32b",
        "30B-A3B": "qwen3-30b-a3b",
        "235B-A22B": "qwen3-235b-a22b",
    },
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
}
"""Model -> flavor -> the catalog's name."""
_TEXT: Final = {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"}
"""Flavors of ``llama4``, which is the text model alone."""
_DEBUG: Final = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 768,
    "vocab_size": 2048,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_KERNELS: Final = ("_flex_attn", "_varlen_attn", "_flex", "_varlen", "_irope", "_non_fused_qkv", "-flex")
"""Endings of flavors that change how attention is computed, not the model."""
_SAME: Final = {"llama": "llama3", "llama3_ft": "llama3", "llama3_simple_fsdp": "llama3", "simple_fsdp.llama3": "llama3",
                "compiler_toolkit.llama3": "llama3", "simple_fsdp.deepseek_v3": "deepseek_v3",
                "compiler_toolkit.deepseek_v3": "deepseek_v3", "deepseek_v2": "deepseek_v3"}  # fmt: skip
"""Names that a model also has (experiments that run it in another way)."""


def model_of(name: str, flavor: str) -> str | Mapping[str, Any] | None:
    """Return the model of a flavor; None where it is not known."""
    base = _SAME.get(name, name)
    if "/" in flavor:  # the hub's name (experiments/deepseek_v3)
        return flavor
    for ending in _KERNELS:
        flavor = flavor.removesuffix(ending)
    if base == "llama4" and flavor in _TEXT:
        return {**config_of(_TEXT[flavor])[0]["text_config"], "dtype": "bfloat16"}
    if base == "llama3" and flavor == "debugmodel":
        return _DEBUG
    return _CATALOG.get(base, {}).get(flavor)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration that a function returns."""

    model: str
    flavor: str
    passes: int
    """Sequences of a micro-batch, each of ``length`` tokens."""
    length: int
    recompute: str = "selective"
    tp: int = 1
    ep: int = 1
    schedule: str = "1F1B"
    compiled: tuple[str, ...] = ()
    float8: bool = False
    overlap: bool = False
    precision: str = ""


CONFIGS: Final[Mapping[str, Config]] = {
    "llama3_debugmodel": Config("llama3", "debugmodel", 8, 2048, schedule="Interleaved1F1B"),
    "llama3_8b": Config("llama3", "8B", 1, 8192),
    "llama3_8b_mxfp8": Config("llama3", "8B", 1, 8192, compiled=("model",), precision="mxfp8"),
    "llama3_70b": Config("llama3", "70B", 8, 8192, "full", tp=8),
    "llama3_405b": Config("llama3", "405B", 2, 8192, "full", tp=8, compiled=("model", "loss"), float8=True, overlap=True),
    "qwen3_0_6b": Config("qwen3", "0.6B", 4, 4096),
    "qwen3_1_7b": Config("qwen3", "1.7B", 4, 4096),
    "qwen3_14b": Config("qwen3", "14B", 4, 4096, "full"),
    "qwen3_32b": Config("qwen3", "32B", 2, 4096, "full"),
    "qwen3_30b_a3b": Config("qwen3", "30B-A3B", 2, 4096, "full"),
    "sft_qwen3_8b_math": Config("qwen3", "8B", 1, 2048),
    "deepseek_v3_16b": Config("deepseek_v3", "16B", 4, 4096, ep=8, schedule="Interleaved1F1B", compiled=("loss",)),
    "deepseek_v3_671b": Config("deepseek_v3", "671B", 4, 4096, ep=2, schedule="Interleaved1F1B", compiled=("loss",)),
    "gpt_oss_20b": Config("gpt_oss", "20b", 1, 8192, "full"),
    "gpt_oss_120b": Config("gpt_oss", "120b", 1, 8192, "full"),
}
"""By the name of the function, of the modules of the same models."""
