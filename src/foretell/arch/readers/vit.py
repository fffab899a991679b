"""ViT, DeiT, BEiT and DINOv2.

Without ``architectures``: the ``...ForImageClassification`` class (two labels unless the file says
otherwise).
Source: transformers 5.24.0 ``modeling_vit``, ``modeling_deit``, ``modeling_beit``, ``modeling_dinov2``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import mlp, norm
from foretell.arch.operators import (
    Act,
    Add,
    Conv,
    Dropout,
    Head,
    Linear,
    Mul,
    Operator,
    Parameters,
    Pool,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, ffn2, labels, layers, mha, single, task, widened
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import grid, patches

_TASKS = ("Model", "ForImageClassification", "ForImageClassificationWithTeacher", "ForMaskedImageModeling")


@reader("vit", "deit", "beit", "dinov2")
def vit(cfg: Config) -> Architecture:
    """Pre-norm layers over patches; BEiT and DINOv2 scale each branch, BEiT has relative position tables."""
    family = cfg.model_type
    kind, notes = task(cfg, "ForImageClassification", _TASKS)
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth, drop = cfg.int("num_hidden_layers", low=1), cfg.float("hidden_dropout_prob", 0.0)
    head_dim = cfg.divides("num_attention_heads", hidden, heads)
    if family == "dinov2":
        ffn = widened(cfg, "mlp_ratio", 4.0, hidden)
        if cfg.bool("use_swiglu_ffn", False):
            ffn = (int(ffn * 2 / 3) + 7) // 8 * 8
    else:
        ffn = cfg.int("intermediate_size", low=1)
    gh, gw = grid(cfg)
    extra_tokens = 2 if family == "deit" else 1
    rows = gh * gw + extra_tokens
    masked = kind == "ForMaskedImageModeling"
    mask_token = cfg.bool("use_mask_token", family == "dinov2") if family in ("beit", "dinov2") else masked
    positions = cfg.bool("use_absolute_position_embeddings", False) if family == "beit" else True
    distance = (2 * gh - 1) * (2 * gw - 1) + 3
    shared_bias = family == "beit" and cfg.bool("use_shared_relative_position_bias", False)

    unread = mask_token and not masked  # a mask token that nothing replaces a patch with
    tokens = ((hidden,),) * (extra_tokens + (1 if mask_token and masked else 0))
    embed: list[Operator] = [
        patches("patch_embed", cfg, channels=cfg.int("num_channels", low=1), hidden=hidden, positions=gh * gw),
        *([Parameters(name="mask_token", shapes=((hidden,),), trained=False)] if unread else []),
        Parameters(name="special_tokens", shapes=tokens),
        Pool(name="tokens", ins=("patch_embed", "special_tokens"), features=hidden, positions=rows),
    ]
    if positions:
        embed += [
            Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
            Add(name="pos_add", ins=("tokens", "pos_embed"), features=hidden),
        ]
    if drop:
        embed.append(Dropout(name="embed_drop", features=hidden, p=drop))
    if shared_bias:
        embed.append(Parameters(name="relative_position_bias", shapes=((distance, heads),)))

    ops = _layer(cfg, family, hidden, heads, ffn, drop, distance)
    mean = family == "beit" and cfg.bool("use_mean_pooling", True)
    head: list[Operator] = [] if mean else [norm("norm", hidden, "layer", bias=True, ins="x")]
    if masked and family == "beit":
        head.append(norm("mim_norm", hidden, "layer", bias=True))
    elif mean and not masked:
        head += [
            Pool(name="mean", ins=("x",), features=hidden, positions=1),
            norm("pooler_norm", hidden, "layer", bias=True),
        ]
    head += _head(cfg, family, kind, hidden, gh * gw)
    return single(
        cfg,
        family="vision",
        embed=embed,
        stacks=[layers("layers", ops, depth, width=hidden, stream="sample", positions=rows)],
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        notes=notes,
    )


def _layer(cfg: Config, family: str, hidden: int, heads: int, ffn: int, drop: float, distance: int) -> list[Operator]:
    qkv_bias = True if family == "beit" else cfg.bool("qkv_bias", True)
    table: tuple[Weight, ...] = ()
    if family == "beit" and cfg.bool("use_relative_position_bias", False):
        table = (Weight("relative_position_bias_table", (distance, heads)),)
    mixer = mha(
        "norm1",
        hidden=hidden,
        heads=heads,
        bias=qkv_bias,
        k_bias=False if family == "beit" else None,
        o_bias=True,
        extra=table,
        dropout=cfg.float("attention_probs_dropout_prob", 0.0),
    )
    fn = cfg.str("hidden_act", "gelu")
    if family == "dinov2" and cfg.bool("use_swiglu_ffn", False):
        feed = mlp("norm2", hidden=hidden, ffn=ffn, fn="silu", bias=True)
    else:
        feed = ffn2("norm2", hidden=hidden, ffn=ffn, fn=fn)
    scaled = family == "dinov2" or (family == "beit" and cfg.float("layer_scale_init_value", 0.1) > 0)
    ops: list[Operator] = []
    x = "x"
    for i, body in enumerate((mixer, feed), 1):
        ops += [norm(f"norm{i}", hidden, "layer", bias=True, ins=x), *body]
        branch = body[-1].name
        if drop and not (i == 1 and family == "beit"):
            ops.append(Dropout(name=f"drop{i}", ins=(branch,), features=hidden, p=drop))
            branch = f"drop{i}"
        if scaled:
            ops += [
                Parameters(name=f"scale{i}", shapes=((hidden,),)),
                Mul(name=f"scaled{i}", ins=(branch, f"scale{i}"), features=hidden),
            ]
            branch = f"scaled{i}"
        ops.append(Add(name=f"add{i}", ins=(x, branch), features=hidden))
        x = f"add{i}"
    return ops


def _head(cfg: Config, family: str, kind: str, hidden: int, cells: int) -> list[Operator]:
    """Operators after the final norm."""
    if kind == "Model":
        if family in ("beit", "dinov2"):
            return []
        out = cfg.int("pooler_output_size", default=hidden, low=1)
        return [
            Pool(name="first", features=hidden, positions=1, kind="view"),
            Linear(name="pooler", d_in=hidden, d_out=out, bias=True),
            Act(name="pooler_act", fn=cfg.str("pooler_act", "tanh"), features=out),
        ]
    if kind == "ForMaskedImageModeling":
        if family == "beit":
            return [classifier("lm_head", hidden, cfg.int("vocab_size", low=1))]
        stride = cfg.int("encoder_stride", default=16, low=1)
        out = stride * stride * cfg.int("num_channels", low=1)
        return [Conv(name="decoder", c_in=hidden, c_out=out, kernel=(1, 1), positions=cells)]
    n = labels(cfg)
    width = 2 * hidden if family == "dinov2" else hidden
    ops: list[Operator] = []
    if not (family == "beit" and cfg.bool("use_mean_pooling", True)):
        ops.append(Pool(name="pooled", features=width, positions=1, kind="copy" if family == "dinov2" else "view"))
    ops.append(classifier("classifier", width, n))
    if kind == "ForImageClassificationWithTeacher" and family == "deit":
        source = "pooled" if ops[0].name == "pooled" else "pooler_norm"
        ops.append(Head(name="distillation_classifier", ins=(source,), dim=width, rows=n, bias=True))
    return ops
