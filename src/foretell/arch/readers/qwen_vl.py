"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL (MoE) and Qwen3.5 (MoE): a ViT of 3-d patches before a text trunk.

The class is ``...ForConditionalGeneration`` unless ``architectures`` names ``...ForCausalLM`` (text part
only). Images have no fixed size: rows per image are the position table's where there is one (2,304 for
Qwen3-VL), else the largest image that the processor's default lets through (28 x 28 x 1280 pixels = 5,120
patches).

Source: transformers 5.24.0 ``modeling_qwen2_vl``, ``modeling_qwen2_5_vl``, ``modeling_qwen3_vl``,
``modeling_qwen3_5`` and their configuration and image-processing modules.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import mlp, norm
from foretell.arch.operators import Act, Add, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, pre_norm, widened
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import nested, pair, patches, text_model, text_only, tower, wrap

QWEN2_PATCHES = 5120
"""Patches of the largest image under ``Qwen2VLImageProcessor``'s ``max_pixels`` (28 * 28 * 1280)."""
_TEXT = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
_FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Types whose older files carry the text part's keys at the top level."""


@reader(*_TEXT)
def qwen_vl(cfg: Config) -> Architecture:
    """Vision tower, merger to the text width, text trunk; ties by the top-level flag."""
    family = cfg.model_type
    flat = family in _FLAT and cfg.raw.get("text_config") is None and bool(cfg.raw)
    if flat:
        raw = {k: v for k, v in cfg.raw.items() if not k.endswith("_config")}
        text_cfg = Config({**raw, "model_type": _TEXT[family]}, where=cfg.where, prefix=cfg.prefix)
    else:
        text_cfg = nested(cfg, "text_config", model_type=_TEXT[family], force=True)
    tied = cfg.bool("tie_word_embeddings", False)
    if family in _FLAT and not tied:
        tied = text_cfg.bool("tie_word_embeddings", False)
    if text_only(cfg):
        return replace(text_model(text_cfg, tied=text_cfg.bool("tie_word_embeddings", False)), model_type=family)
    vision = nested(cfg, "vision_config", model_type=_vision_type(family), force=True)
    text = text_model(text_cfg, tied=tied)
    towers = _qwen2(vision, family == "qwen2_5_vl") if family in _FLAT else _qwen3(vision)
    return wrap(
        cfg,
        text,
        towers,
        notes=(f"image rows are those of an image of {towers[0].blocks[0].positions} patches",),
    )


def _vision_type(family: str) -> str:
    return {"qwen3_vl_moe": "qwen3_vl_moe_vision", "qwen3_5_moe": "qwen3_5_moe_vision"}.get(family, f"{family}_vision")


def _rope_attention(x: str, hidden: int, heads: int, window: int = 0) -> list[Operator]:
    d = hidden // heads
    return mha(x, hidden=hidden, heads=heads, packed=True, rotary=d, window=window)


