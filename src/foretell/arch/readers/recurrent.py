"""RWKV, RecurrentGemma, the short convolutions of LFM2, and XLNet.

Source: transformers 5.24.0 ``modeling_rwkv``, ``_recurrent_gemma``, ``_lfm2``, ``_lfm2_moe``, ``_xlnet``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import layer, mlp, moe, norm
from foretell.arch.operators import (
    Act,
    Add,
    Attention,
    Conv,
    Dropout,
    Gate,
    Linear,
    Mul,
    Norm,
    Operator,
    Parameters,
    Scan,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Style, activation, layer_list, max_positions, mixer, rotary_dim, sizes
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder


@reader("rwkv")
def rwkv(cfg: Config) -> Architecture:
    """RWKV-4: time mixing and channel mixing; the first layer norms the embeddings."""
    hidden, layers = cfg.int("hidden_size", low=1), cfg.int("num_hidden_layers", low=1)
    wide = cfg.int("attention_hidden_size", default=hidden, low=1)
    ffn = cfg.int("intermediate_size", default=4 * hidden, low=1)

    def body(source: str) -> list[Operator]:
        def col(name: str, x: str, d_in: int, d_out: int) -> Linear:
            return Linear(name=name, ins=(x,), d_in=d_in, d_out=d_out, split="col")

        return [
            norm("norm1", hidden, "layer", bias=True, ins=source),
            Parameters(name="time_mix", shapes=((1, 1, hidden),) * 3),
            Mul(name="mixed_k", ins=("norm1",), features=hidden),
            Mul(name="mixed_v", ins=("norm1",), features=hidden),
            Mul(name="mixed_r", ins=("norm1",), features=hidden),
            col("key", "mixed_k", hidden, wide),
            col("value", "mixed_v", hidden, wide),
            col("receptance", "mixed_r", hidden, wide),
            Scan(
                name="scan",
                ins=("key", "value"),
                kind="rwkv",
                d_inner=wide,
                state=3 * wide,
                extra=(Weight("time_decay", (wide,), "tp"), Weight("time_first", (wide,), "tp")),
            ),
            Gate(name="gated", ins=("receptance", "scan"), fn="sigmoid", features=wide),
            Linear(name="output", d_in=wide, d_out=hidden, split="row"),
            Add(name="add1", ins=(source, "output"), features=hidden),
            norm("norm2", hidden, "layer", bias=True, ins="add1"),
            Parameters(name="channel_mix", shapes=((1, 1, hidden),) * 2),
            Mul(name="mixed_ffn_k", ins=("norm2",), features=hidden),
            Mul(name="mixed_ffn_r", ins=("norm2",), features=hidden),
            col("ffn_key", "mixed_ffn_k", hidden, ffn),
            Act(name="act", fn="relu2", features=ffn),
            Linear(name="ffn_value", d_in=ffn, d_out=hidden, split="row"),
            Linear(name="ffn_receptance", ins=("mixed_ffn_r",), d_in=hidden, d_out=hidden),
            Gate(name="ffn_gated", ins=("ffn_receptance", "ffn_value"), fn="sigmoid", features=hidden, split=False),
            Add(name="add2", ins=("add1", "ffn_gated"), features=hidden),
        ]

    pre = norm("pre_ln", hidden, "layer", bias=True, ins="x")
    first = Block(name="rwkv-first", width=hidden, ops=(pre, *body("pre_ln")))
    rest = Block(name="rwkv", width=hidden, ops=tuple(body("x")))
    trunk = Stack(name="layers", blocks=(first, rest), pattern=(0, *(1,) * (layers - 1)))
    return decoder(
        cfg,
        trunk,
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings", False),
        final=[norm("norm", hidden, "layer", bias=True)],
        ffn=ffn,
        max_positions=cfg.int("context_length", default=None),
    )


@reader("recurrent_gemma")
def recurrent_gemma(cfg: Config) -> Architecture:
    """RecurrentGemma: two RG-LRU layers to one of local attention; ``intermediate_size`` counts gate and up."""
    size = sizes(cfg)
    if "head_dim" not in cfg.raw:
        size = replace(size, head_dim=cfg.divides("num_attention_heads", size.hidden, size.heads))
    hidden, width = size.hidden, cfg.int("lru_width", default=size.hidden, low=1)
    types = cfg.list("block_types")
    if not types:
        raise cfg.error("block_types", types, "a list of recurrent and attention", "give at least one")
    kinds = ["recurrent" if types[i % len(types)] == "recurrent" else "sliding" for i in range(size.layers)]
    ffn = cfg.divides("intermediate_size", cfg.int("intermediate_size", low=2), 2)
    per_head = cfg.divides("num_attention_heads", width, size.heads)
    turn = rotary_dim(cfg, size.head_dim, 0.5)
    square, line = (size.heads, per_head, per_head), (size.heads, per_head)
    style = Style(qkv_bias="attention_bias", o_bias=True)

    def make(kind: str) -> list[Operator]:
        if kind == "sliding":
            mix = mixer(cfg, style, size, rotary=turn, window=cfg.int("attention_window_size", default=0))
        else:
            mix = [
                Linear(name="linear_y", ins=("norm1",), d_in=hidden, d_out=width, bias=True, split="col"),
                Linear(name="linear_x", ins=("norm1",), d_in=hidden, d_out=width, bias=True, split="col"),
                Conv(
                    name="conv_1d",
                    c_in=width,
                    c_out=width,
                    kernel=(cfg.int("conv1d_width", low=1),),
                    groups=width,
                    split=True,
                ),
                Scan(
                    name="scan",
                    ins=("conv_1d",),
                    kind="rglru",
                    d_inner=width,
                    state=width,
                    stored=2 * width,
                    extra=(
                        Weight("recurrent_param", (width,), "tp"),
                        Weight("input_gate_weight", square, "tp", "matrix"),
                        Weight("input_gate_bias", line, "tp"),
                        Weight("recurrent_gate_weight", square, "tp", "matrix"),
                        Weight("recurrent_gate_bias", line, "tp"),
                    ),
                ),
                Gate(name="gated", ins=("linear_y", "scan"), fn=activation(cfg), features=width),
                Linear(name="linear_out", d_in=width, d_out=hidden, bias=True, split="row"),
            ]
        feed = mlp("norm2", hidden=hidden, ffn=ffn, fn=activation(cfg), bias=True)
        return layer(mix, feed, hidden=hidden)

    return decoder(
        cfg,
        stack("layers", kinds, make, width=hidden),
        final=[norm("norm", hidden)],
        ffn=ffn,
        tied=cfg.bool("tie_word_embeddings", True),
        **size.facts(),
    )


@reader("lfm2", "lfm2_moe")
def lfm2(cfg: Config) -> Architecture:
    """LFM2: gated short convolutions with some attention; experts after ``num_dense_layers`` in the sparse model."""
    size, sparse = sizes(cfg), cfg.model_type == "lfm2_moe"
    hidden, bias = size.hidden, cfg.bool("conv_bias", False)
    listed = layer_list(cfg, "layer_types", size.layers)
    if listed is None:
        full = cfg.ints("full_attn_idxs", default=None)
        full = set(range(size.layers)) if full is None else set(full)
        listed = ["full_attention" if i in full else "conv" for i in range(size.layers)]
    ffn = cfg.int("block_ff_dim", "intermediate_size", low=1)
    if not sparse and cfg.bool("block_auto_adjust_ff_dim", True):
        ffn = int(2 * ffn / 3)
        step = cfg.int("block_multiple_of", default=256, low=1)
        ffn = step * ((int(cfg.float("block_ffn_dim_multiplier", 1.0) * ffn) + step - 1) // step)
    experts, top_k = expert_counts(cfg) if sparse else (0, 0)
    dense = cfg.int("num_dense_layers", default=0) if sparse else size.layers
    style = Style(qk_norm="head", out="out_proj")
    kernel = cfg.int("conv_L_cache", low=1)

    def mixers(kind: str, _: int) -> list[Operator]:
        if kind == "attention":
            return mixer(cfg, style, size)
        return [
            Linear(name="in_proj", ins=("norm1",), d_in=hidden, d_out=3 * hidden, bias=bias, split="col"),
            Mul(name="input_gated", ins=("in_proj",), features=hidden),
            Conv(name="conv", c_in=hidden, c_out=hidden, kernel=(kernel,), groups=hidden, bias=bias, split=True),
            Mul(name="gated", ins=("in_proj", "conv"), features=hidden),
            Linear(name="out_proj", d_in=hidden, d_out=hidden, bias=bias, split="row"),
        ]

    return sparse_decoder(
        cfg,
        style,
        size,
        sparse=[i >= dense for i in range(size.layers)],
        dense=ffn,
        mixers=mixers,
        window=0,
        kinds=["attention" if kind == "full_attention" else "conv" for kind in listed],
        experts=lambda: moe(
            "norm2",
            hidden=hidden,
            ffn=cfg.int("moe_intermediate_size", low=1),
            experts=experts,
            top_k=top_k,
            score="sigmoid",
        ),
        tied=cfg.bool("tie_embedding", cfg.bool("tie_word_embeddings", True)),
    )


@reader("xlnet")
def xlnet(cfg: Config) -> Architecture:
    """XLNet language model: relative positions with a projection of their own, norms on the residual sums."""
    hidden, heads = cfg.int("d_model", low=1), cfg.int("n_head", low=1)
    head_dim = cfg.divides("n_head", hidden, heads)
    ffn, p, wide = cfg.int("d_inner", low=1), cfg.float("dropout", 0.1), heads * head_dim
    small = tuple(Weight(f"r_{k}_bias", (heads, head_dim), "tp") for k in "rsw")
    kind = Norm(name="", dim=hidden, kind="layer", bias=True)
    attn: list[Operator] = [
        *(Linear(name=k, ins=("x",), d_in=hidden, d_out=wide, split="col") for k in ("q", "k", "v", "r")),
        Attention(
            name="attn",
            ins=("q", "k", "v"),
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            v_dim=head_dim,
            causal=False,
            extra=(*small, Weight("seg_embed", (2, heads, head_dim), "tp")),
            fused=False,
            dropout=p,
        ),
        Linear(name="o", d_in=wide, d_out=hidden, split="row"),
    ]
    feed = mlp("norm1", hidden=hidden, ffn=ffn, fn=cfg.str("ff_activation", "gelu"), gated=False, bias=True)
    ops = layer(attn, feed, hidden=hidden, place="after", kind=kind, dropout=p)
    trunk = stack("layers", ["layer"] * cfg.int("n_layer", low=1), lambda _: ops, width=hidden)
    embed: list[Operator] = [Parameters(name="mask_emb", shapes=((1, 1, hidden),))]
    final: list[Operator] = []
    if p:
        embed.append(Dropout(name="embed_drop", ins=("embed_tokens",), features=hidden, p=p))
        final.append(Dropout(name="final_drop", features=hidden, p=p))
    return decoder(
        cfg,
        trunk,
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings", True),
        final=final,
        embed=embed,
        head_bias=True,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        max_positions=max_positions(cfg),
    )
