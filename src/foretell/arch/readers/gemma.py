"""Gemma 1, 2, 3 and 4 text models, VaultGemma.

Source: transformers 5.24.0 ``modeling_gemma``, ``_gemma2``, ``_gemma3``, ``_gemma4``, ``_vaultgemma``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, mlp, norm
from foretell.arch.operators import (
    Act,
    Add,
    Embedding,
    Experts,
    Linear,
    Mul,
    Norm,
    Operator,
    Parameters,
    Router,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import (
    RMS,
    Style,
    activation,
    attention_kinds,
    dense_decoder,
    every,
    ffn_size,
    max_positions,
    sizes,
)
from foretell.arch.readers._registry import reader

ACT = "gelu_pytorch_tanh"
BARE = Norm(name="", dim=1, affine=False)
_GEMMA = Style(qkv_bias="attention_bias", o_bias="attention_bias", act=ACT)
STYLES: dict[str, Style] = {
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, place="sandwich", rule=every(2)),
    "vaultgemma": replace(_GEMMA, rule=every(2)),
    "gemma3_text": replace(_GEMMA, place="sandwich", qk_norm="head", rule=every(6, "sliding_window_pattern")),
}


@reader(*STYLES)
def gemma(cfg: Config) -> Architecture:
    """Gemma 1 to 3: head size apart from the hidden size, tied embeddings, norms around each sub-layer from 2 on."""
    return dense_decoder(cfg, STYLES[cfg.model_type], sizes(cfg), ffn=ffn_size(cfg), tied=cfg.bool("tie_word_embeddings", True))


def per_layer_embedding(cfg: Config, layers: int, hidden: int, width: int) -> list[Operator]:
    """Per-layer embeddings: a second token table and a projection of the first, ``width`` for every layer."""
    return [
        Embedding(name="embed_tokens_per_layer", rows=cfg.int("vocab_size_per_layer_input", low=1), dim=layers * width),
        Linear(name="per_layer_model_projection", ins=("embed_tokens",), d_in=hidden, d_out=layers * width),
        Norm(name="per_layer_projection_norm", dim=width, groups=layers),
        Add(
            name="per_layer_inputs",
            ins=("embed_tokens_per_layer", "per_layer_projection_norm"),
            features=layers * width,
        ),
    ]


def per_layer_input(source: str, hidden: int, width: int, fn: str) -> list[Operator]:
    """A layer's use of its per-layer embedding; the last operator is ``post_per_layer_input_norm``."""
    return [
        Linear(name="per_layer_input_gate", ins=(source,), d_in=hidden, d_out=width),
        Act(name="per_layer_act", fn=fn, features=width, split=False),
        Mul(name="per_layer_gated", features=width),
        Linear(name="per_layer_projection", d_in=width, d_out=hidden),
        norm("post_per_layer_input_norm", hidden),
    ]


def shared_keys(cfg: Config, kinds: list[str]) -> list[bool]:
    """Which layers read keys and values of an earlier layer (the last ``num_kv_shared_layers``)."""
    n = cfg.int("num_kv_shared_layers", default=0)
    first = len(kinds) - n
    if first < 0 or (first > 0 and not set(kinds[first:]) <= set(kinds[:first])):
        raise cfg.error(
            "num_kv_shared_layers", n, "a number of layers that leaves one of each kind with keys of its own", "correct it"
        )
    return [i >= first for i in range(len(kinds))]


@dataclass(frozen=True)
class _Kind:
    """What tells two Gemma 4 layers apart."""

    sliding: bool
    foreign: bool
    head_dim: int
    kv_heads: int

    def __str__(self) -> str:
        return ("sliding" if self.sliding else "attention") + ("-shared-kv" if self.foreign else "")


def _overrides(cfg: Config, layers: int) -> dict[int, Mapping[str, object]]:
    """``per_layer_config`` of newer files, by layer; empty where the file has none."""
    value = cfg.raw.get("per_layer_config")
    if not isinstance(value, Mapping):
        return {}
    try:
        found = {int(k): v for k, v in value.items() if isinstance(v, Mapping)}
    except (TypeError, ValueError):
        raise cfg.error("per_layer_config", value, "layer numbers as keys", "correct the keys") from None
    return {k: v for k, v in found.items() if 0 <= k < layers}


