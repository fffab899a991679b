"""SegFormer: overlapping patches, attention over reduced keys, convolution in the MLPs, light decoder.

Without ``architectures``: ``SegformerForSemanticSegmentation``.  A configuration names no image size: rows
are those of 512 x 512 pixels (ADE20K training, arXiv 2105.15203 section 4.1).
Source: transformers 5.24.0 ``modeling_segformer``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import norm, residual
from foretell.arch.operators import Act, Attention, Conv, Dropout, Linear, Norm, Operator, PixelLoss, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, labels, single, task
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import tower

IMAGE = 512
_LISTS = (
    "hidden_sizes",
    "depths",
    "num_attention_heads",
    "sr_ratios",
    "patch_sizes",
    "strides",
    "mlp_ratios",
)


@reader("segformer")
def segformer(cfg: Config) -> Architecture:
    """Stages, then the all-MLP decoder over their four maps (or a classifier over the last)."""
    known = ("Model", "ForImageClassification", "ForSemanticSegmentation")
    kind, notes = task(cfg, "ForSemanticSegmentation", known)
    n = cfg.int("num_encoder_blocks", low=1)
    lists = {key: cfg.list(key) if key == "mlp_ratios" else cfg.ints(key) for key in _LISTS}
    for key, value in lists.items():
        if len(value) < n or any(not isinstance(v, int | float) or v <= 0 for v in value):
            raise cfg.error(key, value, f"{n} positive numbers", "correct the list")
    sizes = lists["hidden_sizes"]
    h = w = IMAGE
    c_in = cfg.int("num_channels", low=1)
    stacks: list[Stack] = []
    maps: list[int] = []
    for i in range(n):
        dim, stride, rows = sizes[i], lists["strides"][i], h * w
        h, w = -(-h // stride), -(-w // stride)
        kernel = (lists["patch_sizes"][i],) * 2
        ops: list[Operator] = [
            Conv(
                name="patch_embed",
                ins=("x",) if i else (),
                c_in=c_in,
                c_out=dim,
                kernel=kernel,
                positions=h * w,
                source=0 if i else IMAGE * IMAGE,
            ),
            norm("patch_norm", dim, "layer", bias=True),
        ]
        stacks.append(tower(f"embed{i + 1}", ops, 1, width=c_in if i else 0, positions=rows, label="embed"))
        layer = _layer(
            cfg,
            dim,
            lists["num_attention_heads"][i],
            int(dim * lists["mlp_ratios"][i]),
            lists["sr_ratios"][i],
            h,
            w,
        )
        stacks.append(tower(f"stage{i + 1}", layer, lists["depths"][i], width=dim, positions=h * w))
        last_norm = [norm("norm", dim, "layer", bias=True, ins="x")]
        stacks.append(tower(f"norm{i + 1}", last_norm, 1, width=dim, positions=h * w, label="norm"))
        maps.append(h * w)
        c_in = dim
    head: list[Operator] = []
    if kind == "ForImageClassification":
        head = [
            Pool(name="pool", ins=("x",), features=c_in, positions=1),
            classifier("classifier", c_in, labels(cfg)),
        ]
    elif kind == "ForSemanticSegmentation":
        head = _decoder(cfg, sizes[:n], maps)
    return single(
        cfg,
        family="vision",
        embed=stacks[0].blocks[0].ops,
        stacks=stacks[1:],
        head=head,
        hidden=c_in,
        embed_stream="sample",
        embed_positions=IMAGE * IMAGE,
        head_positions=maps[-1],
        heads=lists["num_attention_heads"][n - 1],
        notes=(*notes, f"rows are those of {IMAGE} x {IMAGE} pixels"),
    )


def _layer(cfg: Config, dim: int, heads: int, ffn: int, ratio: int, h: int, w: int) -> list[Operator]:
    head_dim = cfg.divides("num_attention_heads", dim, heads)
    drop = cfg.float("hidden_dropout_prob", 0.0)
    reduced = max(1, h // ratio) * max(1, w // ratio)
    ops: list[Operator] = [norm("norm1", dim, "layer", bias=True, ins="x")]
    source = "norm1"
    if ratio > 1:
        ops += [
            Conv(name="sr", c_in=dim, c_out=dim, kernel=(ratio, ratio), positions=reduced),
            norm("sr_norm", dim, "layer", bias=True),
        ]
        source = "sr_norm"
    ops += [
        Linear(name="q_proj", ins=("norm1",), d_in=dim, d_out=dim, bias=True, split="col"),
        Linear(name="k_proj", ins=(source,), d_in=dim, d_out=dim, bias=True, split="col"),
        Linear(name="v_proj", ins=(source,), d_in=dim, d_out=dim, bias=True, split="col"),
        Attention(
            name="attn",
            ins=("q_proj", "k_proj", "v_proj"),
            heads=heads,
            kv_heads=heads,
            head_dim=head_dim,
            v_dim=head_dim,
            causal=False,
            dropout=cfg.float("attention_probs_dropout_prob", 0.0),
        ),
        Linear(name="o_proj", d_in=dim, d_out=dim, bias=True, split="row"),
        *residual("add1", "x", "o_proj", dim, dropout=drop),
        norm("norm2", dim, "layer", bias=True, ins="add1"),
        Linear(name="fc1", d_in=dim, d_out=ffn, bias=True, split="col"),
        Conv(name="dwconv", c_in=ffn, c_out=ffn, kernel=(3, 3), groups=ffn, positions=h * w, split=True),
        Act(name="act", fn=cfg.str("hidden_act", "gelu"), features=ffn),
        Linear(name="fc2", d_in=ffn, d_out=dim, bias=True, split="row"),
        *residual("add2", "add1", "fc2", dim, dropout=drop),
    ]
    return ops


def _decoder(cfg: Config, sizes: list[int], maps: list[int]) -> list[Operator]:
    """One projection a stage, resized to the first map, concatenated, fused, classified pixel by pixel."""
    width, big = cfg.int("decoder_hidden_size", low=1), maps[0]
    ops: list[Operator] = []
    for i, size in enumerate(sizes):
        ops += [
            Linear(
                name=f"project{i}",
                ins=("x" if i == len(sizes) - 1 else "skip",),
                d_in=size,
                d_out=width,
                bias=True,
            ),
            Pool(name=f"resize{i}", features=width, positions=big),
        ]
    joined = tuple(f"resize{i}" for i in range(len(sizes)))
    ops += [
        Pool(name="concat", ins=joined, features=width * len(sizes), positions=big),
        Conv(name="fuse", c_in=width * len(sizes), c_out=width, kernel=(1, 1), bias=False, positions=big),
        Norm(name="fuse_norm", dim=width, kind="batch", bias=True),
        Act(name="fuse_act", fn="relu", features=width),
    ]
    drop = cfg.float("classifier_dropout_prob", 0.1)
    if drop:
        ops.append(Dropout(name="fuse_drop", features=width, p=drop))
    n = labels(cfg)
    return [
        *ops,
        Conv(name="classifier", c_in=width, c_out=n, kernel=(1, 1), positions=big),
        PixelLoss(name="loss", classes=n, positions=IMAGE * IMAGE),
    ]
