"""Swin: windowed attention in stages that halve the map and double the width.

Without ``architectures``: ``SwinForImageClassification``.
Source: transformers 5.24.0 ``modeling_swin``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import norm
from foretell.arch.operators import Add, Conv, Linear, Operator, Parameters, Pool, Weight
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import stack
from foretell.arch.readers._encoder import classifier, ffn2, labels, mha, pre_norm, single, task, widened
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, patches, tower


@reader("swin")
def swin(cfg: Config) -> Architecture:
    """Each layer owns a table of relative positions; odd layers shift their windows (no parameters)."""
    kind, notes = task(cfg, "ForImageClassification", ("Model", "ForImageClassification", "ForMaskedImageModeling"))
    dim, depths, heads = cfg.int("embed_dim", low=1), cfg.ints("depths"), cfg.ints("num_heads")
    if not depths or len(heads) < len(depths) or min(*depths, *heads) < 1:
        raise cfg.error("num_heads", heads, "as many numbers of 1 or more as depths has", "correct the lists")
    window = cfg.int("window_size", low=1)
    drop, attn_drop = cfg.float("hidden_dropout_prob", 0.0), cfg.float("attention_probs_dropout_prob", 0.0)
    fn, bias = cfg.str("hidden_act", "gelu"), cfg.bool("qkv_bias", True)
    h, w = grid(cfg)
    first = h * w
    embed: list[Operator] = [
        patches("patch_embed", cfg, channels=cfg.int("num_channels", low=1), hidden=dim, positions=first),
        norm("embed_norm", dim, "layer", bias=True),
    ]
    masked = kind == "ForMaskedImageModeling"
    if masked:
        embed.append(Parameters(name="mask_token", shapes=((dim,),)))
    if cfg.bool("use_absolute_embeddings", False):
        embed += [
            Parameters(name="pos_embed", shapes=((first, dim),), role="embedding"),
            Add(name="pos_add", ins=("embed_norm", "pos_embed"), features=dim),
        ]
    stacks: list[Stack] = []
    for i, depth in enumerate(depths):
        width, n = dim * 2**i, heads[i]
        cfg.divides("num_heads", width, n)
        table = (Weight("relative_position_bias_table", ((2 * window - 1) ** 2, n)),)

        def layer(kind: str, width: int = width, n: int = n, table: tuple[Weight, ...] = table) -> list[Operator]:
            def attend(x: str) -> list[Operator]:
                core = {"window": window * window, "extra": table, "dropout": attn_drop, "position": kind}
                return mha(x, hidden=width, heads=n, bias=bias, o_bias=True, **core)

            def feed(x: str) -> list[Operator]:
                return ffn2(x, hidden=width, ffn=widened(cfg, "mlp_ratio", 4.0, width), fn=fn)

            return pre_norm([(attend, drop), (feed, drop)], hidden=width)

        kinds = ["shifted" if j % 2 and min(h, w) > window else "window" for j in range(depth)]
        stacks.append(stack(f"stage{i + 1}", kinds, layer, width=width, stream="sample", positions=h * w))
        if i < len(depths) - 1:
            rows = h * w
            h, w = (h + 1) // 2, (w + 1) // 2
            merge: list[Operator] = [
                Pool(name="merge", ins=("x",), features=4 * width, positions=h * w),
                norm("merge_norm", 4 * width, "layer", bias=True),
                Linear(name="reduction", d_in=4 * width, d_out=2 * width),
            ]
            stacks.append(tower(f"merge{i + 1}", merge, 1, width=width, positions=rows, label="merge"))
    last = dim * 2 ** (len(depths) - 1)
    head: list[Operator] = [norm("norm", last, "layer", bias=True, ins="x")]
    if masked:
        out = cfg.int("encoder_stride", low=1) ** 2 * cfg.int("num_channels", low=1)
        head.append(Conv(name="decoder", c_in=last, c_out=out, kernel=(1, 1), positions=h * w))
    else:
        head.append(Pool(name="pool", features=last, positions=1))
        if kind == "ForImageClassification":
            head.append(classifier("classifier", last, labels(cfg)))
    return single(
        cfg,
        family="vision",
        embed=embed,
        stacks=stacks,
        head=head,
        hidden=last,
        embed_stream="sample",
        embed_positions=first,
        head_positions=h * w,
        heads=heads[-1],
        head_dim=last // heads[-1],
        ffn=widened(cfg, "mlp_ratio", 4.0, last),
        notes=notes,
    )
