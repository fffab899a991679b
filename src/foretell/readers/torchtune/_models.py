"""torchtune's model builders as models: the name of a function says the architecture, or its arguments do.

Source: torchtune 0.7.0 (``torchtune/models/*/_model_builders.py``, ``_component_builders.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from foretell.arch import config_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from foretell.readers._document import Found
    from foretell.readers._omegaconf import Values

__all__ = ["SIZES", "Built", "built"]

_PACKAGE: Final = "torchtune.models."
_CATALOG: Final = {
    "llama2_7b": "llama-2-7b",
    "llama2_13b": "llama-2-13b",
    "llama2_70b": "llama-2-70b",
    "llama2_reward_7b": "llama-2-7b",
    "llama3_8b": "llama-3-8b",
    "llama3_70b": "llama-3-70b",
    "llama3_1_8b": "llama-3.1-8b",
    "llama3_1_70b": "llama-3.1-70b",
    "llama3_1_405b": "llama-3.1-405b",
    "llama3_2_1b": "llama-3.2-1b",
    "llama3_2_3b": "llama-3.2-3b",
    "llama3_2_vision_11b": "llama-3.2-11b-vision",
    "llama3_3_70b": "llama-3.3-70b",
    "llama4_scout_17b_16e": "llama-4-scout",
    "llama4_maverick_17b_128e": "llama-4-maverick",
    "mistral_7b": "mistral-7b-v0.1",
    "mistral_reward_7b": "mistral-7b-v0.1",
    "gemma_2b": "gemma-2b",
    "gemma_7b": "gemma-7b",
    "gemma2_2b": "gemma-2-2b",
    "gemma2_9b": "gemma-2-9b",
    "gemma2_27b": "gemma-2-27b",
    "qwen2_0_5b": "qwen2-0.5b",
    "qwen2_1_5b": "qwen2-1.5b",
    "qwen2_7b": "qwen2-7b",
    **{f"qwen2_5_{size}b{kind}": f"qwen2.5-{size.replace('_', '.')}b"
       for size in ("0_5", "1_5", "3", "7", "14", "32", "72") for kind in ("", "_base", "_instruct")},
    **{f"qwen3_{size}b{kind}": f"qwen3-{size.replace('_', '.')}b"
       for size in ("0_6", "1_7", "4", "8", "14", "32") for kind in ("", "_base", "_instruct")},
}  # fmt: skip
"""Builder, without ``lora_`` and ``qlora_`` -> the catalog's name (Qwen's builders had no ``_instruct`` before 0.3)."""
_CHANGED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "code_llama2_7b": ("llama-2-7b", {"vocab_size": 32016, "max_position_embeddings": 16384}),
    "code_llama2_13b": ("llama-2-13b", {"vocab_size": 32016, "max_position_embeddings": 16384}),
    "code_llama2_70b": ("llama-2-70b", {"vocab_size": 32016, "max_position_embeddings": 16384}),
    # matrices of their own where Microsoft's code joins them (models/phi3/_component_builders.py)
    "phi3_mini": ("phi-3-mini", {"model_type": "mistral"}),
    "phi4_14b": ("phi-4", {"model_type": "mistral"}),
}
_NINETY: Final = {
    "hidden_size": 8192,
    "num_hidden_layers": 100,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
    "cross_attention_layers": [*range(3, 100, 5)],
}
"""The text model of ``llama3_2_vision_90b``: 80 layers, and one that looks at the image behind every fourth."""

SIZES: Final = (
    "vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim", "intermediate_dim", "max_seq_len", "head_dim",
    "tie_word_embeddings",
)  # fmt: skip
"""Arguments of the builders that take an architecture piece by piece."""
_PIECEWISE: Final = {
    "llama2": "llama",
    "llama3": "llama",
    "llama3_1": "llama",
    "llama3_2": "llama",
    "mistral": "mistral",
    "phi3": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
}
_TIED: Final = frozenset(("llama3_2", "gemma"))
"""... whose head is the embedding unless they are told otherwise."""
_TRAINED: Final = {"llama3_2_vision_11b": 0.2474, "llama3_2_vision_90b": 0.2036}
"""Share of the parameters in the encoder and the layers that look at images, which the vision recipes train."""


@dataclass(frozen=True)
class Built:
    """What a builder makes."""

    model: str | Mapping[str, Any] | None
    """None: a function that is not torchtune's own."""
    adapters: bool = False
    quantized: bool = False
    attention: str = ""
    """Where the model does not call PyTorch's attention."""
    fused: float | None = None
    """Share of the parameters that reads images, in models that have both."""
    early: bool = False
    """Image and text go through the same layers (Llama 4)."""
    why: str = field(default="", compare=False)


def built(found: Found, values: Values, at: str) -> Built:
    """Return what the builder that ``found`` names makes; ``at``: the key of the component ("model")."""
    path = found.text().strip()
    name = path.rpartition(".")[2]
    quantized = name.startswith("qlora_")
    adapters = quantized or name.startswith("lora_")
    base = name.removeprefix("q").removeprefix("lora_") if adapters else name
    if not path.startswith(_PACKAGE):
        return Built(None, adapters, quantized, why=f"{path} is not one of torchtune's own models: Python, which is not executed")
    attention = "eager" if base.startswith("gemma2") else ""  # models/gemma2/_attention.py: scores, soft cap, softmax
    model: str | Mapping[str, Any] | None = _CATALOG.get(base)
    if base in _CHANGED:
        source, changes = _CHANGED[base]
        model = config_of(source)[0] | dict(changes)
    elif base == "llama3_2_vision_90b":
        config = config_of("llama-3.2-11b-vision")[0]
        model = config | {"text_config": config["text_config"] | _NINETY}
    elif base in _PIECEWISE:
        model = _config(base, values, at)
    why = "" if model is not None else f"torchtune's builder {name} is not known here"
    return Built(model, adapters, quantized, attention, _TRAINED.get(base), base.startswith("llama4"), why)


def _config(base: str, values: Values, at: str) -> Mapping[str, Any] | None:
    """Return the content of a config.json from a builder's arguments; None where one is missing."""
    said = {name: values.get(f"{at}.{name}") for name in SIZES}
    sizes = {name: found.whole() for name, found in said.items() if found is not None and name != "tie_word_embeddings"}
    if any(name not in sizes for name in ("vocab_size", "num_layers", "num_heads", "num_kv_heads", "embed_dim")):
        return None
    tied = said["tie_word_embeddings"]
    config: dict[str, Any] = {
        "model_type": _PIECEWISE[base],
        "vocab_size": sizes["vocab_size"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "hidden_size": sizes["embed_dim"],
        "intermediate_size": sizes.get("intermediate_dim") or _hidden(sizes["embed_dim"]),
        "max_position_embeddings": sizes.get("max_seq_len", 131072),
        "tie_word_embeddings": base in _TIED if tied is None else tied.flag(),
        "dtype": "bfloat16",
    }
    if "head_dim" in sizes:
        config["head_dim"] = sizes["head_dim"]
    return config


def _hidden(dim: int) -> int:
    """Two thirds of four times as many, rounded up to 256 (``models/llama3/_model_utils.py``)."""
    return -(-int(2 * (4 * dim) / 3) // 256) * 256
