"""LLaVA, LLaVA-NeXT, Mistral-3, PaliGemma, Idefics3 and SmolVLM, with the Pixtral and Idefics3 image towers.

The class is ``...ForConditionalGeneration`` (``...Model`` drops the output projection).  Image rows are those
of the tower's ``image_size``; LLaVA-NeXT cuts an image into tiles of that size, each a row block of its own.
Source: transformers 5.24.0 ``modeling_llava``, ``modeling_llava_next``, ``modeling_mistral3``,
``modeling_pixtral``, ``modeling_paligemma``, ``modeling_idefics3``, ``modeling_smolvlm``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import mlp, norm
from foretell.arch.operators import Act, Add, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import mha, pre_norm, task
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import (
    Tower,
    alone,
    grid,
    nested,
    patches,
    read_tower,
    text_model,
    tower,
    tower_reader,
    vit_layer,
    wrap,
)


@tower_reader("pixtral")
def pixtral_tower(cfg: Config) -> Tower:
    """Pixtral: RMSNorm, two-dimensional rotary positions, gated MLP, no biases."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    ffn, depth = cfg.int("intermediate_size", low=1), cfg.int("num_hidden_layers", low=1)
    head_dim = cfg.divides("num_attention_heads", hidden, heads)
    gh, gw = grid(cfg)
    rows, fn = gh * gw, cfg.str("hidden_act", "gelu")
    embed = (
        patches(
            "patch_embed",
            cfg,
            channels=cfg.int("num_channels", low=1),
            hidden=hidden,
            positions=rows,
            bias=False,
        ),
        norm("pre_norm", hidden),
    )
    layer = pre_norm(
        [
            (lambda x: mha(x, hidden=hidden, heads=heads, bias=False, rotary=head_dim), 0.0),
            (lambda x: mlp(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
        ],
        hidden=hidden,
        kind="rms",
        bias=False,
    )
    return Tower(embed, (tuple(layer),), (0,) * depth, (), hidden, rows, heads, ffn)


@tower_reader("idefics3_vision", "smolvlm_vision")
def idefics3_tower(cfg: Config) -> Tower:
    """The SigLIP-like tower of Idefics3 and SmolVLM: no class token, no pooling head."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    ffn, depth = cfg.int("intermediate_size", low=1), cfg.int("num_hidden_layers", low=1)
    cfg.divides("num_attention_heads", hidden, heads)
    gh, gw = grid(cfg)
    rows = gh * gw
    embed = (
        patches("patch_embed", cfg, channels=cfg.int("num_channels", low=1), hidden=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    )
    layer = vit_layer(hidden=hidden, heads=heads, ffn=ffn, fn=cfg.str("hidden_act", "gelu_pytorch_tanh"))
    tail = (norm("post_norm", hidden, "layer", bias=True, ins="x"),)
    return Tower(embed, (tuple(layer),), (0,) * depth, tail, hidden, rows, heads, ffn)


@reader("pixtral", "idefics3_vision", "smolvlm_vision")
def tower_alone(cfg: Config) -> Architecture:
    """One of these towers as a model of its own."""
    parts = read_tower(cfg)
    return alone(cfg, parts, parts.tail)


def _text(cfg: Config, default: str, *, tied: bool, forward_tie: bool = False) -> tuple[Architecture, tuple[str, ...]]:
    """The text part; ``forward_tie``: its own flag ties too, as LLaVA's configuration forwards it."""
    kind, notes = task(cfg, "ForConditionalGeneration", ("Model", "ForConditionalGeneration", "ForCausalLM"))
    text_cfg = nested(cfg, "text_config", model_type=default)
    own = forward_tie and text_model(text_cfg).tied
    return text_model(text_cfg, tied=tied or own, head=kind != "Model"), notes


def _feature_layers(cfg: Config, default: int) -> int:
    chosen = cfg.get("vision_feature_layer", default=default)
    return len(chosen) if isinstance(chosen, list | tuple) else 1


def _mlp2(cfg: Config, ins: str, dim: int, layers: int, out: int, *, bias: bool) -> list[Operator]:
    """The two-matrix projector over the features of ``layers`` of the tower's layers, side by side."""
    bias, fn = cfg.bool("multimodal_projector_bias", bias), cfg.str("projector_hidden_act", "gelu")
    ops: list[Operator] = []
    if layers > 1:
        ops.append(Pool(name="features", ins=(ins, "skip"), features=dim * layers))
    return [
        *ops,
        Linear(name="linear_1", ins=("features" if ops else ins,), d_in=dim * layers, d_out=out, bias=bias, split="col"),
        Act(name="act", fn=fn, features=out),
        Linear(name="linear_2", d_in=out, d_out=out, bias=bias, split="row"),
    ]


@reader("llava", "llava_next")
def llava(cfg: Config) -> Architecture:
    """Tower, two-matrix projector over the chosen layers' features, text trunk."""
    tied = cfg.bool("tie_word_embeddings", False)
    text, notes = _text(cfg, "llama", tied=tied, forward_tie=cfg.model_type == "llava")
    parts = read_tower(nested(cfg, "vision_config", model_type="clip_vision_model"))
    ops = _mlp2(cfg, "x", parts.hidden, _feature_layers(cfg, -2), text.hidden, bias=True)
    if cfg.model_type == "llava_next":
        ops.append(Parameters(name="image_newline", shapes=((text.hidden,),)))
    projector = tower("projector", ops, 1, width=parts.hidden, positions=parts.rows, label="projector")
    return wrap(cfg, text, [*parts.stacks(), projector], notes=notes)


@reader("mistral3")
def mistral3(cfg: Config) -> Architecture:
    """Pixtral tower, norm and merging of patch squares, projector, Mistral trunk."""
    text, notes = _text(cfg, "mistral", tied=cfg.bool("tie_word_embeddings", True))
    parts = read_tower(nested(cfg, "vision_config", model_type="pixtral"))
    hidden, merge = parts.hidden, cfg.int("spatial_merge_size", low=1)
    cells = merge * merge
    ops: list[Operator] = [
        norm("norm", hidden, ins="x"),
        Pool(name="merge", features=hidden * cells, positions=max(1, parts.rows // cells)),
        Linear(name="merging_layer", d_in=hidden * cells, d_out=hidden),
        *_mlp2(cfg, "merging_layer", hidden, _feature_layers(cfg, -1), text.hidden, bias=False),
    ]
    projector = tower("projector", ops, 1, width=hidden, positions=parts.rows, label="projector")
    return wrap(cfg, text, [*parts.stacks(), projector], notes=notes)


@reader("paligemma")
def paligemma(cfg: Config) -> Architecture:
    """SigLIP tower, one projection matrix of ``projection_dim``, Gemma trunk."""
    text, notes = _text(cfg, "gemma", tied=cfg.bool("tie_word_embeddings", True))
    parts = read_tower(nested(cfg, "vision_config", model_type="siglip_vision_model"))
    out = cfg.int("projection_dim", default=2048, low=1)
    ops = [Linear(name="projector", ins=("x",), d_in=parts.hidden, d_out=out, bias=True)]
    projector = tower("projector", ops, 1, width=parts.hidden, positions=parts.rows, label="projector")
    return wrap(cfg, text, [*parts.stacks(), projector], notes=notes)


@reader("idefics3", "smolvlm")
def idefics3(cfg: Config) -> Architecture:
    """Tower, pixel shuffle by ``scale_factor``, one projection matrix, Llama trunk."""
    text, notes = _text(cfg, "llama", tied=cfg.bool("tie_word_embeddings", False))
    parts = idefics3_tower(nested(cfg, "vision_config", model_type=f"{cfg.model_type}_vision", force=True))
    scale = cfg.int("scale_factor", default=2, low=1)
    wide = parts.hidden * scale * scale
    ops: list[Operator] = [
        Pool(name="pixel_shuffle", ins=("x",), features=wide, positions=max(1, parts.rows // (scale * scale))),
        Linear(name="projector", d_in=wide, d_out=text.hidden),
    ]
    connector = tower("projector", ops, 1, width=parts.hidden, positions=parts.rows, label="projector")
    return wrap(cfg, text, [*parts.stacks(), connector], notes=notes)
