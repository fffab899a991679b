"""Decoders of ordinary attention with experts: Mixtral, Qwen-MoE, GPT-OSS, MiniMax, GLM-4.5, ERNIE, Llama 4 ...

Source: transformers 5.24.0, ``modeling_<type>.py`` of each model type below.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import moe
from foretell.arch.operators import Norm, Operator, Weight
from foretell.arch.readers._config import Config
from foretell.arch.readers._layers import (
    LAYER,
    Rule,
    Style,
    activation,
    always,
    every,
    ffn_size,
    flag,
    from_max_window_layers,
    mixer,
    sizes,
)
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder, sparse_layers

_BIASED = Style(qkv_bias="attention_bias", o_bias="attention_bias")
_QKV_BIASED = Style(qkv_bias="attention_bias")


def _qwen2_moe_rule(cfg: Config, i: int) -> bool:
    last = cfg.int("max_window_layers", default=0)
    return cfg.bool("use_sliding_window", False) and (i + 1) % 2 == 1 and i < last


def _if_used(cfg: Config, _i: int) -> bool:
    return cfg.bool("use_sliding_window", False)


@dataclass(frozen=True)
class Sparse:
    """How one model type's sparse layer differs: its attention style and its experts."""

    style: Style = field(default_factory=Style)
    ffn: str = "intermediate_size"
    """Key of an expert's width."""
    shared: str = ""
    """Key of the shared expert's width; ``*`` = ``n_shared_experts`` times an expert's width."""
    shared_gate: bool = False
    shared_fused: str = ""
    score: str = "softmax"
    bias: bool = False
    router_bias: bool = False
    sinks: bool = False
    rule: Rule | None = None


_DEEPSEEK = {"ffn": "moe_intermediate_size", "shared": "*", "score": "sigmoid"}
SPARSE: dict[str, Sparse] = {
    "mixtral": Sparse(Style(rule=always)),
    "qwen2_moe": Sparse(
        Style(qkv_bias="qkv_bias", rule=_qwen2_moe_rule),
        ffn="moe_intermediate_size",
        shared="shared_expert_intermediate_size",
        shared_gate=True,
    ),
    "qwen3_moe": Sparse(replace(_BIASED, qk_norm="head", rule=_if_used), ffn="moe_intermediate_size"),
    "qwen3_vl_moe_text": Sparse(replace(_BIASED, qk_norm="head"), ffn="moe_intermediate_size"),
    "qwen3_omni_moe_text": Sparse(replace(_BIASED, qk_norm="head", rule=_if_used), ffn="moe_intermediate_size"),
    "olmoe": Sparse(replace(_BIASED, qk_norm="full")),
    "flex_olmo": Sparse(replace(_BIASED, place="post", qk_norm="full")),
    "phimoe": Sparse(replace(_BIASED, norm=LAYER, rule=always, head_bias="lm_head_bias")),
    "granitemoe": Sparse(_BIASED),
    "granitemoeshared": Sparse(_BIASED, shared="shared_intermediate_size", shared_fused="input_linear"),
    "gpt_oss": Sparse(replace(_BIASED, rule=every(2), act="swigluoai"), bias=True, router_bias=True, sinks=True),
    "minimax_m2": Sparse(Style(qk_norm="full"), score="sigmoid"),
    "glm4_moe": Sparse(replace(_QKV_BIASED, rotary=0.5), **_DEEPSEEK),  # type: ignore[arg-type]
    "dots1": Sparse(replace(_BIASED, qk_norm="head", rule=from_max_window_layers), **_DEEPSEEK),  # type: ignore[arg-type]
    "solar_open": Sparse(_QKV_BIASED, **_DEEPSEEK),  # type: ignore[arg-type]
    "hunyuan_v1_moe": Sparse(replace(_BIASED, qk_norm="head", norm_after_rope=True), shared="intermediate_size"),
}


def experts_of(cfg: Config, kind: Sparse, hidden: int) -> list[Operator]:
    """The router, experts and shared expert of a sparse layer, reading ``norm2`` (or ``add1`` in a post-norm layer)."""
    experts, top_k = expert_counts(cfg)
    ffn = cfg.int(kind.ffn, low=1)
    if kind.shared == "*":
        shared = ffn * (cfg.int("n_shared_experts", "num_shared_experts", default=0) or 0)
    else:
        shared = cfg.int(kind.shared, default=0) if kind.shared else 0
    return moe(
        "add1" if kind.style.place == "post" else "norm2",
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=top_k,
        fn="swigluoai" if kind.style.act == "swigluoai" else activation(cfg, kind.style.act),
        bias=kind.bias,
        router_bias=kind.router_bias,
        score=kind.score,
        shared_ffn=shared,
        shared_gate=kind.shared_gate,
        shared_fused=kind.shared_fused,
    )


def _guess(cfg: Config) -> Sparse:
    """The experts of an unknown model type, from whichever of the usual keys it has."""
    width = "moe_intermediate_size" if cfg.has("moe_intermediate_size") else "intermediate_size"
    named = ("shared_expert_intermediate_size", "shared_intermediate_size")
    shared = next((key for key in named if cfg.has(key)), "*")
    style = replace(_BIASED, qk_norm="head" if cfg.bool("use_qk_norm", False) else "")
    return Sparse(style, ffn=width, shared=shared)


