"""Llama and the dense decoders that share its layer: one table says how each model type differs.

Source: transformers 5.24.0, ``modeling_<type>.py`` of each model type below.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Dropout, Norm, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._layers import (
    LAYER,
    Style,
    always,
    attention_kinds,
    dense_decoder,
    dense_ffn,
    every,
    ffn_size,
    from_max_window_layers,
    sizes,
)
from foretell.arch.readers._registry import reader

_BIASED = Style(qkv_bias="attention_bias", o_bias="attention_bias")
_LLAMA = replace(_BIASED, mlp_bias="mlp_bias")
_QWEN2 = Style(qkv_bias=True, rule=from_max_window_layers)
_QWEN3 = replace(_BIASED, qk_norm="head", rule=from_max_window_layers)
_GLM = Style(qkv_bias="attention_bias", fused_mlp="gate_up_proj", rotary=0.5)
_UNBIASED_LAYER = Norm(name="", dim=1, kind="layer")


def _exaone_rule(cfg: Config, i: int) -> bool:
    period = cfg.int("sliding_window_pattern", default=0)
    return bool(period) and bool((i + 1) % period)


def _smollm3_rule(cfg: Config, i: int) -> bool:
    return cfg.bool("use_sliding_window", False) and _no_rope(cfg, i)


STYLES: dict[str, Style] = {
    "llama": _LLAMA,
    "mistral": Style(rule=always),
    "ministral": Style(rule=always),
    "ministral3": Style(rule=always),
    "qwen2": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen2_5_omni_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": replace(_QWEN3, rule=None),
    "phi3": Style(fused_qkv="qkv_proj", fused_mlp="gate_up_proj", rule=always, dropout="resid_pdrop"),
    "olmo": replace(_BIASED, norm=Norm(name="", dim=1, kind="layer", affine=False)),
    "olmo2": replace(_BIASED, place="post", qk_norm="full"),
    "olmo3": replace(_BIASED, place="post", qk_norm="full", rule=every(4)),
    "cohere": replace(_BIASED, place="parallel", norm=_UNBIASED_LAYER),
    "cohere2": replace(_BIASED, place="parallel", norm=_UNBIASED_LAYER, rule=every(4, "sliding_window_pattern")),
    "starcoder2": Style(
        norm=LAYER,
        qkv_bias="use_bias",
        o_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        up="c_fc",
        down="c_proj",
        rule=always,
        dropout="residual_dropout",
        act="gelu_pytorch_tanh",
    ),
    "nemotron": replace(_LLAMA, norm=LAYER, gated=False, rotary=0.5, act="relu2"),
    "granite": _LLAMA,
    "smollm3": replace(_LLAMA, rule=_smollm3_rule),
    "stablelm": Style(norm=LAYER, qkv_bias="use_qkv_bias", rotary=0.25, mlp_dropout="hidden_dropout"),
    "persimmon": Style(
        norm=LAYER,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        gated=False,
        fused_qkv="query_key_value",
        out="dense",
        up="dense_h_to_4h",
        down="dense_4h_to_h",
        rotary=0.5,
        mlp_dropout="hidden_dropout",
        act="relu2",
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, place="sandwich"),
    "exaone4": Style(place="post", qk_norm="head", rule=_exaone_rule),
    "ernie4_5": Style(qkv_bias="use_bias", o_bias="use_bias", mlp_bias="use_bias"),
    "hunyuan_v1_dense": replace(_BIASED, qk_norm="head", norm_after_rope=True),
    "seed_oss": Style(qkv_bias="attention_bias", o_bias="attention_out_bias", mlp_bias="mlp_bias", dropout="residual_dropout"),
    "apertus": replace(_BIASED, qk_norm="head", gated=False, act="xielu"),
    "arcee": replace(_LLAMA, gated=False, act="relu2"),
    "helium": Style(qkv_bias="attention_bias", mlp_bias="mlp_bias"),
    "cwm": Style(mlp_bias="mlp_bias", rule=every(4)),
    "phi": Style(
        place="parallel",
        norm=LAYER,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        gated=False,
        out="dense",
        up="fc1",
        down="fc2",
        rotary=0.5,
        dropout="resid_pdrop",
        act="gelu_new",
        head_bias=True,
    ),
    "exaone": _LLAMA,
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "internlm2": Style(qkv_bias="bias", o_bias="bias", fused_qkv="wqkv"),
}
_ROPE_ONLY_IN_WINDOW = ("cohere2",)
SAME_AS = {"command": "cohere"}
"""Model types that are read with the class of another."""


def _no_rope(cfg: Config, i: int) -> bool:
    """SmolLM3: ``no_rope_layers[i]`` is 0 where the layer has no rope; every ``no_rope_layer_interval``-th otherwise."""
    listed = cfg.list("no_rope_layers", default=None)
    if listed is not None:
        return i < len(listed) and not listed[i]
    interval = cfg.int("no_rope_layer_interval", default=4)
    return bool(interval) and (i + 1) % interval == 0


def _adjusted(cfg: Config, family: str, style: Style) -> Style:
    """A style with what the configuration switches on in it."""
    if family == "cohere" and cfg.bool("use_qk_norm", False):
        return replace(style, qk_norm="own", qk_kind=_UNBIASED_LAYER)
    if family == "stablelm":
        if cfg.bool("qk_layernorm", False):
            style = replace(style, qk_norm="own", qk_kind=_UNBIASED_LAYER)
        return replace(style, place="parallel" if cfg.bool("use_parallel_residual", False) else "pre")
    if family in ("persimmon", "phi") and cfg.bool("qk_layernorm", False):
        return replace(style, qk_norm="head", qk_kind=LAYER)
    return style


@reader(*STYLES, *SAME_AS)
def llama(cfg: Config) -> Architecture:
    """Llama-like dense decoders: grouped-query attention with rotary positions, a gated (or plain) MLP."""
    if cfg.model_type in SAME_AS:
        return replace(llama(cfg.like(SAME_AS[cfg.model_type])), model_type=cfg.model_type, name=cfg.model_type)
    family = cfg.model_type if cfg.model_type in STYLES else "llama"
    style, size = _adjusted(cfg, family, STYLES[family]), sizes(cfg)
    if family == "cohere2" and "head_dim" not in cfg.raw:
        size = replace(size, head_dim=cfg.divides("num_attention_heads", size.hidden, size.heads))
    elif family == "persimmon":
        size = replace(size, kv_heads=size.heads, head_dim=size.hidden // size.heads)
    ffn = ffn_size(cfg)
    no_rope: list[bool] = []
    if family == "smollm3":
        no_rope = [_no_rope(cfg, i) for i in range(size.layers)]
    elif family in _ROPE_ONLY_IN_WINDOW or (family == "exaone4" and cfg.has("sliding_window")):
        no_rope = [kind != "sliding" for kind in attention_kinds(cfg, size.layers, style.rule)[0]]
    embed: list[Operator] = []
    if family == "phi" and cfg.float("embd_pdrop", 0.0):
        embed = [Dropout(name="embed_drop", features=size.hidden, p=cfg.float("embd_pdrop", 0.0))]

    def xielu() -> list[Operator]:
        act = [Parameters(name="act_fn", shapes=((1,), (1,)))]
        return [*act, *dense_ffn(cfg, style, size, ffn)]

    final: list[Operator] = [replace(style.norm, name="norm", dim=size.hidden)]
    return dense_decoder(
        cfg, style, size, ffn=ffn, embed=embed, no_rope=no_rope, final=final, make_ffn=xielu if family == "apertus" else None
    )
