"""Kimi-K2.5 / K2.6 and Kimi-K3: MoonViT tower, patch merger, DeepSeek-V3 or Kimi-Linear text trunk.

Kimi-K2.5's class is ``Kimi_K25ForConditionalGeneration``; its configuration knows ``vt_*`` names only through
the published files,
whose values are also its defaults.  Kimi-K3 has no class in transformers 5.24.0: its tower
follows the published ``config.json`` (the model card's 401.2 M parameters).  Image rows: the learned position
grid (64 x 64).
Source: transformers 5.24.0 ``modeling_kimi_k25``; moonshotai/Kimi-K3 ``config.json`` and model card.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, pre_norm
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import nested, pair, patches, text_model, tower, wrap


def _mlp2(wide: int, out: int, *, bias: bool) -> list[Operator]:
    """The projector's two matrices."""
    return [
        Linear(name="in_proj", d_in=wide, d_out=wide, bias=bias, split="col"),
        Act(name="act", fn="gelu", features=wide),
        Linear(name="out_proj", d_in=wide, d_out=out, bias=bias, split="row"),
    ]


@reader("kimi_k25")
def kimi_k25(cfg: Config) -> Architecture:
    """Kimi-K2.5: ties by the top-level flag."""
    text_cfg = nested(cfg, "text_config", model_type="deepseek_v3")
    if text_cfg.model_type == "kimi_k2":
        text_cfg = nested(cfg, "text_config", model_type="deepseek_v3", force=True)
    text = text_model(text_cfg, tied=cfg.bool("tie_word_embeddings", True))
    v = nested(cfg, "vision_config", model_type="kimi_k25_vision", force=True)
    hidden, heads = (
        v.int("vt_hidden_size", "hidden_size", low=1),
        v.int("vt_num_attention_heads", "num_attention_heads", low=1),
    )
    depth = v.int("vt_num_hidden_layers", "num_hidden_layers", low=1)
    ffn = v.int("vt_intermediate_size", "intermediate_size", low=1)
    head_dim = v.divides("num_attention_heads", hidden, heads)
    grid = (
        v.int("init_pos_emb_height", "pos_emb_height", low=1),
        v.int("init_pos_emb_width", "pos_emb_width", low=1),
    )
    rows = grid[0] * grid[1]
    merge_h, merge_w = pair(v, "merge_kernel_size")
    wide = cfg.int("projection_hidden_size", low=1) * merge_h * merge_w
    fn = v.str("hidden_act", "gelu_pytorch_tanh")
    embed = [
        patches("patch_embed", v, channels=3, hidden=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((*grid, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    ]
    layer = pre_norm(
        [
            (lambda x: mha(x, hidden=hidden, heads=heads, rotary=head_dim), 0.0),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
        ],
        hidden=hidden,
    )
    projector = [
        norm("pre_norm", cfg.int("projection_hidden_size"), "layer", bias=True, ins="x"),
        Pool(name="merge", features=wide, positions=max(1, rows // (merge_h * merge_w))),
        *_mlp2(wide, text.hidden, bias=True),
    ]
    towers = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", layer, depth, width=hidden, positions=rows),
        tower(
            "vision_norm",
            [norm("final_layernorm", hidden, "layer", bias=True, ins="x")],
            1,
            width=hidden,
            positions=rows,
            label="norm",
        ),
        tower("projector", projector, 1, width=hidden, positions=rows, label="projector"),
    ]
    return wrap(cfg, text, towers, notes=(f"image rows are those of an image of {rows} patches",))


@reader("kimi_k3")
def kimi_k3(cfg: Config) -> Architecture:
    """Kimi-K3: RMSNorm tower without biases, attention wider than the stream; norm after the projector."""
    text_cfg = nested(cfg, "text_config", model_type="kimi_linear")
    text = text_model(text_cfg, tied=cfg.bool("tie_word_embeddings", False))
    v = nested(cfg, "vision_config")
    hidden, depth = v.int("vt_hidden_size", low=1), v.int("vt_num_hidden_layers", low=1)
    heads, ffn = v.int("vt_num_attention_heads", low=1), v.int("vt_intermediate_size", low=1)
    head_dim = v.divides("vt_num_attention_heads", v.int("qkv_hidden_size", default=hidden, low=1), heads)
    kinds = (("norm_type", "rmsnorm"), ("mlp_type", "mlp2"), ("mm_projector_type", "patchmergerv2"))
    for key, usual in kinds:
        if v.str(key, usual) != usual:
            raise v.error(key, v.raw[key], usual, "other variants are not read")
    grid = (v.int("init_pos_emb_height", default=64, low=1), v.int("init_pos_emb_width", default=64, low=1))
    rows = grid[0] * grid[1]
    merge_h, merge_w = pair(v, "merge_kernel_size", [2, 2])
    wide = v.int("mm_hidden_size", default=hidden, low=1) * merge_h * merge_w
    fn, attn_bias = v.str("activation_func", "gelu_pytorch_tanh"), v.bool("attn_bias", False)
    embed = [
        patches(
            "patch_embed",
            v,
            channels=3,
            hidden=hidden,
            positions=rows,
            bias=v.bool("patch_embed_proj_bias", False),
        ),
        Parameters(name="pos_embed", shapes=((*grid, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    ]
    layer = pre_norm(
        [
            (
                lambda x: mha(x, hidden=hidden, heads=heads, head_dim=head_dim, bias=attn_bias, packed=True, rotary=head_dim),
                0.0,
            ),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn, bias=v.bool("linear_bias", False)), 0.0),
        ],
        hidden=hidden,
        kind="rms",
        bias=False,
    )
    projector = [
        norm("final_layernorm", hidden, ins="x"),
        Pool(name="merge", features=wide, positions=max(1, rows // (merge_h * merge_w))),
        *_mlp2(wide, text.hidden, bias=False),
        norm("post_norm", text.hidden),
    ]
    towers = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", layer, depth, width=hidden, positions=rows),
        tower("projector", projector, 1, width=hidden, positions=rows, label="projector"),
    ]
    return wrap(cfg, text, towers, notes=(f"image rows are those of an image of {rows} patches",))
