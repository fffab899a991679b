"""Gemma 3 and Gemma 4 with their image (and audio) towers; Gemma 3n's text part.

The class is ``...ForConditionalGeneration`` unless ``architectures`` names ``...ForCausalLM``.  Gemma 3n's
image tower is a timm network that a configuration names but does not describe: its multimodal class is
refused. Rows: Gemma 3 has one image size; Gemma 4 pools ``pooling_kernel_size`` squared patches into each of
the image's soft tokens (280 unless the file says otherwise); Gemma 4 audio rows are those of a 30 s clip of
10 ms frames.
Source: transformers 5.24.0 ``modeling_gemma3``, ``modeling_gemma4``, ``configuration_gemma4``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import mlp, norm, residual
from foretell.arch.operators import (
    Act,
    Add,
    Attention,
    Conv,
    Gate,
    Linear,
    Norm,
    Operator,
    Parameters,
    Pool,
    Weight,
)
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import mha
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import nested, pair, read_tower, text_model, text_only, tower, wrap

AUDIO_FRAMES = 3000
"""Log-mel frames of a 30 s clip at a hop of 10 ms."""


def _text(cfg: Config) -> Architecture:
    """The text part, tied by the wrapper's flag (its own in the text-only class)."""
    text_cfg = nested(cfg, "text_config", model_type=f"{cfg.model_type}_text", force=True)
    if text_only(cfg):
        return replace(text_model(text_cfg), model_type=cfg.model_type)
    return text_model(text_cfg, tied=cfg.bool("tie_word_embeddings", True))


@reader("gemma3")
def gemma3(cfg: Config) -> Architecture:
    """SigLIP tower, average pooling, norm and projection; Gemma 3 trunk."""
    text = _text(cfg)
    if text_only(cfg):
        return text
    v = nested(cfg, "vision_config", model_type="siglip_vision_model")
    parts = read_tower(v)
    ops: list[Operator] = [
        Pool(
            name="pool",
            ins=("x",),
            features=parts.hidden,
            positions=cfg.int("mm_tokens_per_image", default=256, low=1),
        ),
        norm("soft_emb_norm", parts.hidden),
        Linear(name="projector", d_in=parts.hidden, d_out=text.hidden),
    ]
    projector = tower("projector", ops, 1, width=parts.hidden, positions=parts.rows, label="projector")
    return wrap(cfg, text, [*parts.stacks(), projector])


@reader("gemma3n")
def gemma3n(cfg: Config) -> Architecture:
    """The text-only class; the multimodal one cannot be read from its configuration."""
    if not text_only(cfg):
        raise cfg.error(
            "architectures",
            cfg.raw.get("architectures"),
            "['Gemma3nForCausalLM']",
            "the image tower is a timm network that the file does not describe; read the text part alone",
        )
    return _text(cfg)


@reader("gemma4")
def gemma4(cfg: Config) -> Architecture:
    """Optional image and audio towers (absent when their configuration is null), Gemma 4 trunk."""
    text = _text(cfg)
    if text_only(cfg):
        return text
    towers: list[Stack] = []
    if cfg.raw.get("vision_config") is not None:
        towers += _vision(cfg, nested(cfg, "vision_config", model_type="gemma4_vision"), text.hidden)
    if cfg.raw.get("audio_config") is not None:
        towers += _audio(nested(cfg, "audio_config", model_type="gemma4_audio"), text.hidden)
    return wrap(cfg, text, towers)


def _sandwich(x: str, i: int, body: list[Operator], hidden: int) -> list[Operator]:
    """``x + norm(f(norm(x)))``; ``body`` reads ``norm{i}``."""
    return [
        norm(f"norm{i}", hidden, ins=x),
        *body,
        norm(f"post_norm{i}", hidden, ins=body[-1].name),
        *residual(f"add{i}", x, f"post_norm{i}", hidden),
    ]


