"""The model that a nanotron file describes, as the content of a config.json.

Source: huggingface/nanotron 2411b02 ``config/models_config.py`` (defaults), ``models/llama.py``, ``qwen.py``, ``starcoder2.py``,
``nn/moe.py``, ``helpers.py`` _vocab_size_with_padding; ``examples/mamba``, ``examples/moe``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foretell.readers._document import Document, Found
    from foretell.readers._reading import Builder

__all__ = ["DEFAULT", "VERSION", "model"]

VERSION: Final = "0.4"
DEFAULT: Final = f"default of nanotron {VERSION}"
_AT: Final = "model.model_config."
_KINDS: Final = {
    "is_llama_config": "llama",
    "is_qwen2_config": "qwen2",
    "is_starcoder2_config": "starcoder2",
    "is_llamoe_config": "llamoe",
    "is_mamba_config": "mamba",
}
_QWEN: Final = (
    "moe_config", "sliding_window_size", "no_rope_layer", "flex_attention_mask", "_use_qkv_packed", "_fused_rms_norm",
    "_fused_rotary_emb", "_use_doc_masking", "rope_seq_len_interpolation_factor", "log_attn_probs",
)  # fmt: skip
"""Fields that only Qwen2Config has: without a flag, the first class that has all the keys is the file's."""
_ATTENTIONS: Final = {
    "flash_attention_2": "flash",
    "flex_attention": "flex",
    "sdpa": "sdpa",
    "ring_flash_triton": "flash",
    "ring": "flash",
    "llama3_ring_attention": "flash",
}
"""``nn/attention.py`` ALL_ATTENTION_FUNCTIONS."""


@dataclass(frozen=True)
class _Reader:
    """Reads fields of ``model.model_config``."""

    document: Document

    def get(self, *keys: str) -> Found | None:
        return self.document.get(*(_AT + key for key in keys))

    def whole(self, key: str, default: int) -> int:
        found = self.get(key)
        return default if found is None else found.whole()

    def flag(self, key: str, *, default: bool = False) -> bool:
        found = self.get(key)
        return default if found is None else found.flag()

    def real(self, key: str, default: float) -> float:
        found = self.get(key)
        return default if found is None else found.real(minimum=0, maximum=1)

    def text(self, key: str, default: str) -> str:
        found = self.get(key)
        return default if found is None else found.text()


