"""Segment Anything: windowed ViT with relative positions, prompt encoder, two-way mask decoder.

The class is ``SamModel``.  The image tower runs first; prompts and masks are a handful of rows per sample.
Source: transformers 5.24.0 ``modeling_sam``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Conv, Linear, Operator, Parameters, Pool, Weight
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import ffn2, mha, pre_norm, single, task, widened
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, nested, patches, tower


@reader("sam")
def sam(cfg: Config) -> Architecture:
    """``SamModel``: image tower, prompt encoder (embed block), mask decoder (trunk and head)."""
    _, notes = task(cfg, "Model", ("Model",))
    v = nested(cfg, "vision_config", model_type="sam_vision_model", force=True)
    p = nested(cfg, "prompt_encoder_config", model_type="sam_prompt_encoder", force=True)
    d = nested(cfg, "mask_decoder_config", model_type="sam_mask_decoder", force=True)
    towers, cells = _image(v)
    hidden, heads, ffn = (
        d.int("hidden_size", low=1),
        d.int("num_attention_heads", low=1),
        d.int("mlp_dim", low=1),
    )
    tokens = d.int("num_multimask_outputs", low=0) + 1
    features = v.int("num_pos_feats", low=1)
    twice = 1 if cfg.bool("tie_word_embeddings", True) else 2
    rows = 1 + tokens + p.int("num_point_embeddings", low=0)
    embed = [
        Parameters(name="positional_embedding", shapes=((2, features),) * twice),
        *_prompt(p, cells),
        Parameters(name="output_tokens", shapes=((1, hidden), (tokens, hidden)), role="embedding"),
        Pool(name="tokens", ins=("prompts", "output_tokens"), features=hidden, positions=rows),
    ]
    inner = d.divides("attention_downsample_rate", hidden, d.int("attention_downsample_rate", low=1))
    d.divides("num_attention_heads", inner, heads)

    def attend(x: str, prefix: str, down: bool, memory: str = "") -> list[Operator]:
        size = (inner if down else hidden) // heads
        return mha(x, hidden=hidden, heads=heads, head_dim=size, memory=memory, prefix=prefix)

    layer: list[Operator] = [
        *attend("x", "self_", False),
        Add(name="add1", ins=("x", "self_o_proj"), features=hidden),
        norm("norm1", hidden, "layer", bias=True),
        *attend("norm1", "to_image_", True, "memory"),
        Add(name="add2", ins=("norm1", "to_image_o_proj"), features=hidden),
        norm("norm2", hidden, "layer", bias=True),
        *ffn2("norm2", hidden=hidden, ffn=ffn, fn=d.str("hidden_act", "relu")),
        Add(name="add3", ins=("norm2", "fc2"), features=hidden),
        norm("norm3", hidden, "layer", bias=True),
        *attend("memory", "to_token_", True, "norm3"),
        Add(name="add4", ins=("memory", "to_token_o_proj"), features=hidden),
        norm("norm4", hidden, "layer", bias=True),
    ]
    trunk = Stack(
        "mask_decoder",
        (Block("layer", tuple(layer), hidden, "sample", rows),),
        (0,) * d.int("num_hidden_layers"),
    )
    head: list[Operator] = [
        *attend("x", "final_", True, "memory"),
        Add(name="final_add", ins=("x", "final_o_proj"), features=hidden),
        norm("final_norm", hidden, "layer", bias=True),
        Conv(
            name="upscale1",
            ins=("memory",),
            c_in=hidden,
            c_out=hidden // 4,
            kernel=(2, 2),
            positions=4 * cells,
            transposed=True,
        ),
        norm("upscale_norm", hidden // 4, "layer", bias=True),
        Act(name="upscale_act1", fn="gelu", features=hidden // 4),
        Conv(
            name="upscale2",
            c_in=hidden // 4,
            c_out=hidden // 8,
            kernel=(2, 2),
            positions=16 * cells,
            transposed=True,
        ),
        Act(name="upscale_act2", fn="gelu", features=hidden // 8),
    ]
    for i in range(tokens):
        head += _mlp(f"hyper{i}", hidden, hidden, hidden // 8, 3)
    head += _mlp("iou", hidden, d.int("iou_head_hidden_dim", low=1), tokens, d.int("iou_head_depth", low=2))
    return single(
        cfg,
        family="vision",
        embed=embed,
        stacks=[*towers, trunk],
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        notes=notes,
    )


def _mlp(name: str, d_in: int, hidden: int, out: int, depth: int) -> list[Operator]:
    """``depth`` linear layers with ReLU between them, over one token."""
    ops: list[Operator] = [Pool(name=f"{name}_token", ins=("final_norm",), features=d_in, positions=1)]
    for i in range(depth):
        last = i == depth - 1
        ops.append(Linear(name=f"{name}_{i}", d_in=d_in if i == 0 else hidden, d_out=out if last else hidden, bias=True))
        if not last:
            ops.append(Act(name=f"{name}_act{i}", fn="relu", features=hidden, split=False))
    return ops


def _prompt(p: Config, cells: int) -> list[Operator]:
    """Convolutions over a mask prompt, and the tables of point prompts."""
    hidden, channels = p.int("hidden_size", low=1), p.int("mask_input_channels", low=4)
    quarter, points = channels // 4, p.int("num_point_embeddings", low=0)
    fn = p.str("hidden_act", "gelu")
    return [
        Conv(name="mask_conv1", ins=("x",), c_in=1, c_out=quarter, kernel=(2, 2), positions=4 * cells),
        norm("mask_norm1", quarter, "layer", bias=True),
        Act(name="mask_act1", fn=fn, features=quarter),
        Conv(name="mask_conv2", c_in=quarter, c_out=channels, kernel=(2, 2), positions=cells),
        norm("mask_norm2", channels, "layer", bias=True),
        Act(name="mask_act2", fn=fn, features=channels),
        Conv(name="mask_conv3", c_in=channels, c_out=hidden, kernel=(1, 1), positions=cells),
        Parameters(name="prompt_tables", shapes=((1, hidden),) * (points + 2), role="embedding"),
        Pool(name="prompts", ins=("prompt_tables",), features=hidden, positions=max(1, points)),
    ]


def _image(v: Config) -> tuple[list[Stack], int]:
    """The image tower's stacks and the cells of its map."""
    hidden, heads = v.int("hidden_size", low=1), v.int("num_attention_heads", low=1)
    depth, out = v.int("num_hidden_layers", low=1), v.int("output_channels", low=1)
    head_dim = v.divides("num_attention_heads", hidden, heads)
    own = v.raw.get("mlp_dim")
    ffn = v.check_int("mlp_dim", own, 1) if own is not None else widened(v, "mlp_ratio", 4.0, hidden)
    gh, gw = grid(v)
    cells, window = gh * gw, v.int("window_size", default=14)
    full = set(v.ints("global_attn_indexes"))
    relative, fn, bias = v.bool("use_rel_pos", True), v.str("hidden_act", "gelu"), v.bool("qkv_bias", True)

    def make(side: int) -> Block:
        sh, sw = (side, side) if side else (gh, gw)
        tables = (Weight("rel_pos_h", (2 * sh - 1, head_dim)), Weight("rel_pos_w", (2 * sw - 1, head_dim))) if relative else ()
        ops = pre_norm(
            [
                (
                    lambda x: mha(
                        x,
                        hidden=hidden,
                        heads=heads,
                        packed=True,
                        packed_bias=bias,
                        o_bias=True,
                        window=side * side,
                        extra=tables,
                        dropout=v.float("attention_dropout", 0.0),
                    ),
                    0.0,
                ),
                (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
            ],
            hidden=hidden,
        )
        return Block("window" if side else "full", tuple(ops), hidden, "sample", cells)

    embed: list[Operator] = [patches("patch_embed", v, channels=v.int("num_channels", low=1), hidden=hidden, positions=cells)]
    if v.bool("use_abs_pos", True):
        embed += [
            Parameters(name="pos_embed", shapes=((gh, gw, hidden),), role="embedding"),
            Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
        ]
    neck: list[Operator] = [
        Conv(name="neck1", ins=("x",), c_in=hidden, c_out=out, kernel=(1, 1), bias=False, positions=cells),
        norm("neck_norm1", out, "layer", bias=True),
        Conv(name="neck2", c_in=out, c_out=out, kernel=(3, 3), bias=False, positions=cells),
        norm("neck_norm2", out, "layer", bias=True),
    ]
    return [
        tower("vision_embed", embed, 1, width=0, positions=cells, label="embed"),
        Stack(
            "vision",
            (make(0), make(window)),
            tuple(0 if i in full or not window else 1 for i in range(depth)),
        ),
        tower("vision_neck", neck, 1, width=hidden, positions=cells, label="neck"),
    ], cells
