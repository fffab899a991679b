"""Mamba and Mamba 2, and the hybrids that put attention between their layers: Jamba, Bamba, Granite 4, Falcon-H1.

Source: transformers 5.24.0 ``modeling_mamba``, ``_falcon_mamba``, ``_mamba2``, ``_jamba``, ``_bamba``,
``_granitemoehybrid``, ``_falcon_h1``.
"""

from __future__ import annotations

import math
from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import layer, mlp, moe, norm
from foretell.arch.operators import Add, Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import (
    Sizes,
    Style,
    activation,
    dense_ffn,
    ffn_size,
    flag,
    layer_list,
    max_positions,
    mixer,
    sizes,
)
from foretell.arch.readers._mixers import mamba1, mamba2
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder


@reader("mamba", "falcon_mamba")
def mamba(cfg: Config) -> Architecture:
    """Mamba and Falcon-Mamba (which norms dt, B and C without weights): no attention, no feed-forward."""
    hidden, layers = cfg.int("hidden_size", low=1), cfg.int("num_hidden_layers", low=1)
    inner = cfg.check_int("expand", int(cfg.float("expand", 2.0) * hidden), 1)
    rank = cfg.get("time_step_rank", default="auto")
    rank = math.ceil(hidden / 16) if rank == "auto" else cfg.check_int("time_step_rank", rank, 1)
    plain = cfg.model_type == "falcon_mamba"

    def make(_: object) -> list[Operator]:
        mix = mamba1(
            "norm1",
            hidden=hidden,
            inner=inner,
            state=cfg.int("state_size", low=1),
            dt_rank=rank,
            kernel=cfg.int("conv_kernel", low=1),
            proj_bias=cfg.bool("use_bias", False),
            conv_bias=cfg.bool("use_conv_bias", True),
            norms=plain,
            bare_norms=plain,
        )
        return layer(mix, [], hidden=hidden)

    return decoder(
        cfg,
        stack("layers", ["mamba"] * layers, make, width=hidden),
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings", True),
        final=[norm("norm", hidden)],
    )


