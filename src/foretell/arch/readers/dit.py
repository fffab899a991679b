"""DiT of diffusers: image patches, adaptive norms from the time step and class.

``DiTTransformer2DModel``, and ``Transformer2DModel`` files of that kind (``norm_type`` ``ada_norm_zero``).
Rows are (``sample_size`` / ``patch_size``) squared.
Source: diffusers 0.42.1 ``dit_transformer_2d``, ``attention``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Linear, Operator, Parameters
from foretell.arch.readers._config import Config
from foretell.arch.readers._dit import ada, embedder, gated, modulation
from foretell.arch.readers._encoder import ffn2, mha, single
from foretell.arch.readers._registry import reader


@reader("DiTTransformer2DModel", "Transformer2DModel")
def dit(cfg: Config) -> Architecture:
    """DiT: every block owns its time and class embedders (``ada_norm_zero``)."""
    kind = cfg.str("norm_type", "ada_norm_zero" if cfg.model_type.startswith("DiT") else "layer_norm")
    if kind != "ada_norm_zero":
        raise cfg.error("norm_type", kind, "ada_norm_zero", "other Transformer2DModel variants are not read")
    heads = cfg.int("num_attention_heads", default=16, low=1)
    dim = cfg.int("attention_head_dim", default=72 if cfg.model_type.startswith("DiT") else 88, low=1)
    hidden, depth = heads * dim, cfg.int("num_layers", default=28, low=1)
    patch, side = cfg.int("patch_size", default=2, low=1), cfg.int("sample_size", default=32, low=1)
    channels = cfg.int("in_channels", default=4, low=1)
    out = cfg.int("out_channels", default=channels, low=1)
    rows = max(1, side // patch) ** 2
    classes, bias = cfg.int("num_embeds_ada_norm", default=1000, low=1), cfg.bool("attention_bias", True)
    fn = cfg.str("activation_fn", "gelu-approximate")
    if fn not in ("gelu", "gelu-approximate"):
        raise cfg.error("activation_fn", fn, "gelu or gelu-approximate", "gated feed-forward networks are not read here")
    layer: list[Operator] = [
        *embedder("time", 256, hidden),
        Parameters(name="class_table", shapes=((classes + 1, hidden),), role="embedding"),
        *modulation("mod", hidden, 6),
        *ada("ada1", "x", "mod", hidden),
        *mha("ada1", hidden=hidden, heads=heads, bias=bias, o_bias=True),
        *gated("add1", "x", "o_proj", "mod", hidden),
        *ada("ada2", "add1", "mod", hidden),
        *ffn2("ada2", hidden=hidden, ffn=4 * hidden, fn="gelu"),
        *gated("add2", "add1", "fc2", "mod", hidden),
    ]
    block = Block("layer", tuple(layer), hidden, "sample", rows)
    embed = [Linear(name="patch_embed", d_in=channels * patch * patch, d_out=hidden, bias=True)]
    head: list[Operator] = [
        Linear(name="proj_out_1", ins=("memory",), d_in=hidden, d_out=2 * hidden, bias=True),
        *ada("ada_out", "x", "proj_out_1", hidden),
        Linear(name="proj_out_2", d_in=hidden, d_out=patch * patch * out, bias=True),
    ]
    return single(
        cfg,
        family="diffusion",
        embed=embed,
        stacks=[Stack("layers", (block,), (0,) * depth)],
        head=head,
        hidden=hidden,
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=dim,
        ffn=4 * hidden,
    )
