"""CLIP and SigLIP: dual encoders, and each tower alone.

Without ``architectures``: the model itself (``CLIPModel``, ``SiglipModel``, ``CLIPVisionModel`` ...).  The
image tower runs first; the text tower is the trunk.
Source: transformers 5.24.0 ``modeling_clip``, ``modeling_siglip``.
"""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Add, Attention, Embedding, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import classifier, ffn2, labels, layers, mha, pre_norm, single, task
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import Tower, alone, grid, nested, patches, tower, tower_reader, vit_layer


@tower_reader("clip_vision_model")
def clip_tower(cfg: Config) -> Tower:
    """CLIP's image tower: class token, learned positions, a norm before and one after the layers."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    ffn, depth = cfg.int("intermediate_size", low=1), cfg.int("num_hidden_layers", low=1)
    cfg.divides("num_attention_heads", hidden, heads)
    gh, gw = grid(cfg)
    rows = gh * gw + 1
    embed = (
        patches(
            "patch_embed",
            cfg,
            channels=cfg.int("num_channels", low=1),
            hidden=hidden,
            positions=gh * gw,
            bias=False,
        ),
        Parameters(name="class_embedding", shapes=((hidden,),)),
        Pool(name="tokens", ins=("patch_embed", "class_embedding"), features=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("tokens", "pos_embed"), features=hidden),
        norm("pre_norm", hidden, "layer", bias=True),
    )
    layer = vit_layer(hidden=hidden, heads=heads, ffn=ffn, fn=cfg.str("hidden_act", "quick_gelu"))
    tail = (norm("post_norm", hidden, "layer", bias=True, ins="x"),)
    return Tower(embed, (tuple(layer),), (0,) * depth, tail, hidden, rows, heads, ffn)


@tower_reader("siglip_vision_model")
def siglip_tower(cfg: Config) -> Tower:
    """SigLIP's image tower: no class token; an attention-pooling head unless ``vision_use_head`` is false."""
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    ffn, depth = cfg.int("intermediate_size", low=1), cfg.int("num_hidden_layers", low=1)
    cfg.divides("num_attention_heads", hidden, heads)
    gh, gw = grid(cfg)
    rows, fn = gh * gw, cfg.str("hidden_act", "gelu_pytorch_tanh")
    embed = (
        patches("patch_embed", cfg, channels=cfg.int("num_channels", low=1), hidden=hidden, positions=rows),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("patch_embed", "pos_embed"), features=hidden),
    )
    layer = vit_layer(hidden=hidden, heads=heads, ffn=ffn, fn=fn)
    tail: list[Operator] = [norm("post_norm", hidden, "layer", bias=True, ins="x")]
    if cfg.bool("vision_use_head", True):
        tail += [
            Parameters(name="probe", shapes=((1, 1, hidden),)),
            Linear(name="pool_qkv", ins=("post_norm",), d_in=hidden, d_out=3 * hidden, bias=True),
            Attention(
                name="pool_attn",
                ins=("probe", "pool_qkv", "pool_qkv"),
                heads=heads,
                kv_heads=heads,
                head_dim=hidden // heads,
                v_dim=hidden // heads,
                causal=False,
            ),
            Pool(name="pooled", features=hidden, positions=1),
            Linear(name="pool_out", d_in=hidden, d_out=hidden, bias=True),
            norm("pool_norm", hidden, "layer", bias=True),
            *ffn2("pool_norm", hidden=hidden, ffn=ffn, fn=fn, prefix="pool_"),
            Add(name="pool_add", ins=("pool_out", "pool_fc2"), features=hidden),
        ]
    return Tower(embed, (tuple(layer),), (0,) * depth, tuple(tail), hidden, rows, heads, ffn)


@reader("clip_vision_model", "siglip_vision_model")
def vision_model(cfg: Config) -> Architecture:
    """One image tower alone; ``CLIPVisionModelWithProjection`` adds the projection."""
    kind, notes = task(cfg, "Model", ("ModelWithProjection", "Model", "ForImageClassification"))
    parts = clip_tower(cfg) if cfg.model_type == "clip_vision_model" else siglip_tower(cfg)
    head = list(parts.tail)
    if kind == "ModelWithProjection" and cfg.model_type == "clip_vision_model":
        head.append(Linear(name="visual_projection", d_in=parts.hidden, d_out=cfg.int("projection_dim", low=1)))
    return alone(cfg, parts, head, notes)


