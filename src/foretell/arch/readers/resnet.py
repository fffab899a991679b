"""ResNet (bottleneck and basic) as Hugging Face builds it, also as the backbone of DETR.

Without ``architectures``: ``ResNetForImageClassification``.  A configuration names no image size: rows are
those of 224 x 224 pixels (ImageNet training, arXiv 1512.03385 section 3.4).
Source: transformers 5.24.0 ``modeling_resnet``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Act, Add, Conv, Norm, Operator, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, labels, single, task
from foretell.arch.readers._registry import reader

IMAGE = 224


@dataclass(frozen=True)
class Backbone:
    """A convolutional backbone: stem, stages, and the width and size of its last feature map."""

    stem: tuple[Operator, ...]
    stages: tuple[Stack, ...]
    channels: int
    height: int
    width: int


def halve(n: int) -> int:
    """Size after a stride of 2 with 'same' padding."""
    return (n + 1) // 2


def conv_norm(
    name: str,
    c_in: int,
    c_out: int,
    kernel: int,
    positions: int,
    *,
    ins: str = "",
    affine: bool = True,
    fn: str = "relu",
) -> list[Operator]:
    """Convolution without bias, batch norm (``affine=False``: frozen into buffers), optional activation."""
    ops: list[Operator] = [
        Conv(
            name=name,
            ins=(ins,) if ins else (),
            c_in=c_in,
            c_out=c_out,
            kernel=(kernel, kernel),
            bias=False,
            positions=positions,
        ),
        Norm(name=f"{name}_norm", dim=c_out, kind="batch", bias=affine, affine=affine),
    ]
    return [*ops, Act(name=f"{name}_act", fn=fn, features=c_out)] if fn else ops


def backbone(cfg: Config, height: int, width: int, *, affine: bool = True) -> Backbone:
    """Stem and stages for images of ``height x width``."""
    sizes, depths = cfg.ints("hidden_sizes"), cfg.ints("depths")
    if not sizes or len(sizes) != len(depths) or min(*sizes, *depths) < 1:
        raise cfg.error("depths", depths, "as many numbers of 1 or more as hidden_sizes has", "correct the lists")
    kind, stem_width = cfg.str("layer_type", "bottleneck"), cfg.int("embedding_size", low=1)
    if kind not in ("bottleneck", "basic"):
        raise cfg.error("layer_type", kind, "bottleneck or basic", "correct the value")
    fn, early = cfg.str("hidden_act", "relu"), cfg.bool("downsample_in_bottleneck", False)
    h, w = halve(height), halve(width)
    first = conv_norm("stem", cfg.int("num_channels", low=1), stem_width, 7, h * w, affine=affine, fn=fn)
    stem = [replace(op, source=height * width) if isinstance(op, Conv) else op for op in first]
    h, w = halve(h), halve(w)
    stem.append(Pool(name="stem_pool", features=stem_width, positions=h * w, kind="max"))
    stages: list[Stack] = []
    c_in = stem_width
    for i, (c_out, depth) in enumerate(zip(sizes, depths, strict=True)):
        stride = 2 if i > 0 or cfg.bool("downsample_in_first_stage", False) else 1
        rows = h * w
        if stride == 2:
            h, w = halve(h), halve(w)
        ops = _layer(kind, c_in, c_out, stride, rows, h * w, fn, affine, early)
        entry = Block("first", tuple(ops), c_in, "sample", rows)
        again = _layer(kind, c_out, c_out, 1, h * w, h * w, fn, affine, early)
        later = Block("layer", tuple(again), c_out, "sample", h * w)
        stages.append(Stack(f"stage{i + 1}", (entry, later), (0, *(1,) * (depth - 1))))
        c_in = c_out
    return Backbone(tuple(stem), tuple(stages), c_in, h, w)


def _layer(
    kind: str, c_in: int, c_out: int, stride: int, rows: int, out: int, fn: str, affine: bool, early: bool
) -> list[Operator]:
    """One residual layer; ``early`` puts a bottleneck's stride in its first convolution."""
    ops: list[Operator] = []
    short = "x"
    if c_in != c_out or stride != 1:
        ops += conv_norm("shortcut", c_in, c_out, 1, out, ins="x", affine=affine, fn="")
        short = "shortcut_norm"
    if kind == "bottleneck":
        mid = c_out // 4
        ops += conv_norm("conv1", c_in, mid, 1, out if early else rows, ins="x", affine=affine)
        ops += conv_norm("conv2", mid, mid, 3, out, affine=affine)
        ops += conv_norm("conv3", mid, c_out, 1, out, affine=affine, fn="")
        last = "conv3_norm"
    else:
        ops += conv_norm("conv1", c_in, c_out, 3, out, ins="x", affine=affine)
        ops += conv_norm("conv2", c_out, c_out, 3, out, affine=affine, fn="")
        last = "conv2_norm"
    return [*ops, Add(name="add", ins=(short, last), features=c_out), Act(name="act", fn=fn, features=c_out)]


@reader("resnet")
def resnet(cfg: Config) -> Architecture:
    """Backbone, global average pool, classifier."""
    kind, notes = task(cfg, "ForImageClassification", ("Model", "ForImageClassification", "Backbone"))
    body = backbone(cfg, IMAGE, IMAGE)
    head: list[Operator] = []
    if kind != "Backbone":
        head.append(Pool(name="pool", ins=("x",), features=body.channels, positions=1))
    if kind == "ForImageClassification":
        head.append(classifier("classifier", body.channels, labels(cfg)))
    rows = body.height * body.width
    return single(
        cfg,
        family="cnn",
        embed=body.stem,
        stacks=body.stages,
        head=head,
        hidden=body.channels,
        embed_stream="sample",
        embed_positions=IMAGE * IMAGE,
        head_positions=rows,
        notes=(*notes, f"rows are those of {IMAGE} x {IMAGE} pixels"),
    )