@reader("mamba2")
def mamba_2(cfg: Config) -> Architecture:
    """Mamba 2: ``num_heads`` heads of ``head_dim`` must make up ``expand`` times the hidden size."""
    hidden, layers = cfg.int("hidden_size", low=1), cfg.int("num_hidden_layers", low=1)
    inner = cfg.check_int("expand", int(cfg.float("expand", 2.0) * hidden), 1)
    heads = cfg.int("num_heads", low=1)
    if heads * cfg.int("head_dim", default=inner // heads) != inner:
        raise cfg.error("num_heads", heads, f"num_heads x head_dim = expand x hidden_size = {inner}", "correct one")

    def make(_: object) -> list[Operator]:
        mix = mamba2(
            "norm1",
            hidden=hidden,
            inner=inner,
            heads=heads,
            groups=cfg.int("n_groups", low=1),
            state=cfg.int("state_size", low=1),
            kernel=cfg.int("conv_kernel", low=1),
            proj_bias=cfg.bool("use_bias", False),
            conv_bias=cfg.bool("use_conv_bias", True),
        )
        return layer(mix, [], hidden=hidden)

    return decoder(
        cfg,
        stack("layers", ["mamba"] * layers, make, width=hidden),
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings", False),
        final=[norm("norm", hidden)],
    )


@reader("jamba")
def jamba(cfg: Config) -> Architecture:
    """Jamba: one attention layer in ``attn_layer_period``, experts in one layer of ``expert_layer_period``."""
    size = sizes(cfg)
    rank = cfg.get("mamba_dt_rank", default="auto")
    rank = math.ceil(size.hidden / 16) if rank == "auto" else cfg.check_int("mamba_dt_rank", rank, 1)
    inner = cfg.int("mamba_expand", default=2, low=1) * size.hidden
    experts, top_k = expert_counts(cfg)
    ffn = ffn_size(cfg)

    def periodic(what: str) -> list[bool]:
        period, offset = cfg.int(f"{what}_layer_period", low=1), cfg.int(f"{what}_layer_offset")
        return [i % period == offset for i in range(size.layers)]

    def mixers(kind: str, _: int) -> list[Operator]:
        if kind == "attention":
            return mixer(cfg, Style(), size, rotary=0)
        return mamba1(
            "norm1",
            hidden=size.hidden,
            inner=inner,
            state=cfg.int("mamba_d_state", low=1),
            dt_rank=rank,
            kernel=cfg.int("mamba_d_conv", low=1),
            proj_bias=cfg.bool("mamba_proj_bias", False),
            conv_bias=cfg.bool("mamba_conv_bias", True),
            norms=True,
        )

    return sparse_decoder(
        cfg,
        Style(),
        size,
        dense=ffn,
        mixers=mixers,
        window=0,
        sparse=[s and experts > 1 for s in periodic("expert")],
        kinds=["attention" if a else "mamba" for a in periodic("attn")],
        experts=lambda: moe("norm2", hidden=size.hidden, ffn=ffn, experts=experts, top_k=top_k, fn=activation(cfg)),
    )


def state_space(cfg: Config, size: Sizes, *, gated_norm: bool = True, out_bias: bool | None = None) -> list[Operator]:
    """A Mamba-2 mixer as Bamba, Granite 4 and Falcon-H1 configure it."""
    heads = cfg.int("mamba_n_heads", low=1)
    inner = cfg.int("mamba_expand", default=2, low=1) * size.hidden
    if cfg.model_type == "falcon_h1":
        inner = cfg.int("mamba_d_ssm", default=inner, low=1)
    head_dim = cfg.get("mamba_d_head", default="auto")
    if head_dim != "auto" and cfg.check_int("mamba_d_head", head_dim, 1) * heads != inner:
        raise cfg.error("mamba_d_head", head_dim, f"mamba_n_heads x mamba_d_head = {inner}", "correct one of them")
    return mamba2(
        "norm1",
        hidden=size.hidden,
        inner=inner,
        heads=heads,
        groups=cfg.int("mamba_n_groups", low=1),
        state=cfg.int("mamba_d_state", low=1),
        kernel=cfg.int("mamba_d_conv", low=1),
        proj_bias=cfg.bool("mamba_proj_bias", False),
        conv_bias=cfg.bool("mamba_conv_bias", True),
        gated_norm=gated_norm,
        out_bias=out_bias,
    )


@reader("bamba", "granitemoehybrid")
def bamba(cfg: Config) -> Architecture:
    """Bamba (dense) and Granite 4 (experts, or none, beside a shared network): Mamba 2 with some attention."""
    size, granite = sizes(cfg), cfg.model_type == "granitemoehybrid"
    if granite:
        listed = layer_list(cfg, "layer_types", size.layers) or ["linear_attention"] * size.layers
        kinds = ["attention" if kind == "full_attention" else "mamba" for kind in listed]
    else:
        chosen = set(cfg.ints("attn_layer_indices", default=[]))
        kinds = ["attention" if i in chosen else "mamba" for i in range(size.layers)]
    style = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias=False if granite else "mlp_bias")
    rope = cfg.get("position_embedding_type", default="") == "rope" if granite else True
    experts = cfg.int("num_local_experts", default=0) if granite else 0
    shared = cfg.int("shared_intermediate_size", default=0) if granite else 0

    def mixers(kind: str, _: int) -> list[Operator]:
        if kind == "attention":
            return mixer(cfg, replace(style, rotary=1.0 if granite else 0.5), size, rotary=None if rope else 0)
        return state_space(cfg, size)

    def feed() -> list[Operator]:
        if not experts:
            return mlp("norm2", hidden=size.hidden, ffn=shared, fn=activation(cfg), fused="input_linear")
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=ffn_size(cfg),
            experts=experts,
            top_k=cfg.int("num_experts_per_tok", low=1),
            fn=activation(cfg),
            shared_ffn=shared,
            shared_fused="input_linear",
        )

    return sparse_decoder(
        cfg, style, size, sparse=[granite] * size.layers, dense=ffn_size(cfg), experts=feed, mixers=mixers, kinds=kinds, window=0
    )


@reader("falcon_h1")
def falcon_h1(cfg: Config) -> Architecture:
    """Falcon-H1: attention and Mamba 2 side by side on the same norm, their outputs added."""
    size = sizes(cfg)
    style = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias")

    def make(_: object) -> list[Operator]:
        space = state_space(cfg, size, gated_norm=flag(cfg, "mamba_rms_norm"), out_bias=flag(cfg, "projectors_bias"))
        both = [*space, *mixer(cfg, style, size), Add(name="mixed", ins=("out_proj", "o_proj"), features=size.hidden)]
        return layer(both, dense_ffn(cfg, style, size, ffn_size(cfg)), hidden=size.hidden)

    return decoder(
        cfg,
        stack("layers", ["hybrid"] * size.layers, make, width=size.hidden),
        final=[norm("norm", size.hidden)],
        ffn=ffn_size(cfg),
        tied=cfg.bool("tie_word_embeddings", False),
        max_positions=max_positions(cfg),
        **size.facts(),
    )