def _vision(cfg: Config, v: Config, out: int) -> list[Stack]:
    hidden, heads = v.int("hidden_size", low=1), v.int("num_attention_heads", low=1)
    kv_heads = v.int("num_key_value_heads", default=heads, low=1)
    head_dim = v.int("head_dim", default=None) or v.divides("num_attention_heads", hidden, heads)
    ffn, depth = v.int("intermediate_size", low=1), v.int("num_hidden_layers", low=1)
    tokens = cfg.raw.get("vision_soft_tokens_per_image", v.raw.get("default_output_length", 280))
    tokens = cfg.check_int("vision_soft_tokens_per_image", tokens, 1)
    rows = tokens * v.int("pooling_kernel_size", default=3, low=1) ** 2
    patch = pair(v, "patch_size")
    table = v.int("position_embedding_size", low=1)
    embed: list[Operator] = [
        Pool(name="unfold", features=3 * patch[0] * patch[1], positions=rows),
        Linear(name="patch_embed", d_in=3 * patch[0] * patch[1], d_out=hidden),
        Parameters(name="pos_embed", shapes=((2, table, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    ]
    core = mha(
        "norm1",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=False,
        rotary=head_dim,
        qk_norm=Norm(name="", dim=head_dim),
    )
    mixer: list[Operator] = []
    for op in core:
        if isinstance(op, Attention):
            mixer.append(Norm(name="v_norm", ins=("v_proj",), dim=head_dim, groups=kv_heads, affine=False, split=True))
            mixer.append(replace(op, ins=(*op.ins[:2], "v_norm")))
        else:
            mixer.append(op)
    feed = mlp("norm2", hidden=hidden, ffn=ffn, fn=v.str("hidden_activation", "gelu_pytorch_tanh"))
    layer = [*_sandwich("x", 1, mixer, hidden), *_sandwich("add1", 2, feed, hidden)]
    projector: list[Operator] = [
        Pool(name="pool", ins=("x",), features=hidden, positions=tokens),
        Norm(name="pre_projection_norm", dim=hidden, affine=False),
        Linear(name="projector", d_in=hidden, d_out=out),
    ]
    return [
        tower("vision_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("vision", layer, depth, width=hidden, positions=rows),
        tower("vision_projector", projector, 1, width=hidden, positions=rows, label="projector"),
    ]


def _audio(a: Config, out: int) -> list[Stack]:
    """Conformer layers (half feed-forward, chunked attention, light convolution, half feed-forward)."""
    hidden, heads = a.int("hidden_size", low=1), a.int("num_attention_heads", low=1)
    head_dim, depth = a.divides("num_attention_heads", hidden, heads), a.int("num_hidden_layers", low=1)
    channels = a.ints("subsampling_conv_channels")
    if len(channels) != 2 or min(channels) < 1:
        raise a.error("subsampling_conv_channels", channels, "two sizes of 1 or more", "correct the list")
    c0, c1 = channels
    rows, fn = AUDIO_FRAMES // 4, a.str("hidden_act", "silu")
    flat = (c0 // 4) * c1
    bands = max(1, c0 // 4)
    embed: list[Operator] = []
    for i, (c_in, c_out) in enumerate(((1, c0), (c0, c1))):
        cells = (AUDIO_FRAMES // 2) * bands * 2 if i == 0 else rows * bands
        embed += [
            Conv(name=f"conv{i}", c_in=c_in, c_out=c_out, kernel=(3, 3), bias=False, positions=cells),
            Norm(name=f"conv_norm{i}", dim=c_out, kind="layer"),
            Act(name=f"conv_act{i}", fn="relu", features=c_out),
        ]
    embed += [
        Pool(name="flatten", features=flat, positions=rows),
        Linear(name="input_proj", d_in=flat, d_out=hidden),
    ]
    window = a.int("attention_context_left", default=13) + a.int("attention_context_right", default=0)
    extra = (
        Weight("relative_k_proj", (hidden, hidden), "tp", "matrix"),
        Weight("per_dim_scale", (head_dim,)),
    )
    mixer = mha("norm2", hidden=hidden, heads=heads, bias=False, window=window, extra=extra, fused=False)
    kernel = a.int("conv_kernel_size", low=1)
    light: list[Operator] = [
        Linear(name="linear_start", ins=("norm3",), d_in=hidden, d_out=2 * hidden),
        Gate(name="glu", ins=("linear_start", "linear_start"), fn="sigmoid", features=hidden),
        Conv(name="depthwise", c_in=hidden, c_out=hidden, kernel=(kernel,), groups=hidden, bias=False),
        norm("conv_norm", hidden),
        Act(name="conv_act", fn=fn, features=hidden),
        Linear(name="linear_end", d_in=hidden, d_out=hidden),
    ]

    def half(i: int) -> list[Operator]:
        return mlp(f"norm{i}", hidden=hidden, ffn=4 * hidden, fn=fn, gated=False, prefix=f"ff{i}_")

    layer = [
        *_sandwich("x", 1, half(1), hidden),
        *_sandwich("add1", 2, mixer, hidden),
        norm("norm3", hidden, ins="add2"),
        *light,
        *residual("add3", "add2", "linear_end", hidden),
        *_sandwich("add3", 4, half(4), hidden),
        norm("norm_out", hidden, ins="add4"),
    ]
    width = a.int("output_proj_dims", low=1)
    tail: list[Operator] = [
        Linear(name="output_proj", ins=("x",), d_in=hidden, d_out=width, bias=True),
        Norm(name="pre_projection_norm", dim=width, affine=False),
        Linear(name="projector", d_in=width, d_out=out),
    ]
    return [
        tower("audio_embed", embed, 1, width=0, positions=rows, label="embed"),
        tower("audio", layer, depth, width=hidden, positions=rows),
        tower("audio_projector", tail, 1, width=hidden, positions=rows, label="projector"),
    ]