@reader("gemma4_text", "gemma4_unified_text")
def gemma4(cfg: Config) -> Architecture:
    """Gemma 4: wider heads in full-attention layers, optional experts beside the MLP, KV sharing, layer embeddings."""
    size = sizes(cfg)
    kinds, window = attention_kinds(cfg, size.layers, every(6))
    kinds[-1] = "attention"
    foreign = shared_keys(cfg, kinds)
    same = cfg.bool("attention_k_eq_v", False)
    wide = cfg.int("global_head_dim", default=512, low=1)
    few = cfg.int("num_global_key_value_heads", default=None) if same else None
    overrides = _overrides(cfg, size.layers)
    keys = []
    for i, kind in enumerate(kinds):
        dim, kv = size.head_dim, size.kv_heads
        if overrides:
            own = overrides.get(i, {})
            dim = cfg.check_int("per_layer_config.head_dim", own.get("head_dim", dim), 1)
            kv = cfg.check_int("per_layer_config.num_key_value_heads", own.get("num_key_value_heads", kv), 1)
        elif kind == "attention":
            dim, kv = wide, few or kv
        keys.append(_Kind(kind == "sliding", foreign[i], dim, kv))
    extra = cfg.int("hidden_size_per_layer_input", default=0)
    fn = activation(cfg, ACT)
    hidden, ffn = size.hidden, ffn_size(cfg)
    double = cfg.bool("use_double_wide_mlp", False)
    with_experts = cfg.bool("enable_moe_block", False)
    causal = cfg.get("use_bidirectional_attention", default="") != "all"

    def make(kind: _Kind) -> list[Operator]:
        bias = cfg.bool("attention_bias", False)
        mix = attention(
            "norm1",
            hidden=hidden,
            heads=size.heads,
            kv_heads=kind.kv_heads,
            head_dim=kind.head_dim,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm=RMS,
            v_norm=BARE,
            window=window if kind.sliding else 0,
            causal=causal,
            foreign_kv=kind.foreign,
            shared_kv=same and not kind.sliding,
            rotary=kind.head_dim if kind.sliding else kind.head_dim // 4,
            dropout=cfg.float("attention_dropout", 0.0),
        )
        ops = [
            norm("norm1", hidden, ins="x"),
            *mix,
            norm("post_norm1", hidden),
            Add(name="add1", ins=("x", "post_norm1"), features=hidden),
            norm("norm2", hidden),
            *mlp("norm2", hidden=hidden, ffn=ffn * (2 if double and kind.foreign else 1), fn=fn),
        ]
        if with_experts:
            ops += _experts(cfg, hidden, fn)
        ops += [norm("post_norm2", hidden), Add(name="add2", ins=("add1", "post_norm2"), features=hidden)]
        if extra:
            ops += per_layer_input("add2", hidden, extra, fn)
            ops.append(Add(name="add3", ins=("add2", "post_per_layer_input_norm"), features=hidden))
        return ops

    embed = per_layer_embedding(cfg, size.layers, hidden, extra) if extra else []
    return decoder(
        cfg,
        stack("layers", keys, make, width=hidden),
        embed=embed,
        final=[norm("norm", hidden)],
        ffn=ffn,
        tied=cfg.bool("tie_word_embeddings", True),
        max_positions=max_positions(cfg),
        experts=cfg.int("num_experts", default=0) if with_experts else 0,
        top_k=cfg.int("top_k_experts", default=0) if with_experts else 0,
        **size.facts(),
    )


def _experts(cfg: Config, hidden: int, fn: str) -> list[Operator]:
    """Experts beside the dense MLP, each with a norm before and after; the last operator is their sum."""
    experts, top_k = cfg.int("num_experts", low=1), cfg.int("top_k_experts", low=1)
    return [
        norm("post_feedforward_layernorm_1", hidden),
        Norm(name="router_norm", ins=("add1",), dim=hidden, affine=False),
        Parameters(name="router_scale", shapes=((hidden,),)),
        Router(
            name="router",
            ins=("router_norm",),
            dim=hidden,
            experts=experts,
            top_k=top_k,
            extra=(Weight("router.per_expert_scale", (experts,)),),
        ),
        norm("pre_feedforward_layernorm_2", hidden, ins="add1"),
        Experts(
            name="experts",
            ins=("pre_feedforward_layernorm_2", "router"),
            dim=hidden,
            ffn=cfg.int("moe_intermediate_size", low=1),
            experts=experts,
            top_k=top_k,
            fn=fn,
        ),
        norm("post_feedforward_layernorm_2", hidden),
        Add(name="moe_out", ins=("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"), features=hidden),
    ]