def model(b: Builder, tp: int) -> None:
    """Take the model; ``tp``: tensor parallelism, to which the vocabulary is padded."""
    document = b.sources.main
    whole = document.get(_AT.removesuffix("."))
    if whole is None:
        b.needs("model", "model.model_config is not in the file")
        return
    whole.mapping()
    reader = _Reader(document)
    kind = _kind(reader)
    makers = {"llama": _llama, "qwen2": _llama, "starcoder2": _starcoder, "llamoe": _llamoe, "mamba": _mamba}
    made = makers[kind](reader)
    rows = _rows(b, reader, kind)
    if rows is None:
        return
    multiple = document.get("model.make_vocab_size_divisible_by")
    step = tp * (1 if multiple is None else multiple.whole())
    made["vocab_size"] = -(-rows // step) * step
    made["max_position_embeddings"] = None  # of no effect: the run's own length counts (trainer.py)
    name = f"{kind} of nanotron's {_AT.removesuffix('.')}"
    b.model({**made, "_name_or_path": name}, whole, f"built as nanotron {VERSION} builds it")
    _attention(b, reader, kind)


def _kind(reader: _Reader) -> str:
    """Return which class of nanotron's the file describes."""
    found = [(key, kind) for key, kind in _KINDS.items() if reader.flag(key)]
    if found:
        return found[0][1]
    return "qwen2" if any(reader.document.has(_AT + key) for key in _QWEN) else "llama"


def _rows(b: Builder, reader: _Reader, kind: str) -> int | None:
    """Return the vocabulary before padding; -1 is that of the data set."""
    defaults = {"starcoder2": 49280, "mamba": 50277}
    found = reader.get("vocab_size")
    if found is not None and found.node.value == -1:
        found = next((f for key in reader.document.entries("data_stages")
                      if (f := reader.document.get(f"{key}.data.dataset.vocab_size")) is not None), None)  # fmt: skip
        if found is None:
            b.needs("model", "vocab_size is -1, which the data set's tokenizer decides: give the model's config.json")
            return None
    rows = defaults.get(kind, 32000) if found is None else found.whole()
    if kind == "mamba":
        step = reader.whole("pad_vocab_size_multiple", 8)
        rows = -(-rows // step) * step
    return rows


def _common(reader: _Reader) -> dict[str, Any]:
    """Return what LlamaConfig, Qwen2Config and LlaMoEConfig share."""
    heads = reader.whole("num_attention_heads", 32)
    return {
        "hidden_size": reader.whole("hidden_size", 4096),
        "intermediate_size": reader.whole("intermediate_size", 11008),
        "num_hidden_layers": reader.whole("num_hidden_layers", 32),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.whole("num_key_value_heads", heads),
        "hidden_act": reader.text("hidden_act", "silu"),
        "tie_word_embeddings": reader.flag("tie_word_embeddings"),
    }


def _llama(reader: _Reader) -> dict[str, Any]:
    """Llama and Qwen2: one class but for biases, windows and experts; ``models/llama.py`` ignores attention_bias."""
    made = _common(reader)
    layers, biased, window = made["num_hidden_layers"], reader.flag("attention_bias"), reader.get("sliding_window_size")
    if _kind(reader) == "llama":
        return made | {"model_type": "llama"}
    if window is not None:
        made["sliding_window"] = window.whole()
    experts = reader.get("moe_config")
    if experts is None:
        if not biased:
            return made | {"model_type": "mistral" if window is not None else "llama"}
        return made | {"model_type": "qwen2", "use_sliding_window": window is not None, "max_window_layers": 0}
    experts.mapping()
    listed = reader.get("moe_config.layers")
    sparse = set(range(layers))
    if listed is not None and listed.value != [-1]:
        sparse = {int(word) for word in listed.listed() if word.isdecimal()}
    shared = reader.whole("moe_config.shared_expert_intermediate_size", 5632)
    return made | {
        "model_type": "qwen2_moe",
        "qkv_bias": biased,
        "num_experts": reader.whole("moe_config.num_experts", 8),
        "num_experts_per_tok": reader.whole("moe_config.top_k", 2),
        "moe_intermediate_size": reader.whole("moe_config.moe_intermediate_size", 1408),
        "shared_expert_intermediate_size": shared if reader.flag("moe_config.enable_shared_expert") else 0,
        "mlp_only_layers": sorted(set(range(layers)) - sparse),
        "use_sliding_window": False,
    }


def _llamoe(reader: _Reader) -> dict[str, Any]:
    """The example of a sparse Llama: every layer has gated experts as wide as a dense layer."""
    return _common(reader) | {
        "model_type": "mixtral",
        "sliding_window": None,
        "num_local_experts": reader.whole("moe_num_experts", 1),
        "num_experts_per_tok": reader.whole("num_experts_per_tok", 1),
    }


def _starcoder(reader: _Reader) -> dict[str, Any]:
    """StarCoder 2: one key/value head unless grouped, biases everywhere, a tied head."""
    hidden, heads = reader.whole("hidden_size", 2048), reader.whole("num_attention_heads", 16)
    grouped = reader.flag("grouped_query")
    reader.get("multi_query")  # on unless grouped
    window = reader.get("sliding_window_size")
    made = {
        "model_type": "starcoder2",
        "hidden_size": hidden,
        "intermediate_size": reader.whole("intermediate_size", 4 * hidden),
        "num_hidden_layers": reader.whole("num_hidden_layers", 24),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.whole("num_kv_heads", 1) if grouped else 1,
        "hidden_act": reader.text("activation_function", "gelu_pytorch_tanh"),
        "use_bias": True,
        "tie_word_embeddings": True,
        "attention_dropout": reader.real("attn_pdrop", 0.1),
        "residual_dropout": reader.real("resid_pdrop", 0.1),
        "embedding_dropout": reader.real("embd_pdrop", 0.1),
    }
    return {**made, "sliding_window": None if window is None else window.whole()}


def _mamba(reader: _Reader) -> dict[str, Any]:
    """The example of Mamba."""
    reader.get("dtype", "rms_norm")
    rank = reader.get("ssm_cfg.dt_rank")
    return {
        "model_type": "mamba",
        "hidden_size": reader.whole("d_model", 2560),
        "num_hidden_layers": reader.whole("num_hidden_layers", 64),
        "state_size": reader.whole("ssm_cfg.d_state", 16),
        "conv_kernel": reader.whole("ssm_cfg.d_conv", 4),
        "expand": reader.whole("ssm_cfg.expand", 2),
        "time_step_rank": "auto" if rank is None or rank.text() == "auto" else rank.whole(),
        "use_bias": reader.flag("ssm_cfg.bias"),
        "use_conv_bias": reader.flag("ssm_cfg.conv_bias", default=True),
        "tie_word_embeddings": True,
    }


def _attention(b: Builder, reader: _Reader, kind: str) -> None:
    found = reader.get("_attn_implementation")
    if kind == "mamba":
        return
    if found is None:
        b.default("attention", "flash", f"{DEFAULT} (config/models_config.py DEFAULT_ATTENTION_IMPLEMENTATION)")
        return
    b.set("attention", found.choice(_ATTENTIONS), found)
