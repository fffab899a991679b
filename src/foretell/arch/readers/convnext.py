"""ConvNeXt: depthwise 7 x 7 convolutions and pointwise MLPs in stages.

Without ``architectures``: ``ConvNextForImageClassification``.  Rows follow ``image_size`` (224 by default).
Source: transformers 5.24.0 ``modeling_convnext``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Add, Conv, Linear, Mul, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, labels, single, task
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, patches, tower


def _layer(dim: int, rows: int, fn: str, scaled: bool) -> list[Operator]:
    ops: list[Operator] = [
        Conv(name="dwconv", ins=("x",), c_in=dim, c_out=dim, kernel=(7, 7), groups=dim, positions=rows),
        norm("norm", dim, "layer", bias=True),
        Linear(name="pwconv1", d_in=dim, d_out=4 * dim, bias=True, split="col"),
        Act(name="act", fn=fn, features=4 * dim),
        Linear(name="pwconv2", d_in=4 * dim, d_out=dim, bias=True, split="row"),
    ]
    last = "pwconv2"
    if scaled:
        ops += [
            Parameters(name="scale", shapes=((dim,),)),
            Mul(name="scaled", ins=("pwconv2", "scale"), features=dim),
        ]
        last = "scaled"
    return [*ops, Add(name="add", ins=("x", last), features=dim)]


@reader("convnext")
def convnext(cfg: Config) -> Architecture:
    """Patch stem, stages (each after the first halves the map), final norm, classifier."""
    kind, notes = task(cfg, "ForImageClassification", ("Model", "ForImageClassification"))
    sizes, depths = cfg.ints("hidden_sizes"), cfg.ints("depths")
    n = cfg.int("num_stages", default=len(sizes), low=1)
    if len(sizes) < n or len(depths) < n or min(*sizes, *depths) < 1:
        raise cfg.error("hidden_sizes", sizes, f"{n} sizes of 1 or more, as many as depths", "correct the lists")
    fn, scaled = cfg.str("hidden_act", "gelu"), cfg.float("layer_scale_init_value", 1e-6) > 0
    h, w = grid(cfg)
    first = h * w
    embed: list[Operator] = [
        patches("patch_embed", cfg, channels=cfg.int("num_channels", low=1), hidden=sizes[0], positions=first),
        norm("embed_norm", sizes[0], "layer", bias=True),
    ]
    stacks: list[Stack] = []
    for i in range(n):
        dim = sizes[i]
        if i:
            rows = h * w
            h, w = max(1, h // 2), max(1, w // 2)
            down: list[Operator] = [
                norm("down_norm", sizes[i - 1], "layer", bias=True, ins="x"),
                Conv(name="down", c_in=sizes[i - 1], c_out=dim, kernel=(2, 2), positions=h * w),
            ]
            stacks.append(tower(f"down{i}", down, 1, width=sizes[i - 1], positions=rows, label="down"))
        stacks.append(tower(f"stage{i + 1}", _layer(dim, h * w, fn, scaled), depths[i], width=dim, positions=h * w))
    last = sizes[-1]
    head: list[Operator] = [
        Pool(name="pool", ins=("x",), features=last, positions=1),
        norm("norm", last, "layer", bias=True),
    ]
    if kind == "ForImageClassification":
        head.append(classifier("classifier", last, labels(cfg)))
    return single(
        cfg,
        family="cnn",
        embed=embed,
        stacks=stacks,
        head=head,
        hidden=last,
        embed_stream="sample",
        embed_positions=first,
        head_positions=h * w,
        notes=notes,
    )