@reader(*SPARSE)
def sparse(cfg: Config) -> Architecture:
    """Llama-like attention with a mixture of experts in all layers or in those the configuration names."""
    kind, size = SPARSE.get(cfg.model_type) or _guess(cfg), sizes(cfg)
    if cfg.model_type == "glm4_moe" and cfg.bool("use_qk_norm", False):
        kind = replace(kind, style=replace(kind.style, qk_norm="head"))
    if cfg.model_type == "minimax_m2" and cfg.has("rotary_dim"):
        kind = replace(kind, style=replace(kind.style, rotary=cfg.int("rotary_dim") / size.head_dim))
    dense = ffn_size(cfg) if cfg.has("intermediate_size") else cfg.int("moe_intermediate_size", low=1)

    def mixers(_: str, window: int) -> list[Operator]:
        return mixer(cfg, kind.style, size, window=window, sinks=kind.sinks)

    every_layer = cfg.model_type == "solar_open"
    return sparse_decoder(
        cfg,
        kind.style,
        size,
        dense=dense,
        mixers=mixers,
        sparse=[True] * size.layers if every_layer else sparse_layers(cfg, size.layers),
        experts=lambda: experts_of(cfg, kind, size.hidden),
    )


@reader("ernie4_5_moe")
def ernie(cfg: Config) -> Architecture:
    """ERNIE 4.5: sparse layers from ``moe_layer_start_index`` on, every ``moe_layer_interval``-th."""
    size = sizes(cfg)
    style = Style(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias")
    experts, top_k = expert_counts(cfg)
    ffn = cfg.int("moe_intermediate_size", low=1)
    start, step = cfg.int("moe_layer_start_index", default=1), cfg.int("moe_layer_interval", default=1, low=1)
    end = cfg.get("moe_layer_end_index", default=-1)
    end = size.layers - 1 if end == -1 else cfg.check_int("moe_layer_end_index", end)
    bias = flag(cfg, "use_bias")

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=ffn,
            experts=experts,
            top_k=top_k,
            fn=activation(cfg),
            router_extra=(Weight("moe_statics.e_score_correction_bias", (1, experts)),),
            shared_ffn=ffn * cfg.int("moe_num_shared_experts", default=0),
            shared_bias=bias,
        )

    return sparse_decoder(
        cfg,
        style,
        size,
        dense=ffn_size(cfg),
        experts=feed,
        sparse=[(i + 1) % step == 0 and start <= i <= end for i in range(size.layers)],
    )


@reader("llama4_text")
def llama4(cfg: Config) -> Architecture:
    """Llama 4: sparse layers every ``interleave_moe_layer_step``, chunked attention where there is rope.

    The code of the experts is a batched product over all tokens for all experts: nothing is skipped.
    """
    size = sizes(cfg)
    style = replace(_BIASED, qk_norm="head" if cfg.bool("use_qk_norm", True) else "", norm_after_rope=True)
    style = replace(style, qk_kind=Norm(name="", dim=1, kind="l2"))
    experts, top_k = expert_counts(cfg)
    ffn = ffn_size(cfg)
    step = cfg.int("interleave_moe_layer_step", default=1, low=1)
    listed = cfg.ints("moe_layers", default=None)
    chosen = set(range(step - 1, size.layers, step) if listed is None else listed)
    interval = cfg.int("no_rope_layer_interval", default=4, low=1)
    rope = cfg.list("no_rope_layers", default=None) or [(i + 1) % interval != 0 for i in range(size.layers)]
    if len(rope) != size.layers:
        raise cfg.error("no_rope_layers", rope, f"a list of {size.layers} values", "make it as long as the model")
    chunk = cfg.int("attention_chunk_size", default=0)

    def mixers(kind: str, window: int) -> list[Operator]:
        with_rope = kind == "chunked"
        own = style if with_rope else replace(style, qk_norm="")
        return mixer(cfg, own, size, window=window, rotary=None if with_rope else 0)

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=ffn,
            experts=experts,
            top_k=top_k,
            fn=activation(cfg),
            score="sigmoid",
            shared_ffn=ffn,
            dense=True,
        )

    return sparse_decoder(
        cfg,
        style,
        size,
        dense=cfg.int("intermediate_size_mlp", low=1),
        experts=feed,
        mixers=mixers,
        window=chunk,
        sparse=[i in chosen for i in range(size.layers)],
        kinds=["chunked" if r else "attention" for r in rope],
    )


@reader("dbrx")
def dbrx(cfg: Config) -> Architecture:
    """DBRX: LayerNorm without bias, fused projection, 16 experts in every layer."""
    size, attn, ffn = sizes(cfg), cfg.sub("attn_config"), cfg.sub("ffn_config")
    size = replace(size, kv_heads=attn.int("kv_n_heads", default=1, low=1), head_dim=size.hidden // size.heads)
    style = Style(norm=Norm(name="", dim=1, kind="layer"), fused_qkv="Wqkv", out="out_proj", dropout="resid_pdrop")
    width, experts = ffn.int("ffn_hidden_size", low=1), ffn.int("moe_num_experts", low=1)
    fn = ffn.get("ffn_act_fn", default={"name": "silu"})

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=width,
            experts=experts,
            top_k=ffn.int("moe_top_k", low=1),
            fn=str(fn.get("name", "silu")) if isinstance(fn, dict) else "silu",
        )

    return sparse_decoder(cfg, style, size, sparse=[True] * size.layers, dense=width, experts=feed)
