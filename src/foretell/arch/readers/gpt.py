"""GPT-2 and the decoders of its time: learned or ALiBi positions, LayerNorm, fused projections, plain MLPs.

Source: transformers 5.24.0 ``modeling_<type>.py``; the types that it lacks (``qwen``, ``baichuan``, ``chatglm``,
``RefinedWeb``) follow the modelling code published beside their checkpoints.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.operators import Linear, Norm, Operator
from foretell.arch.readers._config import Config
from foretell.arch.readers._layers import (
    LAYER,
    Sizes,
    Style,
    dense_decoder,
    embed_dropout,
    ffn_size,
    learned_positions,
    sizes,
)
from foretell.arch.readers._registry import reader

_GPT2 = Style(
    norm=LAYER,
    qkv_bias=True,
    o_bias=True,
    mlp_bias=True,
    gated=False,
    fused_qkv="c_attn",
    out="c_proj",
    up="c_fc",
    down="mlp_c_proj",
    dropout="resid_pdrop",
    act="gelu_new",
    rotary=0.0,
)
_GPTJ = Style(
    place="parallel",
    norm=LAYER,
    mlp_bias=True,
    gated=False,
    out="out_proj",
    up="fc_in",
    down="fc_out",
    mlp_dropout="resid_pdrop",
    act="gelu_new",
    head_bias=True,
)
_NEOX = Style(
    norm=LAYER,
    qkv_bias="attention_bias",
    o_bias="attention_bias",
    mlp_bias=True,
    gated=False,
    fused_qkv="query_key_value",
    out="dense",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
    rotary=0.25,
    dropout="hidden_dropout",
    act="gelu",
)
_FALCON = replace(_NEOX, qkv_bias="bias", o_bias="bias", mlp_bias="bias", rotary=1.0)


def _even(cfg: Config, size: Sizes) -> Sizes:
    """Heads that share the hidden size evenly, each with keys and values of its own."""
    return replace(size, kv_heads=size.heads, head_dim=cfg.divides("num_attention_heads", size.hidden, size.heads))


def _attention_types(cfg: Config, layers: int) -> list[str]:
    """GPT-Neo's ``[[["global", "local"], 12]]``: kinds and how often they are repeated."""
    found: list[str] = []
    for item in cfg.list("attention_types"):
        if not isinstance(item, list | tuple) or len(item) != 2 or not isinstance(item[0], list | tuple):
            raise cfg.error("attention_types", item, "pairs of a list of kinds and a count", "correct the list")
        found += [str(kind) for kind in item[0]] * min(cfg.check_int("attention_types", item[1]), layers + 1)
    return found


@reader("gpt2", "gpt-sw3", "gpt_bigcode", "gpt_neo")
def gpt2(cfg: Config) -> Architecture:
    """GPT-2, GPT-BigCode (one key/value head when ``multi_query``) and GPT-Neo (unfused, every other layer local)."""
    size, style = _even(cfg, sizes(cfg)), _GPT2
    rows = cfg.int("n_positions", "max_position_embeddings", low=1)
    if cfg.model_type == "gpt_bigcode" and cfg.bool("multi_query", True):
        size = replace(size, kv_heads=1)
    if cfg.model_type == "gpt_neo":
        style = replace(style, qkv_bias=False, fused_qkv="", out="out_proj", down="c_proj", dropout="resid_dropout")
        layers = _attention_types(cfg, size.layers)
        if len(layers) != size.layers:
            raise cfg.error("attention_types", cfg.list("attention_types"), f"{size.layers} layers in all", "correct the counts")
        window = cfg.int("window_size", default=256)
        cfg.raw = {
            **cfg.raw,
            "sliding_window": window,
            "layer_types": ["sliding_attention" if kind == "local" else "full_attention" for kind in layers],
        }
    elif cfg.bool("add_cross_attention", False):
        raise cfg.error("add_cross_attention", True, "false", "a decoder with cross attention is not read")
    return dense_decoder(
        cfg,
        style,
        size,
        ffn=ffn_size(cfg, 4 * size.hidden),
        embed=learned_positions(rows, size.hidden) + embed_dropout(cfg, size.hidden, "embd_pdrop", "embed_dropout"),
        tied=cfg.bool("tie_word_embeddings", True),
    )


