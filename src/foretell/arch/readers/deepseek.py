"""DeepSeek-V2/V3/V3.2 and the models built on multi-head latent attention: Kimi-K2, GLM-4.7-Flash, GLM-5.

Source: transformers 5.24.0 ``modeling_deepseek_v2``, ``_v3``, ``_v32``, ``modeling_glm4_moe_lite``,
``modeling_glm_moe_dsa``, ``modeling_axk1``; DeepSeek-V3.2's indexer runs without a gradient there.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Block
from foretell.arch.builders import layer, mla, moe
from foretell.arch.operators import Linear, Norm, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._layers import Sizes, Style, activation, ffn_size, layer_list, sizes
from foretell.arch.readers._registry import reader
from foretell.arch.readers._sparse import expert_counts, sparse_decoder, sparse_layers
from foretell.arch.readers.moe_gated import NO_GRADIENT


def latent_attention(cfg: Config, size: Sizes, *, out_gate: bool = False) -> list[Operator]:
    """Multi-head latent attention as the configuration describes it, reading ``norm1``."""
    return mla(
        "norm1",
        hidden=size.hidden,
        heads=size.heads,
        q_lora=cfg.int("q_lora_rank", default=None),
        kv_lora=cfg.int("kv_lora_rank", low=1),
        nope=cfg.int("qk_nope_head_dim"),
        rope=cfg.int("qk_rope_head_dim"),
        v_dim=cfg.int("v_head_dim", low=1),
        bias=cfg.bool("attention_bias", False),
        out_gate=out_gate,
    )


def indexer(cfg: Config, size: Sizes) -> Parameters:
    """The lightning indexer's weights (wq_b, wk, k_norm with bias, weights_proj); it runs without a gradient."""
    heads, dim = cfg.int("index_n_heads", low=1), cfg.int("index_head_dim", low=1)
    rank = cfg.int("q_lora_rank", low=1)
    shapes = ((heads * dim, rank), (dim, size.hidden), (dim,), (dim,), (heads, size.hidden))
    return Parameters(name="indexer", shapes=shapes, role="matrix")


def experts_of(cfg: Config, size: Sizes, *, score: str, bias: bool = False) -> list[Operator]:
    """DeepSeek's experts: ``n_shared_experts`` shared ones are one network that many times as wide."""
    experts, top_k = expert_counts(cfg)
    ffn = cfg.int("moe_intermediate_size", low=1)
    return moe(
        "norm2",
        hidden=size.hidden,
        ffn=ffn,
        experts=experts,
        top_k=top_k,
        fn=activation(cfg),
        score=score,
        shared_ffn=ffn * (cfg.int("n_shared_experts", "num_shared_experts", default=0) or 0),
        shared_bias=bias,
    )


def mla_sizes(cfg: Config) -> Sizes:
    """Sizes with the head of the scores (no-rope and rope parts together)."""
    size = sizes(cfg)
    return replace(size, kv_heads=size.heads, head_dim=cfg.int("qk_nope_head_dim") + cfg.int("qk_rope_head_dim"))


def next_token_layers(size: Sizes, n: int, mixer: list[Operator], ffn: list[Operator]) -> tuple[Block, ...]:
    """``n`` multi-token-prediction layers of the checkpoint, which the training module does not build.

    The file stores the token table and the output head once more with each of them.
    """
    two: list[Operator] = [
        Norm(name="enorm", ins=("x",), dim=size.hidden),
        Norm(name="hnorm", ins=("x",), dim=size.hidden),
        Linear(name="eh_proj", d_in=2 * size.hidden, d_out=size.hidden),
    ]
    body = layer(mixer, ffn, hidden=size.hidden)
    tail: list[Operator] = [
        Norm(name="shared_head_norm", dim=size.hidden),
        Parameters(name="copies", shapes=((size.vocab, size.hidden),) * 2, role="embedding"),
    ]
    block = Block(name="next-token", width=size.hidden, ops=(*two, *body, *tail))
    return (block,) * n


@reader("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa", "axk1", "youtu")
def deepseek(cfg: Config) -> Architecture:
    """Latent attention with experts after the first dense layers, and an indexer where the type has one."""
    family = cfg.model_type
    if family == "kimi_k2":
        cfg = cfg.like("deepseek_v3")
    size = mla_sizes(cfg)
    indexed = family in ("deepseek_v32", "glm_moe_dsa")
    kinds = ["attention"] * size.layers
    if family == "deepseek_v32":
        kinds = ["indexed"] * size.layers
    elif family == "glm_moe_dsa":
        kinds = ["indexed" if full else "attention" for full in _own_indexer(cfg, size.layers)]
    if family == "youtu":
        sparse = [False] * size.layers
    elif family in ("glm4_moe_lite", "axk1") and not cfg.has("mlp_layer_types"):
        first = 1 if family == "glm4_moe_lite" else cfg.int("first_k_dense_replace", default=1)
        sparse = [i >= first for i in range(size.layers)]
    else:
        sparse = sparse_layers(cfg, size.layers)
    score = "softmax" if family == "deepseek_v2" else "sigmoid"

    def mixers(kind: str, _: int) -> list[Operator]:
        core = latent_attention(cfg, size)
        return [indexer(cfg, size), *core] if kind == "indexed" else core

    def feed() -> list[Operator]:
        ops = experts_of(cfg, size, score=score, bias=family == "deepseek_v2" and cfg.bool("mlp_bias", False))
        return [*ops, Norm(name="post_mlp_layernorm", dim=size.hidden)] if family == "axk1" else ops

    style = Style(mlp_bias="mlp_bias" if family in ("deepseek_v2", "youtu") else False)
    arch = sparse_decoder(
        cfg,
        style,
        size,
        sparse=sparse,
        dense=ffn_size(cfg),
        experts=feed,
        mixers=mixers,
        kinds=kinds,
        notes=[NO_GRADIENT] if indexed else [],
    )
    stored = any(sparse) and ("num_nextn_predict_layers" in cfg.raw or "num_mtp_layers" in cfg.raw)
    more = cfg.int("num_nextn_predict_layers", "num_mtp_layers", default=0) if stored else 0
    own = next_token_layers(size, more, mixers(kinds[-1], 0), feed()) if more else ()
    return replace(arch, unused=own, model_type=family, name=family)


def _own_indexer(cfg: Config, layers: int) -> list[bool]:
    """GLM-5.2: which layers run an indexer of their own (``full``), the others reuse the one before."""
    listed = layer_list(cfg, "indexer_types", layers)
    if listed is not None:
        return [kind == "full" for kind in listed]
    pattern = cfg.get("index_topk_pattern", default=None)
    if pattern is not None:
        if not isinstance(pattern, str | list) or len(pattern) != layers:
            raise cfg.error("index_topk_pattern", pattern, f"{layers} letters F or S", "correct the pattern")
        return [p in ("F", "full") for p in pattern]
    freq = max(cfg.int("index_topk_freq", default=1), 1)
    offset = cfg.int("index_skip_topk_offset", default=2)
    return [max(i - offset + 1, 0) % freq == 0 for i in range(layers)]
