"""From Megatron-Core's description of a transformer to the content of a ``config.json`` of the same shape.

Names follow ``megatron/core/transformer/transformer_config.py`` of NVIDIA/Megatron-LM (core_v0.19.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Latent", "Shape", "UndescribedError", "config", "gated_width", "own_dropout"]


class UndescribedError(Exception):
    """A model that no ``config.json`` known here describes; the text says what of it."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention."""

    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer as Megatron-Core builds it."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    """Rows of the token table, padding included."""
    max_positions: int | None = None
    kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    ffn: int | None = None
    """None: four times the hidden size, or what keeps the parameters where the network is gated."""
    positions: str = "learned"
    """learned, rope or none."""
    rms: bool = False
    gated: bool = False
    act: str = "gelu"
    bias: bool = True
    qkv_bias: bool = True
    tied: bool = True
    qk_norm: bool = False
    out_gate: bool = False
    sinks: bool = False
    latent: Latent | None = None
    window: int = 0
    windowed: tuple[bool, ...] = ()
    """Which layers have the window; empty: all."""
    linear: tuple[bool, ...] = ()
    """Which layers are gated delta nets; empty: none."""
    delta: tuple[int, int, int, int, int] = (16, 32, 128, 128, 4)
    """Key heads, value heads, key size, value size, convolution of such a layer."""
    experts: int = 0
    top_k: int = 2
    expert_ffn: int | None = None
    shared_ffn: int = 0
    shared_gate: bool = False
    moe_latent: int = 0
    sparse: tuple[bool, ...] = ()
    """Which layers have experts; empty: all."""
    hybrid: str = ""
    """Letters of a hybrid stack, one a layer."""
    mamba: tuple[int, int, int, int | None] = (128, 64, 8, None)
    """State, head size, groups, heads (None: those of twice the hidden size)."""
    kind: str = "gpt"
    """gpt, bert or t5."""
    decoder_layers: int | None = None
    """Of a T5, beside ``layers`` of its encoder."""
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    predicting: int = 0
    """Multi-token-prediction layers."""
    ahead: str = ""
    """Letters of one of them, of a hybrid stack."""

    @property
    def predicts(self) -> bool:
        """Whether prediction layers of such a model can be described."""
        return self.kind == "gpt" and (not self.hybrid or re.fullmatch(r"[M*][E-]", self.ahead) is not None)


def gated_width(hidden: int) -> int:
    """Return the width that ``--swiglu`` takes by default (megatron/training/arguments.py ``validate_args``)."""
    return int(4 * hidden * 2 / 3 / 64) * 64


def config(shape: Shape) -> dict[str, Any]:
    """Return the content of a ``config.json`` of this shape; UndescribedError where none can say it."""
    if shape.kind == "bert":
        return _bert(shape)
    if shape.kind == "t5":
        return _t5(shape)
    if shape.hybrid:
        return _hybrid(shape)
    return _gpt2(shape) if _is_gpt2(shape) else _generic(shape)


def own_dropout(shape: Shape) -> bool:
    """Whether the description of a model has probabilities of dropout of its own."""
    return shape.kind != "gpt" or (not shape.hybrid and _is_gpt2(shape))


def _is_gpt2(shape: Shape) -> bool:
    """Whether it is GPT-2's layer: learned positions, LayerNorm, biases, a plain GELU network, keys of every head."""
    other = shape.experts or shape.latent or shape.linear or shape.window or shape.qk_norm or shape.sinks or shape.predicting
    sizes = shape.head_dim in (None, shape.hidden // shape.heads) and shape.kv_heads in (None, shape.heads)
    plain = shape.positions == "learned" and shape.bias and not (shape.rms or shape.gated) and shape.act == "gelu"
    return not other and sizes and plain


def _width(shape: Shape) -> int:
    return shape.ffn or (gated_width(shape.hidden) if shape.gated else 4 * shape.hidden)


def _common(shape: Shape) -> dict[str, Any]:
    """Return the keys that gpt-generic and megatron-hybrid share."""
    out: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "intermediate_size": _width(shape),
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "norm": "rmsnorm" if shape.rms else "layernorm",
        "gated_mlp": shape.gated,
        "hidden_act": shape.act,
        "mlp_bias": shape.bias,
        "attention_bias": shape.qkv_bias,
        "position_embedding": shape.positions,
    }
    if shape.head_dim is not None and shape.head_dim * shape.heads != shape.hidden:
        out["head_dim"] = shape.head_dim
    if shape.max_positions is not None:
        out["max_position_embeddings"] = shape.max_positions
    if shape.experts:
        out["num_experts"] = shape.experts
        out["num_experts_per_tok"] = shape.top_k
        out["moe_intermediate_size"] = shape.expert_ffn or _width(shape)
        if shape.moe_latent:
            out["moe_latent_size"] = shape.moe_latent
    return out