@reader("gptj", "codegen")
def gptj(cfg: Config) -> Architecture:
    """GPT-J and CodeGen: one norm feeds attention and MLP, rotary positions on ``rotary_dim`` features."""
    size = _even(cfg, sizes(cfg))
    style = replace(_GPTJ, fused_qkv="qkv_proj" if cfg.model_type == "codegen" else "")
    turn = cfg.int("rotary_dim", default=None)
    style = replace(style, rotary=(turn if turn is not None else size.head_dim) / size.head_dim)
    return dense_decoder(
        cfg, style, size, ffn=ffn_size(cfg, 4 * size.hidden), embed=embed_dropout(cfg, size.hidden, "embd_pdrop")
    )


@reader("gpt_neox")
def gpt_neox(cfg: Config) -> Architecture:
    """GPT-NeoX and Pythia: two norms of the same input when ``use_parallel_residual``."""
    size = _even(cfg, sizes(cfg))
    style = replace(_NEOX, place="parallel2" if cfg.bool("use_parallel_residual", True) else "pre")
    return dense_decoder(cfg, style, size, ffn=ffn_size(cfg), embed=embed_dropout(cfg, size.hidden, "hidden_dropout"))


@reader("falcon", "RefinedWeb", "RefinedWebModel")
def falcon(cfg: Config) -> Architecture:
    """Falcon: multi-query or grouped keys, attention and MLP in parallel on one norm or on two, rotary or ALiBi."""
    size = sizes(cfg)
    new = cfg.bool("new_decoder_architecture", cfg.model_type == "RefinedWeb")
    if new:
        kv = cfg.int("num_kv_heads", "n_head_kv", default=size.heads, low=1)
    else:
        kv = 1 if cfg.bool("multi_query", cfg.model_type == "RefinedWebModel") else size.heads
    size = replace(_even(cfg, size), kv_heads=kv)
    norms = cfg.int("num_ln_in_parallel_attn", default=2 if new else 1)
    parallel = cfg.bool("parallel_attn", True)
    place = ("parallel2" if norms == 2 else "parallel") if parallel else "pre"
    style = replace(_FALCON, place=place, rotary=0.0 if cfg.bool("alibi", False) else 1.0)
    return dense_decoder(cfg, style, size, ffn=ffn_size(cfg, 4 * size.hidden), tied=cfg.bool("tie_word_embeddings", True))


@reader("bloom", "mpt")
def alibi(cfg: Config) -> Architecture:
    """BLOOM and MPT: ALiBi positions, scores always stored (their code has the eager form only)."""
    size = _even(cfg, sizes(cfg))
    if cfg.model_type == "bloom":
        style = replace(_NEOX, qkv_bias=True, o_bias=True, rotary=0.0, eager=True, act="bloom_gelu")
        embed: list[Operator] = [Norm(name="embed_norm", dim=size.hidden, kind="layer", bias=True)]
        ffn = 4 * size.hidden
    else:
        bare = Norm(name="", dim=1, kind="layer")
        style = Style(norm=bare, gated=False, fused_qkv="Wqkv", out="out_proj", rotary=0.0, act="gelu", eager=True)
        embed = []
        ffn = 4 * size.hidden  # the code ignores ``expansion_ratio``
    return dense_decoder(cfg, style, size, ffn=ffn, embed=embed, tied=cfg.bool("tie_word_embeddings", True))


