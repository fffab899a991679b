"""Segmentation networks that MMSegmentation names: FCN on a dilated ResNet, U-Net, and UPerNet on a ViT.

``{"model_type": "mmseg", "name": "FCN R-101-D8", "image_size": [512, 1024], "num_labels": 19}``.  A name holds the
depth (``b``: torchvision's stem of one 7 x 7 convolution instead of three 3 x 3) and the output stride; each network
has a decoding and an auxiliary head, whose logits are resized to the image before the loss.
Source: open-mmlab/mmsegmentation ``configs/_base_/models`` (``fcn_r50-d8.py``, ``fcn_unet_s5-d16.py``,
``upernet_vit-b16_ln_mln.py``), ``mmseg/models`` (``backbones/resnet.py``, ``unet.py``, ``vit.py``,
``decode_heads/fcn_head.py``, ``uper_head.py``, ``psp_head.py``, ``necks/multilevel_neck.py``).
"""

from __future__ import annotations

import re
from dataclasses import replace

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.operators import Add, Conv, Dropout, Operator, Parameters, PixelLoss, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import single
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import pair, tower, vit_layer
from foretell.arch.readers.resnet import conv_norm, halve

_DEPTHS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
_DROP = 0.1
Size = tuple[int, int]


def _pixels(size: Size) -> int:
    return size[0] * size[1]


def _fcn_head(
    prefix: str, source: str, c_in: int, width: int, convs: int, concat: bool, rows: int, classes: int, image: Size
) -> list[Operator]:
    """Convolutions, optionally joined with their input once more, the classifying one, and the loss at full size."""
    p, ops, ins = prefix, list[Operator](), source
    for i in range(convs):
        ops += conv_norm(f"{p}conv{i}", c_in if i == 0 else width, width, 3, rows, ins=ins)
        ins = ops[-1].name
    if concat:
        ops.append(Pool(name=f"{p}cat", ins=(source, ins), features=c_in + width, positions=rows))
        ops += conv_norm(f"{p}conv_cat", c_in + width, width, 3, rows)
    ops += [
        Dropout(name=f"{p}drop", features=width, p=_DROP),
        Conv(name=f"{p}conv_seg", c_in=width, c_out=classes, kernel=(1, 1), positions=rows),
        PixelLoss(name=f"{p}loss", classes=classes, positions=_pixels(image)),
    ]
    return ops


def _layer(basic: bool, c_in: int, mid: int, c_out: int, rows: int, out: int) -> list[Operator]:
    """One residual layer; the stride stands in the 3 x 3 convolution."""
    ops: list[Operator] = []
    short = "x"
    if c_in != c_out or rows != out:
        ops += conv_norm("shortcut", c_in, c_out, 1, out, ins="x", fn="")
        short = "shortcut_norm"
    if basic:
        ops += conv_norm("conv1", c_in, mid, 3, out, ins="x")
    else:
        ops += conv_norm("conv1", c_in, mid, 1, rows, ins="x")
        ops += conv_norm("conv2", mid, mid, 3, out)
    ops += conv_norm("last", mid, c_out, 3 if basic else 1, out, fn="")
    add = Add(name="add", ins=(short, "last_norm"), features=c_out)
    return [*ops, add, replace(conv_norm("relu", 1, c_out, 1, 1)[-1], name="relu")]