def _dropped(shape: Shape, hidden: tuple[str, ...], attention: str) -> dict[str, float]:
    """Return probabilities of dropout that differ; one for all is the recipe's, not the model's."""
    if shape.hidden_dropout == shape.attention_dropout:
        return {}
    return {**dict.fromkeys(hidden, shape.hidden_dropout), attention: shape.attention_dropout}


def _gpt2(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": _width(shape),
        "n_positions": shape.max_positions or 1024,
        "vocab_size": shape.vocab,
        "activation_function": "gelu",
        "tie_word_embeddings": shape.tied,
        **_dropped(shape, ("embd_pdrop", "resid_pdrop"), "attn_pdrop"),
    }


def _generic(shape: Shape) -> dict[str, Any]:
    out = {"model_type": "gpt-generic", "num_hidden_layers": shape.layers, **_common(shape), "attention_out_bias": shape.bias}
    if shape.qk_norm:
        out["qk_layernorm"] = True
    if shape.sinks:
        out["attention_sinks"] = True
    if shape.out_gate:
        out["attention_gate"] = True
    if shape.latent is not None:
        out |= {
            "q_lora_rank": shape.latent.q_lora,
            "kv_lora_rank": shape.latent.kv_lora,
            "qk_nope_head_dim": shape.latent.nope,
            "qk_rope_head_dim": shape.latent.rope,
            "v_head_dim": shape.latent.v,
        }
    kinds = ["full_attention"] * shape.layers
    if shape.window:
        out["sliding_window"] = shape.window
        kinds = ["sliding_attention" if not shape.windowed or shape.windowed[i] else kinds[i] for i in range(shape.layers)]
    if shape.linear:
        kinds = ["linear_attention" if linear else kind for linear, kind in zip(shape.linear, kinds, strict=True)]
        names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
        out |= {f"linear_{name}": value for name, value in zip(names, shape.delta, strict=True)}
    if shape.window or shape.linear:
        out["layer_types"] = kinds
    if shape.experts and shape.sparse and not all(shape.sparse):
        out["mlp_layer_types"] = ["sparse" if sparse else "dense" for sparse in shape.sparse]
    if shape.predicting:
        out["num_nextn_predict_layers"] = shape.predicting
    if shape.experts and shape.shared_ffn:
        out["shared_expert_intermediate_size"] = shape.shared_ffn
        out["shared_expert_gate"] = shape.shared_gate
    return out


def _hybrid(shape: Shape) -> dict[str, Any]:
    if strange := sorted(set(shape.hybrid) - set("M*-E")):
        problem = f"layers of the kind {strange[0]!r} in a hybrid stack have no description here"
        raise UndescribedError(problem)
    if "E" in shape.hybrid + shape.ahead and not shape.experts:
        problem = "the hybrid stack has layers of experts (E), and the files do not say how many"
        raise UndescribedError(problem)
    state, head, groups, heads = shape.mamba
    out = {"model_type": "megatron-hybrid", "hybrid_layer_pattern": shape.hybrid, **_common(shape)}
    out |= {"mamba_state_dim": state, "mamba_head_dim": head, "mamba_num_groups": groups}
    if heads is not None:
        out["mamba_num_heads"] = heads
    if shape.predicting and shape.predicts:
        out |= {"num_nextn_predict_layers": shape.predicting, "mtp_layer_pattern": shape.ahead}
    if shape.experts and shape.shared_ffn:
        out["moe_shared_expert_intermediate_size"] = shape.shared_ffn
    return out


def _bert(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": _width(shape),
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions or 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        **_dropped(shape, ("hidden_dropout_prob",), "attention_probs_dropout_prob"),
    }


def _t5(shape: Shape) -> dict[str, Any]:
    return {
        "model_type": "megatron-t5",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_decoder_layers": shape.decoder_layers or shape.layers,
        "num_attention_heads": shape.heads,
        "head_dim": shape.head_dim or shape.hidden // shape.heads,
        "intermediate_size": _width(shape),
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions or 512,
        "tie_word_embeddings": shape.tied,
        **_dropped(shape, ("hidden_dropout",), "attention_dropout"),
    }