@reader("opt")
def opt(cfg: Config) -> Architecture:
    """OPT: learned positions (two extra rows); norms after the residual sums in the 350M model only."""
    size = _even(cfg, sizes(cfg))
    affine = cfg.bool("layer_norm_elementwise_affine", True)
    kind = Norm(name="", dim=1, kind="layer", bias=affine, affine=affine)
    before = cfg.bool("do_layer_norm_before", True)
    style = Style(
        place="pre" if before else "after",
        norm=kind,
        qkv_bias="enable_bias",
        o_bias="enable_bias",
        mlp_bias="enable_bias",
        gated=False,
        out="out_proj",
        up="fc1",
        down="fc2",
        rotary=0.0,
        dropout="dropout",
        act="relu",
    )
    narrow = cfg.int("word_embed_proj_dim", default=size.hidden, low=1)
    embed: list[Operator] = []
    final: list[Operator] = []
    if narrow != size.hidden:
        embed.append(Linear(name="project_in", d_in=narrow, d_out=size.hidden))
    embed += learned_positions(cfg.int("max_position_embeddings", low=1) + 2, size.hidden, by_token=True)
    if before and not cfg.bool("_remove_final_layer_norm", False):
        final.append(replace(kind, name="norm", dim=size.hidden))
    if narrow != size.hidden:
        final.append(Linear(name="project_out", d_in=size.hidden, d_out=narrow))
    return dense_decoder(
        cfg,
        style,
        size,
        ffn=ffn_size(cfg),
        embed=embed,
        final=final,
        embed_dim=narrow,
        tied=cfg.bool("tie_word_embeddings", True),
    )


@reader("qwen")
def qwen(cfg: Config) -> Architecture:
    """Qwen 1: Llama's layer with a biased fused projection; ``intermediate_size`` counts gate and up together."""
    size = sizes(cfg)
    head_dim = cfg.int("kv_channels", default=size.head_dim, low=1)
    size = replace(size, kv_heads=size.heads, head_dim=head_dim)
    style = Style(qkv_bias=True, fused_qkv="c_attn", out="c_proj", up="w1", down="mlp_c_proj")
    style = replace(style, o_bias=not cfg.bool("no_bias", True), mlp_bias=not cfg.bool("no_bias", True))
    return dense_decoder(cfg, style, size, ffn=cfg.divides("intermediate_size", ffn_size(cfg), 2))


@reader("baichuan")
def baichuan(cfg: Config) -> Architecture:
    """Baichuan: Llama's layer with one fused projection; the 13B model has ALiBi positions."""
    size = _even(cfg, sizes(cfg))
    turn = 0.0 if cfg.has("model_max_length") and not cfg.has("max_position_embeddings") else 1.0
    return dense_decoder(cfg, Style(fused_qkv="W_pack", rotary=turn), size, ffn=ffn_size(cfg))


@reader("chatglm")
def chatglm(cfg: Config) -> Architecture:
    """ChatGLM 2 and 3, GLM-4-9B: fused grouped query projection, fused gate and up, rope on half the features."""
    hidden = cfg.int("hidden_size", low=1)
    heads = cfg.int("num_attention_heads", low=1)
    kv = cfg.int("multi_query_group_num", low=1) if cfg.bool("multi_query_attention", False) else heads
    size = Sizes(
        hidden=hidden,
        layers=cfg.int("num_layers", low=1),
        heads=heads,
        kv_heads=kv,
        head_dim=cfg.int("kv_channels", default=hidden // heads, low=1),
        vocab=cfg.int("padded_vocab_size", "vocab_size", low=1),
    )
    linear = cfg.bool("add_bias_linear", False)
    style = Style(
        qkv_bias=linear or cfg.bool("add_qkv_bias", False),
        o_bias=linear,
        mlp_bias=linear,
        rotary=0.5,
        fused_qkv="query_key_value",
        out="dense",
        fused_mlp="dense_h_to_4h",
        down="dense_4h_to_h",
    )
    return dense_decoder(cfg, style, size, ffn=cfg.int("ffn_hidden_size", low=1), tied=False)