def _merger(cfg: Config, norm_op: Operator, hidden: int, out: int, rows: int, *, pre_norm: bool) -> list[Operator]:
    """Norm and concatenation of ``merge x merge`` patches (in either order), then a two-matrix MLP."""
    merge = cfg.int("spatial_merge_size", low=1)
    wide = hidden * merge * merge
    pool = Pool(name="merge", features=wide, positions=max(1, rows // (merge * merge)))
    ops = [norm_op, pool] if pre_norm else [pool, norm_op]
    return [
        *ops,
        Linear(name="merger_fc1", d_in=wide, d_out=wide, bias=True, split="col"),
        Act(name="merger_act", fn="gelu", features=wide),
        Linear(name="merger_fc2", d_in=wide, d_out=out, bias=True, split="row"),
    ]


def _qwen2(cfg: Config, windowed: bool) -> list[Stack]:
    """Qwen2-VL (LayerNorm, two-matrix MLP) and Qwen2.5-VL (RMSNorm, gated MLP, windows in most layers)."""
    depth, heads = cfg.int("depth", low=1), cfg.int("num_heads", low=1)
    hidden = cfg.int("hidden_size" if windowed else "embed_dim", low=1)
    out = cfg.int("out_hidden_size" if windowed else "hidden_size", low=1)
    cfg.divides("num_heads", hidden, heads)
    rows = QWEN2_PATCHES
    conv = patches(
        "patch_embed",
        cfg,
        channels=cfg.int("in_channels", low=1),
        hidden=hidden,
        positions=rows,
        bias=False,
        frames=pair(cfg, "temporal_patch_size")[0],
    )
    embed = tower("vision_embed", [conv], 1, width=0, positions=rows, label="embed")
    if windowed:
        ffn, fn = cfg.int("intermediate_size", low=1), cfg.str("hidden_act", "silu")
        side = cfg.int("window_size", low=1) // pair(cfg, "patch_size")[0]
        full = set(cfg.ints("fullatt_block_indexes"))

        def make(window: int) -> Block:
            ops = pre_norm(
                [
                    (lambda x: _rope_attention(x, hidden, heads, window), 0.0),
                    (lambda x: mlp(x, hidden=hidden, ffn=ffn, fn=fn, bias=True), 0.0),
                ],
                hidden=hidden,
                kind="rms",
                bias=False,
            )
            return Block("full" if not window else "window", tuple(ops), hidden, "sample", rows)

        pattern = tuple(0 if i in full else 1 for i in range(depth))
        trunk = Stack("vision", (make(0), make(side * side)), pattern)
    else:
        ffn, fn = widened(cfg, "mlp_ratio", 4.0, hidden), cfg.str("hidden_act", "quick_gelu")
        ops = pre_norm(
            [
                (lambda x: _rope_attention(x, hidden, heads), 0.0),
                (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
            ],
            hidden=hidden,
        )
        trunk = tower("vision", ops, depth, width=hidden, positions=rows)
    kind = "rms" if windowed else "layer"
    last = norm("merger_norm", hidden, kind, bias=not windowed, ins="x")
    merger = _merger(cfg, last, hidden, out, rows, pre_norm=True)
    return [embed, trunk, tower("merger", merger, 1, width=hidden, positions=rows, label="merger")]


def _qwen3(cfg: Config) -> list[Stack]:
    """Qwen3-VL and Qwen3.5: learned positions, and mergers of chosen layers' outputs (deepstack)."""
    depth, heads = cfg.int("depth", low=1), cfg.int("num_heads", low=1)
    hidden, out = cfg.int("hidden_size", low=1), cfg.int("out_hidden_size", low=1)
    ffn, fn = cfg.int("intermediate_size", low=1), cfg.str("hidden_act", "gelu_pytorch_tanh")
    cfg.divides("num_heads", hidden, heads)
    rows = cfg.int("num_position_embeddings", low=1)
    conv = patches(
        "patch_embed",
        cfg,
        channels=cfg.int("in_channels", low=1),
        hidden=hidden,
        positions=rows,
        frames=pair(cfg, "temporal_patch_size")[0],
    )
    embed = [
        conv,
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    ]
    ops = pre_norm(
        [
            (lambda x: _rope_attention(x, hidden, heads), 0.0),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
        ],
        hidden=hidden,
    )
    before = norm("merger_norm", hidden, "layer", bias=True, ins="x")
    merger = _merger(cfg, before, hidden, out, rows, pre_norm=True)
    stacks = [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", ops, depth, width=hidden, positions=rows),
        tower("merger", merger, 1, width=hidden, positions=rows, label="merger"),
    ]
    deep = 0 if cfg.model_type.startswith("qwen3_5") else len(cfg.ints("deepstack_visual_indexes", default=[]))
    if deep:
        merge = cfg.int("spatial_merge_size", low=1)
        after = norm("merger_norm", hidden * merge * merge, "layer", bias=True)
        ops = _merger(cfg, after, hidden, out, rows, pre_norm=False)
        stacks.append(tower("deepstack", ops, deep, width=hidden, positions=rows, label="merger"))
    return stacks