def _fcn(cfg: Config, depth: int, plain: bool, stride: int, image: Size, classes: int) -> Architecture:
    basic = depth < 50
    h, w = halve(image[0]), halve(image[1])
    if plain:
        stem = conv_norm("stem", 3, 64, 7, h * w)
    else:
        stem = [op for i, (a, b) in enumerate(((3, 32), (32, 32), (32, 64))) for op in conv_norm(f"stem{i}", a, b, 3, h * w)]
    stem = [replace(op, source=_pixels(image)) if i == 0 and isinstance(op, Conv) else op for i, op in enumerate(stem)]
    h, w = halve(h), halve(w)
    stem.append(Pool(name="stem_pool", features=64, positions=h * w, kind="max"))
    stacks: list[Stack] = []
    c_in = 64
    for i, n in enumerate(_DEPTHS[depth]):
        mid = 64 * 2**i
        c_out, rows = (mid if basic else 4 * mid), h * w
        if i == 1 or (i == 2 and stride == 16):
            h, w = halve(h), halve(w)
        stacks.append(tower(f"stage{i + 1}_first", _layer(basic, c_in, mid, c_out, rows, h * w), 1, width=c_in, positions=rows))
        later = _layer(basic, c_out, mid, c_out, h * w, h * w)
        stacks.append(tower(f"stage{i + 1}", later, n - 1, width=c_out, positions=h * w))
        c_in = c_out
    width, aux = (128, 64) if basic else (512, 256)
    head = [
        *_fcn_head("", "x", c_in, width, 2, True, h * w, classes, image),
        *_fcn_head("aux_", "skip", c_in // 2, aux, 1, False, h * w, classes, image),
        Add(name="loss_sum", ins=("loss", "aux_loss"), features=0),
    ]
    return single(
        cfg,
        family="cnn",
        embed=stem,
        stacks=stacks,
        head=head,
        hidden=c_in,
        embed_stream="sample",
        embed_positions=_pixels(image),
        head_positions=h * w,
    )


def _unet(cfg: Config, stages: int, image: Size, classes: int) -> Architecture:
    h, w = image
    stacks: list[Stack] = []
    sizes: list[tuple[int, int]] = []
    embed: list[Operator] = []
    c_in = 3
    for i in range(stages):
        width, rows = 64 * 2**i, h * w
        ops: list[Operator] = []
        if i:
            h, w = h // 2, w // 2
            ops.append(Pool(name="pool", ins=("x",), features=c_in, positions=h * w, kind="max"))
        ops += [*conv_norm("conv1", c_in, width, 3, h * w), *conv_norm("conv2", width, width, 3, h * w)]
        if i:
            stacks.append(tower(f"down{i}", ops, 1, width=c_in, positions=rows))
        else:
            embed = ops
        sizes.append((width, h * w))
        c_in = width
    for i in reversed(range(stages - 1)):
        width, rows = sizes[i]
        ops = [
            Pool(name="resize", ins=("x",), features=c_in, positions=rows),
            *conv_norm("reduce", c_in, width, 1, rows),
            Pool(name="concat", ins=("reduce_act", "skip"), features=2 * width, positions=rows),
            *conv_norm("conv1", 2 * width, width, 3, rows),
            *conv_norm("conv2", width, width, 3, rows),
        ]
        stacks.append(tower(f"up{i}", ops, 1, width=c_in, positions=sizes[i + 1][1]))
        c_in = width
    quarter = sizes[1][1]
    head = [
        *_fcn_head("", "x", 64, 64, 1, False, _pixels(image), classes, image),
        *_fcn_head("aux_", "skip", 128, 64, 1, False, quarter, classes, image),
        Add(name="loss_sum", ins=("loss", "aux_loss"), features=0),
    ]
    return single(
        cfg,
        family="cnn",
        embed=embed,
        stacks=stacks,
        head=head,
        hidden=64,
        embed_stream="sample",
        embed_positions=_pixels(image),
        head_positions=_pixels(image),
    )


def _pyramid(hidden: int, levels: list[tuple[str, int]], width: int, classes: int, image: Size) -> list[Operator]:
    """UPerHead: pooled maps of the last level (1, 2, 3 and 6 a side), lateral and output convolutions, all joined."""
    ops: list[Operator] = []
    last, rows = levels[-1]
    for side in (1, 2, 3, 6):
        ops.append(Pool(name=f"pool{side}", ins=(last,), features=hidden, positions=side * side))
        ops += conv_norm(f"ppm{side}", hidden, width, 1, side * side)
        ops.append(Pool(name=f"ppm{side}_up", features=width, positions=rows))
    wide = hidden + 4 * width
    ops.append(Pool(name="ppm_cat", ins=(last, *(f"ppm{s}_up" for s in (1, 2, 3, 6))), features=wide, positions=rows))
    ops += conv_norm("bottleneck", wide, width, 3, rows)
    big = levels[0][1]
    for i, (source, places) in enumerate(levels[:-1]):
        ops += conv_norm(f"lateral{i}", hidden, width, 1, places, ins=source)
    for i, (_, places) in enumerate(levels[:-1]):
        ops.append(Pool(name=f"sum{i}", ins=(f"lateral{i}_act",), features=width, positions=places))
        ops += conv_norm(f"fpn{i}", width, width, 3, places)
        ops.append(Pool(name=f"up{i}", features=width, positions=big))
    joined = (*(f"up{i}" for i in range(len(levels) - 1)), "bottleneck_act")
    ops.append(Pool(name="fpn_cat", ins=joined, features=len(levels) * width, positions=big))
    ops += conv_norm("fpn_bottleneck", len(levels) * width, width, 3, big)
    return [
        *ops,
        Dropout(name="drop", features=width, p=_DROP),
        Conv(name="conv_seg", c_in=width, c_out=classes, kernel=(1, 1), positions=big),
        PixelLoss(name="loss", classes=classes, positions=_pixels(image)),
    ]


def _upernet(cfg: Config, hidden: int, heads: int, neck: bool, image: Size, classes: int) -> Architecture:
    """A ViT of 12 layers and patches of 16; the outputs of four layers, resized by the neck where there is one."""
    grid = image[0] // 16 * (image[1] // 16)
    rows, depth = grid + 1, 12
    embed: list[Operator] = [
        Conv(name="patch_embed", c_in=3, c_out=hidden, kernel=(16, 16), positions=grid, source=_pixels(image)),
        Parameters(name="class_token", shapes=((hidden,),)),
        Pool(name="tokens", ins=("patch_embed",), features=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("tokens", "pos_embed"), features=hidden),
    ]
    layer = vit_layer(hidden=hidden, heads=heads, ffn=4 * hidden)
    head: list[Operator] = []
    levels: list[tuple[str, int]] = []
    for i in range(4):
        name, places = f"level{i}", grid
        head.append(Pool(name=name, ins=("x" if i == 3 else "skip",), features=hidden, positions=grid))
        if neck:
            places = grid * 16 // 4**i
            head += [
                Conv(name=f"{name}_lateral", c_in=hidden, c_out=hidden, kernel=(1, 1), positions=grid),
                Pool(name=f"{name}_resize", features=hidden, positions=places),
                Conv(name=f"{name}_conv", c_in=hidden, c_out=hidden, kernel=(3, 3), positions=places),
            ]
        levels.append((head[-1].name, places))
    head += [
        *_pyramid(hidden, levels, 512, classes, image),
        *_fcn_head("aux_", levels[-1][0], hidden, 256, 1, False, levels[-1][1], classes, image),
        Add(name="loss_sum", ins=("loss", "aux_loss"), features=0),
    ]
    return single(
        cfg,
        family="vision",
        embed=embed,
        stacks=[tower("layers", layer, depth, width=hidden, positions=rows)],
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=hidden // heads,
    )


@reader("mmseg")
def mmseg(cfg: Config) -> Architecture:
    """The network that ``name`` says."""
    name = cfg.str("name", "")
    usual = {"U-Net": 2, "UPerNet": 150}.get(name.split()[0] if name else "", 19)  # DRIVE, ADE20K, Cityscapes
    classes = cfg.int("num_labels", default=usual, low=1)
    image = pair(cfg, "image_size", [512, 1024])
    found = re.search(r"FCN.* R-(18|50|101)(b?)-D(8|16)\b", name)
    if found:
        return _fcn(cfg, int(found[1]), bool(found[2]), int(found[3]), image, classes)
    found = re.search(r"U-Net S([2-6])-D\d+ \+ FCN", name)
    if found:
        return _unet(cfg, int(found[1]), image, classes)
    found = re.search(r"UPerNet (?:DeiT|ViT)-([SB])( \+ MLN)?", name)
    if found:
        hidden, heads = (384, 6) if found[1] == "S" else (768, 12)
        return _upernet(cfg, hidden, heads, bool(found[2]), image, classes)
    allowed = "FCN R-<18, 50 or 101>-D<8 or 16>, UPerNet <ViT or DeiT>-<S or B>, or U-Net S<stages>-D<stride> + FCN"
    raise cfg.error("name", name, allowed, "other networks are not read")
