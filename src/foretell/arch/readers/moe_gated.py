"""Experts under attention that is not ordinary: MiMo-V2 (two shapes of heads), Step-3.5 (output gates), MiniMax-M3.

Source: transformers 5.24.0 ``modeling_mimo_v2_flash``, ``modeling_step3p7``, ``modeling_minimax_m3_vl``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, moe
from foretell.arch.operators import Gate, Linear, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._layers import Style, attention_kinds, ffn_size, layer_list, mixer, rotary_dim, sizes
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder, sparse_layers

NO_GRADIENT = "the indexer chooses keys without a gradient: the language-model loss does not train its weights"


@reader("mimo_v2_flash")
def mimo(cfg: Config) -> Architecture:
    """MiMo-V2-Flash: windowed layers have sinks and twice the key/value heads; values narrower than keys."""
    size, style = sizes(cfg), Style()
    v_dim = cfg.int("v_head_dim", default=size.head_dim, low=1)
    listed = layer_list(cfg, "layer_types", size.layers)
    kinds = [
        "attention" if (i == 0 or (i + 1) % 6 == 0 if listed is None else listed[i] == "full_attention") else "sliding"
        for i in range(size.layers)
    ]
    experts, top_k = expert_counts(cfg)
    window = cfg.int("sliding_window_size", default=None)
    window = cfg.int("sliding_window", default=0) if window is None else window + 1
    turn = rotary_dim(cfg, size.head_dim, 0.334)
    mlp_types = layer_list(cfg, "mlp_layer_types", size.layers)
    sparse = [kind != "dense" for kind in mlp_types] if mlp_types else [i > 0 for i in range(size.layers)]

    def mixers(kind: str, seen: int) -> list[Operator]:
        return attention(
            "norm1",
            hidden=size.hidden,
            heads=size.heads,
            kv_heads=size.kv_heads * (2 if kind == "sliding" else 1),
            head_dim=size.head_dim,
            v_dim=v_dim,
            qkv_bias=cfg.bool("attention_bias", False),
            rotary=turn,
            window=seen,
            sinks=kind == "sliding",
            dropout=cfg.float("attention_dropout", 0.0),
        )

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=cfg.int("moe_intermediate_size", low=1),
            experts=experts,
            top_k=top_k,
            score="sigmoid",
        )

    return sparse_decoder(
        cfg, style, size, sparse=sparse, dense=ffn_size(cfg), experts=feed, mixers=mixers, kinds=kinds, window=window
    )


@reader("step3p5")
def step(cfg: Config) -> Architecture:
    """Step-3.5: a gate a head on the attention's output, its own head count in windowed layers."""
    size = sizes(cfg)
    style = Style(qkv_bias="attention_bias", o_bias="attention_bias", mlp_bias="mlp_bias", qk_norm="head")
    own = cfg.get("attention_other_setting", default={})
    slid = cfg.int("num_sliding_attention_heads", default=None)
    if slid is None:
        slid = own.get("num_attention_heads", size.heads) if isinstance(own, dict) else size.heads
    extra = cfg.int("num_nextn_predict_layers", default=0)
    padded = size.layers + extra
    cfg.raw = {
        k: v[: size.layers] if k in ("layer_types", "mlp_layer_types") and isinstance(v, list) and len(v) == padded else v
        for k, v in cfg.raw.items()
    }
    kinds, window = attention_kinds(cfg, size.layers)
    mlp_types = layer_list(cfg, "mlp_layer_types", size.layers)
    if mlp_types is None:
        named = cfg.get("moe_layers_enum", default=None)
        items = named.split(",") if isinstance(named, str) else named
        allowed = "layer numbers, as a list or with commas"
        if items is not None and not (isinstance(items, list) and all(str(i).strip().isdecimal() for i in items)):
            raise cfg.error("moe_layers_enum", named, allowed, "correct the list")
        chosen = range(3, size.layers) if items is None else [int(i) for i in items]
        sparse = [i in chosen for i in range(size.layers)]
    else:
        sparse = [kind != "dense" for kind in mlp_types]
    experts, top_k = expert_counts(cfg)
    per_head = cfg.get("gating", default="per-head") in (True, "per-head")

    def mixers(kind: str, seen: int) -> list[Operator]:
        heads = cfg.check_int("num_attention_heads", slid, 1) if kind == "sliding" else size.heads
        *core, out = mixer(cfg, style, replace(size, heads=heads), window=seen)
        width = heads * size.head_dim
        gate = Linear(name="g_proj", ins=("norm1",), d_in=size.hidden, d_out=heads if per_head else width, split="col")
        return [*core, gate, Gate(name="attn_gate", ins=("g_proj", "attn"), fn="sigmoid", features=width), out]

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=cfg.int("moe_intermediate_size", low=1),
            experts=experts,
            top_k=top_k,
            score="sigmoid",
            shared_ffn=cfg.int("share_expert_dim", default=0),
            shared_bias=cfg.bool("mlp_bias", False),
        )

    return sparse_decoder(
        cfg, style, size, sparse=sparse, dense=ffn_size(cfg), experts=feed, mixers=mixers, kinds=kinds, window=window
    )


@reader("minimax_m3_vl_text", "minimax_m3")
def minimax_m3(cfg: Config) -> Architecture:
    """MiniMax-M3: per-head q/k norms, block-sparse attention chosen by an indexer, fused gate-up projections."""
    size = sizes(cfg)
    nested = cfg.get("sparse_attention_config", default={})
    nested = nested if isinstance(nested, dict) else {}
    kinds, _ = attention_kinds(cfg, size.layers)
    freq = nested.get("sparse_attention_freq")
    if not cfg.has("layer_types") and isinstance(freq, list):
        if len(freq) != size.layers:
            raise cfg.error("sparse_attention_freq", freq, f"{size.layers} numbers, one a layer", "correct the list")
        kinds = ["sparse" if f else "attention" for f in freq]
    kinds = ["sparse" if kind == "minimax_m3_sparse" else kind for kind in kinds]
    n = cfg.check_int("index_n_heads", nested.get("sparse_num_index_heads", cfg.get("index_n_heads", default=4)), 1)
    dim = cfg.check_int("index_head_dim", nested.get("sparse_index_dim", cfg.get("index_head_dim", default=128)), 1)
    experts, top_k = expert_counts(cfg)
    turn = cfg.int("rotary_dim", default=size.head_dim)
    style = Style(qk_norm="head", fused_mlp="gate_up_proj")

    def mixers(kind: str, _: int) -> list[Operator]:
        ops = mixer(cfg, style, size, rotary=turn)
        if kind != "sparse":
            return ops
        shapes = ((n * dim, size.hidden), (dim, size.hidden), (dim,), (dim,))
        return [Parameters(name="indexer", shapes=shapes, role="matrix"), *ops]

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=ffn_size(cfg),
            experts=experts,
            top_k=top_k,
            score="sigmoid",
            fn="swigluoai",
            shared_ffn=cfg.int("shared_intermediate_size", low=1),
            shared_fused="gate_up_proj",
        )

    return sparse_decoder(
        cfg,
        style,
        size,
        sparse=sparse_layers(cfg, size.layers),
        dense=cfg.int("dense_intermediate_size", low=1),
        experts=feed,
        mixers=mixers,
        kinds=kinds,
        notes=[NO_GRADIENT] if "sparse" in kinds else [],
    )