def _projection(cfg: Config, hidden: int) -> int:
    """Width of SigLIP's text head: the model's own unless the file says otherwise (not the class's default)."""
    return cfg.check_int("projection_size", cfg.raw.get("projection_size") or hidden, 1)


@reader("clip_text_model", "siglip_text_model")
def text_model(cfg: Config) -> Architecture:
    """One text tower alone (causal in CLIP); ``CLIPTextModelWithProjection`` adds the projection."""
    kind, notes = task(cfg, "Model", ("ModelWithProjection", "Model"))
    clip = cfg.model_type == "clip_text_model"
    hidden, heads = cfg.int("hidden_size", low=1), cfg.int("num_attention_heads", low=1)
    ffn, depth = cfg.int("intermediate_size", low=1), cfg.int("num_hidden_layers", low=1)
    vocab, rows = cfg.int("vocab_size", low=1), cfg.int("max_position_embeddings", low=1)
    cfg.divides("num_attention_heads", hidden, heads)
    fn = cfg.str("hidden_act", "quick_gelu" if clip else "gelu_pytorch_tanh")
    layer = pre_norm(
        [
            (lambda x: mha(x, hidden=hidden, heads=heads, causal=clip), 0.0),
            (lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn), 0.0),
        ],
        hidden=hidden,
    )
    head: list[Operator] = [norm("final_norm", hidden, "layer", bias=True, ins="x")]
    if not clip:
        head.append(Pool(name="last", features=hidden, positions=1, kind="view"))
        head.append(
            Linear(
                name="text_head",
                d_in=hidden,
                d_out=_projection(cfg, hidden),
                bias=True,
            )
        )
    elif kind == "ModelWithProjection":
        head.append(Pool(name="end_of_text", features=hidden, positions=1))
        head.append(Linear(name="text_projection", d_in=hidden, d_out=cfg.int("projection_dim", low=1)))
    embed = (
        Embedding(name="embed_tokens", rows=vocab, dim=hidden),
        Parameters(name="pos_embed", shapes=((rows, hidden),), role="embedding"),
        Add(name="pos_add", ins=("embed_tokens", "pos_embed"), features=hidden),
    )
    return single(
        cfg,
        family="encoder",
        embed=embed,
        stacks=[layers("layers", layer, depth, width=hidden)],
        head=head,
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        head_dim=hidden // heads,
        ffn=ffn,
        max_positions=rows,
        notes=notes,
    )


@reader("clip", "siglip")
def dual(cfg: Config) -> Architecture:
    """``CLIPModel`` / ``SiglipModel`` (both towers), or ``...ForImageClassification`` (the image tower)."""
    kind, notes = task(cfg, "Model", ("Model", "ForImageClassification"))
    clip = cfg.model_type == "clip"
    vision = nested(cfg, "vision_config", model_type=f"{cfg.model_type}_vision_model", force=True)
    parts = clip_tower(vision) if clip else siglip_tower(vision)
    if kind == "ForImageClassification":
        head = [*parts.tail, Pool(name="mean", features=parts.hidden, positions=1)]
        head.append(classifier("classifier", parts.hidden, labels(cfg)))
        return alone(cfg, parts, head, notes)
    text_cfg = nested(cfg, "text_config", model_type=f"{cfg.model_type}_text_model", force=True)
    text = text_model(text_cfg)
    towers = parts.stacks()
    tail: list[Operator] = list(text.head.ops)
    if clip:
        dim = cfg.int("projection_dim", low=1)
        projection = [Linear(name="visual_projection", ins=("x",), d_in=parts.hidden, d_out=dim)]
        towers.append(tower("projection", projection, 1, width=parts.hidden, positions=1, label="projection"))
        tail.append(Pool(name="end_of_text", features=text.hidden, positions=1))
        tail.append(Linear(name="text_projection", d_in=text.hidden, d_out=dim))
        tail.append(Parameters(name="logit_scale", shapes=((),)))
    else:
        tail.append(Parameters(name="logit_scale", shapes=((1,), (1,))))
    return replace(
        text,
        name=cfg.model_type,
        model_type=cfg.model_type,
        family="multimodal",
        stacks=(*towers, *text.stacks),
        head=replace(text.head, ops=tuple(tail)),
        text=text,
        notes=notes,
    )
