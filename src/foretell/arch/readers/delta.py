"""Linear attention with full attention in between: Qwen3-Next and 3.5, OLMo hybrid, Kimi Linear, MiniMax-01.

Source: transformers 5.24.0 ``modeling_qwen3_next``, ``modeling_qwen3_5(_moe)``, ``modeling_olmo_hybrid``,
``modeling_kimi_linear``, ``modeling_minimax``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, layer, moe, norm
from foretell.arch.operators import Act, Add, Gate, Linear, Norm, Operator, Scan
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import (
    RMS,
    Style,
    activation,
    dense_ffn,
    ffn_size,
    layer_list,
    max_positions,
    mixer,
    rotary_dim,
    sizes,
)
from foretell.arch.readers._mixers import delta_net, kimi_delta
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder, sparse_layers
from foretell.arch.readers.deepseek import latent_attention, mla_sizes

_FULL = "full_attention"


def _linear(cfg: Config, layers: int, period: int) -> list[str]:
    """Which layers are linear attention; absent: all but each ``full_attention_interval``-th."""
    listed = layer_list(cfg, "layer_types", layers)
    if listed is not None:
        return ["attention" if kind == _FULL else "delta" for kind in listed]
    period = cfg.int("full_attention_interval", default=period, low=1)
    return ["delta" if (i + 1) % period else "attention" for i in range(layers)]


@reader("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
def qwen_next(cfg: Config) -> Architecture:
    """Three gated delta nets to one gated attention; experts with a gated shared expert, or a dense MLP (3.5)."""
    size = sizes(cfg)
    turn = rotary_dim(cfg, size.head_dim, 0.25)
    bias = cfg.bool("attention_bias", False)
    sparse = {
        "qwen3_next": lambda: sparse_layers(cfg, size.layers),
        "qwen3_5_text": lambda: [False] * size.layers,
        "qwen3_5_moe_text": lambda: [True] * size.layers,
    }[cfg.model_type]()

    def mixers(kind: str, _: int) -> list[Operator]:
        if kind == "attention":
            return attention(
                "norm1",
                hidden=size.hidden,
                heads=size.heads,
                kv_heads=size.kv_heads,
                head_dim=size.head_dim,
                qkv_bias=bias,
                o_bias=bias,
                rotary=turn,
                qk_norm=RMS,
                gate=True,
                dropout=cfg.float("attention_dropout", 0.0),
            )
        return delta_net(
            "norm1",
            hidden=size.hidden,
            key_heads=cfg.int("linear_num_key_heads", low=1),
            value_heads=cfg.int("linear_num_value_heads", low=1),
            key_dim=cfg.int("linear_key_head_dim", low=1),
            value_dim=cfg.int("linear_value_head_dim", low=1),
            kernel=cfg.int("linear_conv_kernel_dim", low=1),
            layout="qkvz" if cfg.model_type == "qwen3_next" else "qkv",
        )

    def feed() -> list[Operator]:
        experts, top_k = expert_counts(cfg)
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=cfg.int("moe_intermediate_size", low=1),
            experts=experts,
            top_k=top_k,
            fn=activation(cfg),
            shared_ffn=cfg.int("shared_expert_intermediate_size", default=0),
            shared_gate=True,
        )

    dense = cfg.int("moe_intermediate_size", low=1) if all(sparse) else ffn_size(cfg)
    return sparse_decoder(
        cfg, Style(), size, sparse=sparse, dense=dense, experts=feed, mixers=mixers, window=0, kinds=_linear(cfg, size.layers, 4)
    )


@reader("olmo_hybrid")
def olmo_hybrid(cfg: Config) -> Architecture:
    """OLMo hybrid: pre-norm delta nets, post-norm attention with q/k norms over the whole projection."""
    size = sizes(cfg)
    kinds = _linear(cfg, size.layers, 4)
    if not cfg.has("layer_types") and "attention" not in kinds:
        kinds[-1] = "attention"
    key_heads = cfg.int("linear_num_key_heads", default=size.heads, low=1)
    key_dim = cfg.int("linear_key_head_dim", default=None, low=1) or int(0.75 * size.hidden / key_heads)
    cfg.check_int("linear_key_head_dim", key_dim, 1)
    post = Style(place="post", qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="full")
    ffn = ffn_size(cfg)

    def make(kind: str) -> list[Operator]:
        if kind == "attention":
            turn = size.head_dim if isinstance(cfg.raw.get("rope_parameters"), dict) else 0
            mix = mixer(cfg, post, size, rotary=turn)
            return layer(mix, dense_ffn(cfg, post, size, ffn), hidden=size.hidden, place="post")
        mix = delta_net(
            "norm1",
            hidden=size.hidden,
            key_heads=key_heads,
            key_dim=key_dim,
            layout="each",
            value_heads=cfg.int("linear_num_value_heads", default=size.heads, low=1),
            value_dim=cfg.int("linear_value_head_dim", default=2 * key_dim, low=1),
            kernel=cfg.int("linear_conv_kernel_dim", low=1),
        )
        return layer(mix, dense_ffn(cfg, Style(), size, ffn), hidden=size.hidden)

    return decoder(
        cfg,
        stack("layers", kinds, make, width=size.hidden),
        final=[norm("norm", size.hidden)],
        ffn=ffn,
        tied=cfg.bool("tie_word_embeddings", False),
        max_positions=max_positions(cfg),
        **size.facts(),
    )


@reader("kimi_linear")
def kimi_linear(cfg: Config) -> Architecture:
    """Kimi Linear: Kimi delta attention with latent attention (no rope) in between; Kimi-K3's extra keys are read."""
    size = mla_sizes(cfg)
    linear = cfg.get("linear_attn_config", default={})
    linear = linear if isinstance(linear, dict) else {}

    def of(key: str, fallback: str) -> int:
        value = linear[key] if key in linear else cfg.get(fallback)
        return cfg.check_int(f"linear_attn_config.{key}", value, 1)

    heads, dim = of("num_heads", "linear_num_heads"), of("head_dim", "linear_head_dim")
    kernel = of("short_conv_kernel_size", "linear_conv_kernel_dim")
    listed = layer_list(cfg, "layer_types", size.layers)
    if listed is not None:
        kinds = ["attention" if kind == _FULL else "delta" for kind in listed]
    elif isinstance(linear.get("full_attn_layers"), list):
        full = set(linear["full_attn_layers"])
        kinds = ["attention" if i + 1 in full else "delta" for i in range(size.layers)]
    else:
        kinds = ["attention" if i and i % 4 == 0 else "delta" for i in range(size.layers)]
    if cfg.has("mlp_layer_types"):
        sparse = sparse_layers(cfg, size.layers)
    else:
        first = cfg.int("first_k_dense_replace", default=1)
        sparse = [i >= first for i in range(size.layers)]
    experts, top_k = expert_counts(cfg)
    ffn = cfg.int("moe_intermediate_size", low=1)
    latent = cfg.int("routed_expert_hidden_size", default=0)
    notes = []
    if cfg.has("attn_res_block_size"):
        notes.append("attention over earlier blocks' residuals is not described (a few vectors a layer)")
    if latent:
        notes.append("the routed experts work on a projection of the hidden state (routed_expert_hidden_size)")

    def mixers(kind: str, _: int) -> list[Operator]:
        if kind == "attention":
            return latent_attention(cfg, size, out_gate=cfg.bool("mla_use_output_gate", False))
        return kimi_delta(
            "norm1",
            hidden=size.hidden,
            heads=heads,
            head_dim=dim,
            kernel=kernel,
            full_rank_gate=bool(linear.get("use_full_rank_gate", False)),
        )

    def feed() -> list[Operator]:
        return moe(
            "norm2",
            hidden=size.hidden,
            ffn=ffn,
            experts=experts,
            top_k=top_k,
            fn=activation(cfg),
            score="sigmoid",
            latent=latent,
            shared_ffn=ffn * cfg.int("num_shared_experts", "n_shared_experts", default=0),
        )

    return sparse_decoder(
        cfg,
        Style(),
        size,
        sparse=sparse,
        dense=ffn_size(cfg),
        experts=feed,
        mixers=mixers,
        kinds=kinds,
        window=0,
        notes=notes,
        tied=False,
    )


