"""``gpt-generic``: any GPT described by plain switches rather than by a published model type.

Keys: ``norm`` layernorm|rmsnorm, ``norm_position`` pre|post, ``final_norm``, ``gated_mlp``, ``mlp_bias``,
``attention_bias`` (q, k, v), ``attention_out_bias``, ``attention_gate``, ``attention_sinks``, ``position_embedding``
learned|rope|none, ``lm_head_bias``, ``causal``, MLA keys (``kv_lora_rank`` ...); experts: ``num_experts`` and friends,
``mlp_layer_types`` or ``first_k_dense_replace``, ``shared_expert_gate``, ``moe_latent_size``; mixers: ``sliding_window`` and
``layer_types`` (full_attention, sliding_attention, linear_attention with the keys of a gated delta net);
``num_nextn_predict_layers``, which only training that asks for them has.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import attention, layer, mla, mlp, moe, norm, pre_norm_layer, residual
from foretell.arch.operators import Norm, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import decoder, stack
from foretell.arch.readers._layers import Sizes, always, attention_kinds, rotary_dim
from foretell.arch.readers._mixers import delta_net, mamba2
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_layers
from foretell.arch.readers.deepseek import next_token_layers


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
    sparse = sparse_layers(cfg, layers) if experts else [False] * layers
    kinds, window = attention_kinds(cfg, layers, always)
    if strange := sorted(set(kinds) - {"attention", "sliding", "linear_attention"}):
        allowed = "full_attention, sliding_attention or linear_attention"
        raise cfg.error("layer_types", strange[0], allowed, "correct the list")
    shared = cfg.int("n_shared_experts", default=0) * expert_ffn or cfg.int("shared_expert_intermediate_size", default=0)
    rope = cfg.str("position_embedding", "learned") == "rope"

    def mixer(x: str, mix: str) -> list[Operator]:
        if mix == "linear_attention":
            return delta_net(
                x,
                hidden=hidden,
                key_heads=cfg.int("linear_num_key_heads", low=1),
                value_heads=cfg.int("linear_num_value_heads", low=1),
                key_dim=cfg.int("linear_key_head_dim", low=1),
                value_dim=cfg.int("linear_value_head_dim", low=1),
                kernel=cfg.int("linear_conv_kernel_dim", low=1),
            )
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
            rotary=rotary_dim(cfg, head_dim) if rope else 0,
            causal=cfg.bool("causal", True),
            window=window if mix == "sliding" else 0,
            sinks=cfg.bool("attention_sinks"),
            gate=cfg.bool("attention_gate"),
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
                latent=cfg.int("moe_latent_size", default=0),
                shared_ffn=shared,
                shared_gate=cfg.bool("shared_expert_gate"),
            )
        return mlp(x, hidden=hidden, ffn=ffn, fn=fn, gated=gated, bias=mlp_bias)

    def make(key: str) -> list[Operator]:
        which, _, routed = key.rpartition("-")
        if cfg.str("norm_position", "pre") == "pre":
            parts = mixer("norm1", which), feed("norm2", routed == "moe")
            return pre_norm_layer(*parts, hidden=hidden, kind=kind, bias=bias)
        mix, ff = mixer("x", which), feed("norm1", routed == "moe")
        return [
            *mix,
            *residual("add1", "x", mix[-1].name, hidden),
            norm("norm1", hidden, kind, bias=bias, ins="add1"),
            *ff,
            *residual("add2", "norm1", ff[-1].name, hidden),
            norm("norm2", hidden, kind, bias=bias, ins="add2"),
        ]

    keys = ["moe" if s else "dense" for s in sparse]
    if len(set(kinds)) > 1 or kinds[0] != "attention":
        keys = [f"{which}-{key}" for which, key in zip(kinds, keys, strict=True)]
    positions: list[Operator] = []
    if not rope and cfg.str("position_embedding", "learned") == "learned":
        positions.append(
            Parameters(name="positions", shapes=((cfg.int("max_position_embeddings", low=1), hidden),), role="embedding")
        )
    more = cfg.int("num_nextn_predict_layers", default=0)
    size = Sizes(hidden, layers, heads, kv_heads, head_dim, vocab)
    own = next_token_layers(size, more, mixer("norm1", kinds[-1]), feed("norm2", sparse[-1])) if more else ()
    arch = decoder(
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
    return replace(arch, unused=own)


@reader("megatron-hybrid")
def megatron_hybrid(cfg: Config) -> Architecture:
    """Megatron-Core's hybrid stack: ``hybrid_layer_pattern`` of M (Mamba 2), * (attention), - (MLP) and E (experts) layers.

    ``num_nextn_predict_layers`` of ``mtp_layer_pattern``, two letters: what mixes, and a network.
    """
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    kv_heads = cfg.int("num_key_value_heads", default=heads, low=1)
    head_dim = cfg.int("head_dim", default=None) or hidden // heads
    kind = {"layernorm": "layer", "rmsnorm": "rms"}[cfg.str("norm", "layernorm")]
    bias = kind == "layer"
    space = cfg.int("mamba_head_dim", default=64, low=1)
    given = cfg.int("mamba_num_heads", default=None, low=1)
    inner = cfg.int("mamba_expand", default=2, low=1) * hidden if given is None else given * space
    gated, fn = cfg.bool("gated_mlp"), cfg.str("hidden_act", "gelu")
    pattern = cfg.str("hybrid_layer_pattern").replace("|", "")
    if not pattern or set(pattern) - set("M*-E"):
        raise cfg.error("hybrid_layer_pattern", pattern, "a string of M, *, - and E", "correct the pattern")
    more, ahead = cfg.int("num_nextn_predict_layers", default=0), cfg.str("mtp_layer_pattern")
    experts, top_k = expert_counts(cfg) if "E" in pattern + ahead else (0, 0)

    def part(letter: object, x: str) -> list[Operator]:
        if letter == "*":
            return attention(
                x,
                hidden=hidden,
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                qkv_bias=cfg.bool("attention_bias"),
                o_bias=cfg.bool("attention_bias"),
                rotary=head_dim if cfg.str("position_embedding", "learned") == "rope" else 0,
            )
        if letter == "E":
            return moe(
                x,
                hidden=hidden,
                ffn=cfg.int("moe_intermediate_size", low=1),
                experts=experts,
                top_k=top_k,
                fn=fn,
                gated=gated,
                bias=cfg.bool("mlp_bias"),
                latent=cfg.int("moe_latent_size", default=0),
                shared_ffn=cfg.int("moe_shared_expert_intermediate_size", default=0),
                shared_bias=cfg.bool("mlp_bias"),
            )
        if letter == "-":
            return mlp(
                x,
                hidden=hidden,
                ffn=cfg.int("intermediate_size", low=1),
                fn=fn,
                gated=gated,
                bias=cfg.bool("mlp_bias"),
            )
        return mamba2(
            x,
            hidden=hidden,
            inner=inner,
            heads=inner // space,
            groups=cfg.int("mamba_num_groups", default=8, low=1),
            state=cfg.int("mamba_state_dim", default=128, low=1),
            kernel=cfg.int("mamba_conv_kernel", default=4, low=1),
            proj_bias=False,
            conv_bias=True,
        )

    def make(letter: object) -> list[Operator]:
        return layer(part(letter, "norm1"), [], hidden=hidden, kind=Norm(name="", dim=hidden, kind=kind, bias=bias))  # type: ignore[arg-type]

    if more and (len(ahead) != 2 or ahead[0] not in "M*" or ahead[1] not in "E-"):
        raise cfg.error("mtp_layer_pattern", ahead, "two letters, as *E or M-", "correct the pattern")
    size = Sizes(hidden, len(pattern), heads, kv_heads, head_dim, cfg.int("vocab_size", low=1))
    own = next_token_layers(size, more, part(ahead[0], "norm1"), part(ahead[1], "norm2")) if more else ()

    positions: list[Operator] = []
    if cfg.str("position_embedding", "learned") == "learned":
        positions.append(
            Parameters(name="positions", shapes=((cfg.int("max_position_embeddings", low=1), hidden),), role="embedding")
        )
    arch = decoder(
        cfg,
        stack("layers", list(pattern), make, width=hidden),
        hidden=hidden,
        vocab=cfg.int("vocab_size", low=1),
        tied=cfg.bool("tie_word_embeddings"),
        final=[norm("norm", hidden, kind, bias=bias)],
        embed=positions,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        experts=experts,
        top_k=top_k,
        max_positions=cfg.int("max_position_embeddings", default=None),
    )
    return replace(arch, unused=own)
