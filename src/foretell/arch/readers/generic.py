"""``gpt-generic``: any GPT described by plain switches rather than by a published model type.

Keys: ``norm`` layernorm|rmsnorm, ``norm_position`` pre|post, ``final_norm``, ``gated_mlp``, ``mlp_bias``,
``attention_bias`` (q, k, v), ``attention_out_bias``, ``position_embedding`` learned|rope|none, ``lm_head_bias``,
``num_experts`` and friends, MLA keys (``kv_lora_rank`` ...), ``causal``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, layer, mla, mlp, moe, norm, pre_norm_layer, residual
from foretell.arch.operators import Norm, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._mixers import mamba2
from foretell.arch.readers._registry import reader


@reader("gpt-generic")
def gpt_generic(cfg: Config) -> Architecture:
    """Read a generic GPT."""
    hidden = cfg.int("hidden_size", low=1)
    layers = cfg.int("num_hidden_layers", low=1)
    heads = cfg.int("num_attention_heads", low=1)
    kv_heads = cfg.int("num_key_value_heads", default=heads, low=1)
    head_dim = cfg.int("head_dim", default=None) or hidden // heads
    ffn = cfg.int("intermediate_size", default=4 * hidden, low=1)
    vocab = cfg.int("vocab_size", low=1)
    kind = {"layernorm": "layer", "rmsnorm": "rms"}[cfg.str("norm", "layernorm")]
    bias = kind == "layer"
    gated, mlp_bias = cfg.bool("gated_mlp"), cfg.bool("mlp_bias")
    fn = cfg.str("hidden_act", "gelu")
    experts = cfg.int("num_experts", "num_local_experts", default=0)
    top_k = cfg.int("num_experts_per_tok", default=1) if experts else 0
    expert_ffn = cfg.int("moe_intermediate_size", default=ffn)
    dense_first = cfg.int("first_k_dense_replace", default=0)
    shared = cfg.int("n_shared_experts", default=0) * expert_ffn or cfg.int("shared_expert_intermediate_size", default=0)
    rope = cfg.str("position_embedding", "learned") == "rope"

    def mixer(x: str) -> list[Operator]:
        if cfg.has("kv_lora_rank"):
            return mla(
                x,
                hidden=hidden,
                heads=heads,
                q_lora=cfg.int("q_lora_rank", default=None),
                kv_lora=cfg.int("kv_lora_rank"),
                nope=cfg.int("qk_nope_head_dim"),
                rope=cfg.int("qk_rope_head_dim"),
                v_dim=cfg.int("v_head_dim"),
            )
        return attention(
            x,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=cfg.bool("attention_bias"),
            o_bias=cfg.bool("attention_out_bias"),
            rotary=head_dim if rope else 0,
            causal=cfg.bool("causal", True),
            qk_norm=Norm(name="", dim=head_dim, kind=kind, bias=bias) if cfg.bool("qk_layernorm") else None,  # type: ignore[arg-type]
        )

    def feed(x: str, routed: bool) -> list[Operator]:
        if routed:
            return moe(
                x,
                hidden=hidden,
                ffn=expert_ffn,
                experts=experts,
                top_k=top_k,
                fn=fn,
                gated=gated,
                bias=mlp_bias,
                shared_ffn=shared,
            )
        return mlp(x, hidden=hidden, ffn=ffn, fn=fn, gated=gated, bias=mlp_bias)

    def make(key: object) -> list[Operator]:
        routed = key == "moe"
        if cfg.str("norm_position", "pre") == "pre":
            return pre_norm_layer(mixer("norm1"), feed("norm2", routed), hidden=hidden, kind=kind, bias=bias)
        mix, ff = mixer("x"), feed("norm1", routed)
        return [
            *mix,
            *residual("add1", "x", mix[-1].name, hidden),
            norm("norm1", hidden, kind, bias=bias, ins="add1"),
            *ff,
            *residual("add2", "norm1", ff[-1].name, hidden),
            norm("norm2", hidden, kind, bias=bias, ins="add2"),
        ]

    keys = ["moe" if experts and i >= dense_first else "dense" for i in range(layers)]
    positions: list[Operator] = []
    if not rope and cfg.str("position_embedding", "learned") == "learned":
        positions.append(
            Parameters(name="positions", shapes=((cfg.int("max_position_embeddings", low=1), hidden),), role="embedding")
        )
    return decoder(
        cfg,
        stack("layers", keys, make, width=hidden),
        hidden=hidden,
        vocab=vocab,
        tied=cfg.bool("tie_word_embeddings"),
        final=[norm("norm", hidden, kind, bias=bias)] if cfg.bool("final_norm", True) else [],
        embed=positions,
        head_bias=cfg.bool("lm_head_bias"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        experts=experts,
        top_k=top_k,
        max_positions=cfg.int("max_position_embeddings", default=None),
    )


@reader("megatron-hybrid")
def megatron_hybrid(cfg: Config) -> Architecture:
    """Megatron-Core's hybrid stack: ``hybrid_layer_pattern`` of M (Mamba 2), * (attention) and - (MLP) layers."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    kv_heads = cfg.int("num_key_value_heads", default=heads, low=1)
    kind = {"layernorm": "layer", "rmsnorm": "rms"}[cfg.str("norm", "layernorm")]
    bias = kind == "layer"
    inner = cfg.int("mamba_expand", default=2, low=1) * hidden
    pattern = cfg.str("hybrid_layer_pattern").replace("|", "")
    if not pattern or set(pattern) - set("M*-"):
        raise cfg.error("hybrid_layer_pattern", pattern, "a string of M, * and -", "correct the pattern")

    def make(letter: object) -> list[Operator]:
        if letter == "*":
            part = attention(
                "norm1",
                hidden=hidden,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=hidden // heads,
                qkv_bias=cfg.bool("attention_bias"),
                o_bias=cfg.bool("attention_bias"),
                rotary=0,
            )
        elif letter == "-":
            part = mlp(
                "norm1",
                hidden=hidden,
                ffn=cfg.int("intermediate_size", low=1),
                fn=cfg.str("hidden_act", "gelu"),
                gated=False,
                bias=cfg.bool("mlp_bias"),
            )
        else:
            part = mamba2(
                "norm1",
                hidden=hidden,
                inner=inner,
                heads=inner // cfg.int("mamba_head_dim", default=64, low=1),
                groups=cfg.int("mamba_num_groups", default=8, low=1),
                state=cfg.int("mamba_state_dim", default=128, low=1),
                kernel=cfg.int("mamba_conv_kernel", default=4, low=1),
                proj_bias=False,
                conv_bias=True,
            )
        return layer(part, [], hidden=hidden, kind=Norm(name="", dim=hidden, kind=kind, bias=bias))  # type: ignore[arg-type]

    positions: list[Operator] = []
    if cfg.str("position_embedding", "learned") == "learned":
        positions.append(
            Parameters(name="positions", shapes=((cfg.int("max_position_embeddings", low=1), hidden),), role="embedding")
        )
    return decoder(
        cfg,
        stack("layers", list(pattern), make, width=hidden),
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings"),
        final=[norm("norm", hidden, kind, bias=bias)],
        embed=positions,
        heads=heads,
        kv_heads=kv_heads,
        max_positions=cfg.int("max_position_embeddings", default=None),
    )