@reader("minimax")
def minimax(cfg: Config) -> Architecture:
    """MiniMax-01: lightning attention and softmax attention in turn; the residual starts from the normed input."""
    size = sizes(cfg)
    listed = layer_list(cfg, "layer_types", size.layers)
    if listed is None:
        listed = [_FULL if (i + 1) % 2 else "linear_attention" for i in range(size.layers)]
    kinds = ["attention" if kind == _FULL else "lightning" for kind in listed]
    experts, top_k = expert_counts(cfg)
    ffn, wide = ffn_size(cfg), size.heads * size.head_dim

    def lightning() -> list[Operator]:
        return [
            Linear(name="qkv_proj", ins=("norm1",), d_in=size.hidden, d_out=3 * wide, split="col"),
            Act(name="qkv_act", fn=activation(cfg), features=3 * wide),
            Scan(
                name="scan",
                ins=("qkv_act",),
                kind="lightning",
                d_inner=wide,
                state=size.heads * size.head_dim * size.head_dim,
            ),
            Norm(name="mixer_norm", dim=wide, split=True),
            Linear(name="output_gate", ins=("norm1",), d_in=size.hidden, d_out=wide, split="col"),
            Gate(name="gated", ins=("output_gate", "mixer_norm"), fn="sigmoid", features=wide),
            Linear(name="out_proj", d_in=wide, d_out=size.hidden, split="row"),
        ]

    def make(kind: str) -> list[Operator]:
        mix = mixer(cfg, Style(), size, window=cfg.int("sliding_window", default=0)) if kind == "attention" else lightning()
        feed = moe("norm2", hidden=size.hidden, ffn=ffn, experts=experts, top_k=top_k, fn=activation(cfg))
        return [
            norm("norm1", size.hidden, ins="x"),
            *mix,
            Add(name="add1", ins=("norm1", mix[-1].name), features=size.hidden),
            norm("norm2", size.hidden, ins="add1"),
            *feed,
            Add(name="add2", ins=("norm2", feed[-1].name), features=size.hidden),
        ]

    return decoder(
        cfg,
        stack("layers", kinds, make, width=size.hidden),
        final=[norm("norm", size.hidden)],
        ffn=ffn,
        tied=cfg.bool("tie_word_embeddings", False),
        max_positions=max_positions(cfg),
        experts=experts,
        top_k=top_k,
        **size.facts(),
    )
