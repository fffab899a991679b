"""DETR: a frozen-norm ResNet, an encoder-decoder over its map and learned object queries.

Without ``architectures``: ``DetrForObjectDetection``.  The backbone's batch norms are buffers, not
parameters. A timm backbone is read when it is a plain ResNet (18 to 152 layers), whose convolutions are those
of the Hugging Face ResNet; other timm networks are refused.  Image rows: 800 x 1333 pixels, the largest of
DETR's training (arXiv 2005.12872 section 4).
Source: transformers 5.24.0 ``modeling_detr``, ``configuration_detr``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture
from foretell.arch.builders import norm
from foretell.arch.operators import Act, Conv, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import (
    classifier,
    ffn2,
    labels,
    layers,
    mha,
    once,
    post_norm,
    single,
    task,
)
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import nested
from foretell.arch.readers.resnet import backbone

IMAGE = (800, 1333)
_DEPTHS = {
    "resnet18": ("basic", [2, 2, 2, 2]),
    "resnet34": ("basic", [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [3, 8, 36, 3]),
}


def _resnet(cfg: Config) -> tuple[Config, tuple[str, ...]]:
    """The backbone's configuration, a timm name translated."""
    name = cfg.raw.get("backbone")
    inner = cfg.raw.get("backbone_config")
    if inner is None and not (isinstance(name, str) and name):
        name = "resnet50"
    if inner is not None:
        sub = nested(cfg, "backbone_config", model_type="resnet")
        if sub.model_type == "resnet":
            return sub, ()
        name = sub.raw.get("backbone", sub.model_type)
    elif cfg.raw.get("use_timm_backbone") is False and isinstance(name, str):
        name = name.rsplit("/", 1)[-1].replace("-", "")
    plain = str(name).split(".", 1)[0]
    if plain not in _DEPTHS:
        raise cfg.error(
            "backbone",
            name,
            f"a ResNet configuration or one of {', '.join(_DEPTHS)}",
            "other backbones are not read",
        )
    kind, depths = _DEPTHS[plain]
    sizes = [64, 128, 256, 512] if kind == "basic" else [256, 512, 1024, 2048]
    raw = {
        "model_type": "resnet",
        "layer_type": kind,
        "depths": depths,
        "hidden_sizes": sizes,
        "embedding_size": 64,
        "num_channels": cfg.int("num_channels", default=3, low=1),
    }
    return Config(raw, where=cfg.where, prefix=f"{cfg.prefix}backbone."), (f"timm backbone {plain} read as a ResNet",)


@reader("detr")
def detr(cfg: Config) -> Architecture:
    """Backbone, 1 x 1 projection, encoder over the map, decoder over the queries, class and box heads."""
    kind, notes = task(cfg, "ForObjectDetection", ("Model", "ForObjectDetection"))
    inner, more = _resnet(cfg)
    body = backbone(inner, *IMAGE, affine=False)
    hidden, queries = cfg.int("d_model", low=1), cfg.int("num_queries", low=1)
    rows = body.height * body.width
    encoder_heads, heads = (
        cfg.int("encoder_attention_heads", low=1),
        cfg.int("decoder_attention_heads", low=1),
    )
    cfg.divides("encoder_attention_heads", hidden, encoder_heads)
    head_dim = cfg.divides("decoder_attention_heads", hidden, heads)
    ffn = cfg.int("decoder_ffn_dim", low=1)
    project: list[Operator] = [
        Conv(
            name="input_projection",
            ins=("x",),
            c_in=body.channels,
            c_out=hidden,
            kernel=(1, 1),
            positions=rows,
        )
    ]
    if cfg.str("position_embedding_type", "sine") == "learned":
        project.append(Parameters(name="positions", shapes=((50, hidden // 2), (50, hidden // 2)), role="embedding"))
    query: list[Operator] = [
        Parameters(name="queries", shapes=((queries, hidden),), role="embedding"),
        Pool(name="targets", features=hidden, positions=queries),
    ]
    stacks = [
        once("backbone_stem", body.stem, width=0, stream="sample", positions=IMAGE[0] * IMAGE[1]),
        *body.stages,
        once("projection", project, width=body.channels, stream="sample", positions=rows),
        layers(
            "encoder",
            _layer(cfg, hidden, encoder_heads, cfg.int("encoder_ffn_dim", low=1), False),
            cfg.int("encoder_layers", low=1),
            width=hidden,
            stream="sample",
            positions=rows,
        ),
        layers(
            "decoder",
            _layer(cfg, hidden, heads, ffn, True),
            cfg.int("decoder_layers", low=1),
            width=hidden,
            stream="sample",
            positions=queries,
        ),
    ]
    head: list[Operator] = [norm("final_norm", hidden, "layer", bias=True, ins="x")]
    if kind == "ForObjectDetection":
        head += [
            classifier("class_labels", hidden, labels(cfg) + 1),
            Linear(name="box1", ins=("final_norm",), d_in=hidden, d_out=hidden, bias=True),
            Act(name="box1_act", fn="relu", features=hidden, split=False),
            Linear(name="box2", d_in=hidden, d_out=hidden, bias=True),
            Act(name="box2_act", fn="relu", features=hidden, split=False),
            Linear(name="box3", d_in=hidden, d_out=4, bias=True),
        ]
    return single(
        cfg,
        family="vision",
        embed=query,
        stacks=stacks,
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=queries,
        head_positions=queries,
        heads=heads,
        head_dim=head_dim,
        ffn=ffn,
        notes=(*notes, *more, f"rows are those of {IMAGE[0]} x {IMAGE[1]} pixels"),
    )


def _layer(cfg: Config, hidden: int, heads: int, ffn: int, decoder: bool) -> list[Operator]:
    drop, attn_drop = cfg.float("dropout", 0.1), cfg.float("attention_dropout", 0.0)
    fn, act_drop = cfg.str("activation_function", "relu"), cfg.float("activation_dropout", 0.0)
    parts = [(lambda x: mha(x, hidden=hidden, heads=heads, dropout=attn_drop), drop)]
    if decoder:
        parts.append(
            (
                lambda x: mha(x, hidden=hidden, heads=heads, memory="memory", prefix="cross_", dropout=attn_drop),
                drop,
            )
        )
    parts.append((lambda x: ffn2(x, hidden=hidden, ffn=ffn, fn=fn, dropout=act_drop), drop))
    return post_norm(parts, hidden=hidden)
