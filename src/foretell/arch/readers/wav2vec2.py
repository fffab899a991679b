"""wav2vec 2.0: strided 1-d convolutions over the waveform, then transformer layers.

Without ``architectures``: ``Wav2Vec2ForCTC``.  A configuration does not say how long clips are: rows are
those of 250,000 samples (15.6 s at 16 kHz), the crop of the base model's training (arXiv 2006.11477, section
4.2).
Source: transformers 5.24.0 ``modeling_wav2vec2``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import (
    Act,
    Add,
    Conv,
    Dropout,
    Head,
    Linear,
    Mul,
    Norm,
    Operator,
    Parameters,
    Pool,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import (
    classifier,
    ffn2,
    labels,
    layers,
    mha,
    post_norm,
    pre_norm,
    single,
    task,
)
from foretell.arch.readers._registry import reader

SAMPLES = 250_000
"""Samples of a training clip, arXiv 2006.11477 section 4.2."""
_TASKS = ("Model", "ForCTC", "ForPreTraining", "ForSequenceClassification", "ForAudioFrameClassification")


@reader("wav2vec2")
def wav2vec2(cfg: Config) -> Architecture:
    """Feature encoder and positional convolution (embed block), layers (pre-norm when "stable")."""
    kind, notes = task(cfg, "ForCTC", _TASKS)
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    depth, ffn = cfg.int("num_hidden_layers", low=1), cfg.int("intermediate_size", low=1)
    head_dim = cfg.divides("num_attention_heads", hidden, heads)
    stable, drop = cfg.bool("do_stable_layer_norm", False), cfg.float("hidden_dropout", 0.1)
    if cfg.bool("add_adapter", False) or cfg.int("adapter_attn_dim", default=None):
        raise cfg.error("add_adapter", True, "false", "adapters after or inside the encoder are not read")
    embed, rows, width = _features(cfg)
    project = cfg.float("feat_proj_dropout", 0.0)
    embed += [
        norm("proj_norm", width, "layer", bias=True),
        Linear(name="proj", d_in=width, d_out=hidden, bias=True),
    ]
    if project:
        embed.append(Dropout(name="proj_drop", features=hidden, p=project))
    if cfg.float("mask_time_prob", 0.05) > 0 or cfg.float("mask_feature_prob", 0.0) > 0:
        embed.append(Parameters(name="masked_spec_embed", shapes=((hidden,),)))
    kernel, groups = (
        cfg.int("num_conv_pos_embeddings", low=1),
        cfg.int("num_conv_pos_embedding_groups", low=1),
    )
    cfg.divides("num_conv_pos_embedding_groups", hidden, groups)
    source = "proj_drop" if project else "proj"
    embed += [
        Parameters(name="pos_conv_scale", shapes=((1, 1, kernel),)),
        Conv(
            name="pos_conv",
            ins=(source,),
            c_in=hidden,
            c_out=hidden,
            kernel=(kernel,),
            groups=groups,
            positions=rows,
        ),
        Act(name="pos_act", fn=cfg.str("feat_extract_activation", "gelu"), features=hidden),
        Add(name="pos_add", ins=(source, "pos_act"), features=hidden),
    ]
    if not stable:
        embed.append(norm("embed_norm", hidden, "layer", bias=True))
    if drop:
        embed.append(Dropout(name="embed_drop", features=hidden, p=drop))

    parts = [
        (lambda x: mha(x, hidden=hidden, heads=heads, dropout=cfg.float("attention_dropout", 0.1)), drop),
        (
            lambda x: ffn2(
                x,
                hidden=hidden,
                ffn=ffn,
                fn=cfg.str("hidden_act", "gelu"),
                dropout=cfg.float("activation_dropout", 0.1),
            ),
            drop,
        ),
    ]
    layer = (pre_norm if stable else post_norm)(parts, hidden=hidden)
    head: list[Operator] = [norm("final_norm", hidden, "layer", bias=True, ins="x")] if stable else []
    vocab = cfg.int("vocab_size", default=None) if kind == "ForCTC" else None
    head += _head(cfg, kind, hidden, width, depth)
    return single(
        cfg,
        family="audio",
        embed=embed,
        stacks=[layers("layers", layer, depth, width=hidden, stream="sample", positions=rows)],
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        vocab=vocab,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        notes=(*notes, f"audio rows are those of {SAMPLES} samples"),
    )


def _features(cfg: Config) -> tuple[list[Operator], int, int]:
    """The convolutional feature encoder: its operators, rows per clip and width."""
    dims, kernels, strides = cfg.ints("conv_dim"), cfg.ints("conv_kernel"), cfg.ints("conv_stride")
    if not dims or not len(dims) == len(kernels) == len(strides) or min(*dims, *kernels, *strides) < 1:
        raise cfg.error(
            "conv_dim",
            dims,
            "as many sizes of 1 or more as conv_kernel and conv_stride have",
            "correct the lists",
        )
    mode, bias = cfg.str("feat_extract_norm", "group"), cfg.bool("conv_bias", False)
    if mode not in ("group", "layer"):
        raise cfg.error("feat_extract_norm", mode, "group or layer", "correct the value")
    fn = cfg.str("feat_extract_activation", "gelu")
    ops: list[Operator] = []
    rows, width = SAMPLES, 1
    for i, (dim, kernel, stride) in enumerate(zip(dims, kernels, strides, strict=True)):
        rows = max(1, (rows - kernel) // stride + 1)
        ops.append(
            Conv(name=f"conv{i}", c_in=width, c_out=dim, kernel=(kernel,), bias=bias, positions=rows, source=0 if i else SAMPLES)
        )
        if mode == "layer" or i == 0:
            ops.append(Norm(name=f"conv_norm{i}", dim=dim, kind="group" if mode == "group" else "layer", bias=True))
        ops.append(Act(name=f"conv_act{i}", fn=fn, features=dim))
        width = dim
    return ops, rows, width


def _head(cfg: Config, kind: str, hidden: int, width: int, depth: int) -> list[Operator]:
    if kind == "ForCTC":
        return [Head(name="lm_head", dim=hidden, rows=cfg.int("vocab_size", low=1), bias=True)]
    if kind == "ForPreTraining":
        groups, each = cfg.int("num_codevector_groups", low=1), cfg.int("num_codevectors_per_group", low=1)
        dim, proj = cfg.int("codevector_dim", low=1), cfg.int("proj_codevector_dim", low=1)
        return [
            Linear(name="project_hid", d_in=hidden, d_out=proj, bias=True),
            Linear(name="weight_proj", ins=("skip",), d_in=width, d_out=groups * each, bias=True),
            Parameters(
                name="codevectors",
                shapes=((1, groups * each, cfg.divides("num_codevector_groups", dim, groups)),),
            ),
            Mul(name="quantized", ins=("weight_proj", "codevectors"), features=dim),
            Linear(name="project_q", d_in=dim, d_out=proj, bias=True),
        ]
    if kind == "Model":
        return []
    ops: list[Operator] = []
    if cfg.bool("use_weighted_layer_sum", False):
        ops.append(Parameters(name="layer_weights", shapes=((depth + 1,),)))
    if kind == "ForAudioFrameClassification":
        return [*ops, classifier("classifier", hidden, labels(cfg))]
    size = cfg.int("classifier_proj_size", low=1)
    return [
        *ops,
        Linear(name="projector", ins=("x",), d_in=hidden, d_out=size, bias=True),
        Pool(name="mean", features=size, positions=1),
        classifier("classifier", size, labels(cfg)),
    ]
