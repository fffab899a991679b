"""Two-stream diffusion transformers of diffusers: Flux and Stable Diffusion 3.

Rows are image tokens: (``sample_size`` / ``patch_size``) squared; Flux names no size and gets 4,096 (1024 x
1024 pixels).  Text rows: 512 for Flux and 333 for SD3 (77 + 256), the pipelines' defaults.
Source: diffusers 0.42.1 ``transformer_flux``, ``transformer_sd3``, ``attention``; pipelines ``flux`` and
``stable_diffusion_3`` (``max_sequence_length``).
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Block, Stack, Stream
from foretell.arch.operators import Act, Attention, Linear, Norm, Operator, Pool, Rope
from foretell.arch.readers._config import Config
from foretell.arch.readers._decoder import stack
from foretell.arch.readers._dit import ada, embedder, gated, modulation
from foretell.arch.readers._encoder import ffn2, single
from foretell.arch.readers._registry import reader

FLUX_TOKENS, FLUX_TEXT, SD3_TEXT = 4096, 512, 333
_STREAM: Stream = "sample"


def _qkv(prefix: str, x: str, hidden: int, heads: int, dim: int, normed: bool) -> list[Operator]:
    """Query, key and value projections (with biases) and optional per-head RMS norms."""
    ops: list[Operator] = [
        Linear(name=f"{prefix}{t}", ins=(x,), d_in=hidden, d_out=heads * dim, bias=True, split="col") for t in "qkv"
    ]
    if normed:
        ops += [Norm(name=f"{prefix}{t}_norm", ins=(f"{prefix}{t}",), dim=dim, groups=heads, split=True) for t in "qk"]
    return ops


def _joint(
    hidden: int,
    heads: int,
    dim: int,
    rows: int,
    text: int,
    *,
    normed: bool,
    rope: bool,
    last: bool = False,
    dual: bool = False,
) -> list[Operator]:
    """A two-stream block: image and text tokens keep their own weights and attend to each other.

    ``last``: the text stream ends here (its keys and values only).  ``dual``: a second attention over the
    image.
    """
    n = rows + text
    suffix = "_norm" if normed else ""
    ops: list[Operator] = [
        Pool(name="context", ins=("memory",), features=hidden, positions=text),
        *modulation("mod", hidden, 9 if dual else 6),
        *modulation("context_mod", hidden, 2 if last else 6),
        *ada("ada1", "x", "mod", hidden),
        *ada("context_ada1", "context", "context_mod", hidden),
        *_qkv("", "ada1", hidden, heads, dim, normed),
        *_qkv("context_", "context_ada1", hidden, heads, dim, normed),
    ]
    for t in "qkv":
        tail = suffix if t != "v" else ""
        ops.append(Pool(name=f"joint_{t}", ins=(f"{t}{tail}", f"context_{t}{tail}"), features=heads * dim, positions=n))
        if rope and t != "v":
            ops.append(Rope(name=f"rope_{t}", heads=heads, dim=dim, rotary=dim))
    names = ("rope_q", "rope_k", "joint_v") if rope else ("joint_q", "joint_k", "joint_v")
    ops += [
        Attention(name="attn", ins=names, heads=heads, kv_heads=heads, head_dim=dim, v_dim=dim, causal=False),
        Pool(name="image_attn", ins=("attn",), features=heads * dim, positions=rows),
        Linear(name="o_proj", d_in=heads * dim, d_out=hidden, bias=True, split="row"),
        *gated("add1", "x", "o_proj", "mod", hidden),
    ]
    x = "add1"
    if dual:
        q = "2_q_norm" if normed else "2_q"
        k = "2_k_norm" if normed else "2_k"
        ops += [
            *ada("ada1b", "x", "mod", hidden),
            *_qkv("2_", "ada1b", hidden, heads, dim, normed),
            Attention(
                name="attn2",
                ins=(q, k, "2_v"),
                heads=heads,
                kv_heads=heads,
                head_dim=dim,
                v_dim=dim,
                causal=False,
            ),
            Linear(name="o_proj2", d_in=heads * dim, d_out=hidden, bias=True, split="row"),
            *gated("add1b", "add1", "o_proj2", "mod", hidden),
        ]
        x = "add1b"
    ops += [
        *ada("ada2", x, "mod", hidden),
        *ffn2("ada2", hidden=hidden, ffn=4 * hidden, fn="gelu"),
        *gated("add2", x, "fc2", "mod", hidden),
    ]
    if not last:
        ops += [
            Pool(name="context_attn", ins=("attn",), features=heads * dim, positions=text),
            Linear(name="context_o_proj", d_in=heads * dim, d_out=hidden, bias=True, split="row"),
            *gated("context_add1", "context", "context_o_proj", "context_mod", hidden),
            *ada("context_ada2", "context_add1", "context_mod", hidden),
            *ffn2("context_ada2", hidden=hidden, ffn=4 * hidden, fn="gelu", prefix="context_"),
            *gated("context_add2", "context_add1", "context_fc2", "context_mod", hidden),
        ]
        ops.append(ops.pop(next(i for i, op in enumerate(ops) if op.name == "add2")))
    return ops


def _ends(hidden: int, out: int) -> list[Operator]:
    """Modulated final norm and projection to patches."""
    return [
        *modulation("mod_out", hidden, 2),
        *ada("ada_out", "x", "mod_out", hidden),
        Linear(name="proj_out", d_in=hidden, d_out=out, bias=True),
    ]


@reader("FluxTransformer2DModel")
def flux(cfg: Config) -> Architecture:
    """Flux: two-stream blocks, then single-stream blocks over text and image tokens together."""
    heads, dim = (
        cfg.int("num_attention_heads", default=24, low=1),
        cfg.int("attention_head_dim", default=128, low=1),
    )
    hidden, channels = heads * dim, cfg.int("in_channels", default=64, low=1)
    patch, out = cfg.int("patch_size", default=1, low=1), cfg.int("out_channels", default=channels, low=1)
    rows, text = FLUX_TOKENS, FLUX_TEXT
    embed: list[Operator] = [
        Linear(name="x_embedder", ins=("x",), d_in=channels, d_out=hidden, bias=True),
        *embedder("time", 256, hidden),
        *embedder("pooled", cfg.int("pooled_projection_dim", default=768, low=1), hidden),
    ]
    if cfg.bool("guidance_embeds", False):
        embed += embedder("guidance", 256, hidden)
    embed += [
        Pool(
            name="text",
            ins=("memory",),
            features=cfg.int("joint_attention_dim", default=4096, low=1),
            positions=text,
        ),
        Linear(
            name="context_embedder",
            d_in=cfg.int("joint_attention_dim", default=4096),
            d_out=hidden,
            bias=True,
        ),
    ]
    double = _joint(hidden, heads, dim, rows, text, normed=True, rope=True)
    one: list[Operator] = [
        *modulation("mod", hidden, 3),
        *ada("ada", "x", "mod", hidden),
        Linear(name="proj_mlp", ins=("ada",), d_in=hidden, d_out=4 * hidden, bias=True, split="col"),
        Act(name="act", fn="gelu", features=4 * hidden),
        *_qkv("", "ada", hidden, heads, dim, True),
        Rope(name="rope_q", ins=("q_norm",), heads=heads, dim=dim, rotary=dim),
        Rope(name="rope_k", ins=("k_norm",), heads=heads, dim=dim, rotary=dim),
        Attention(
            name="attn",
            ins=("rope_q", "rope_k", "v"),
            heads=heads,
            kv_heads=heads,
            head_dim=dim,
            v_dim=dim,
            causal=False,
        ),
        Pool(name="concat", ins=("attn", "act"), features=5 * hidden),
        Linear(name="proj_out", d_in=5 * hidden, d_out=hidden, bias=True, split="row"),
        *gated("add", "x", "proj_out", "mod", hidden),
    ]
    both = rows + text
    stacks = [
        Stack(
            "double",
            (Block("layer", tuple(double), hidden, _STREAM, rows),),
            (0,) * cfg.int("num_layers", default=19),
        ),
        Stack(
            "single",
            (Block("layer", tuple(one), hidden, _STREAM, both),),
            (0,) * cfg.int("num_single_layers", default=38),
        ),
    ]
    return single(
        cfg,
        family="diffusion",
        embed=embed,
        stacks=stacks,
        head=_ends(hidden, patch * patch * out),
        hidden=hidden,
        embed_stream=_STREAM,
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=dim,
        ffn=4 * hidden,
        notes=(f"rows are {rows} image and {text} text tokens",),
    )


@reader("SD3Transformer2DModel")
def sd3(cfg: Config) -> Architecture:
    """Stable Diffusion 3 and 3.5: two-stream blocks; 3.5 norms queries and keys, doubles some attentions."""
    heads, dim = (
        cfg.int("num_attention_heads", default=18, low=1),
        cfg.int("attention_head_dim", default=64, low=1),
    )
    hidden, depth = heads * dim, cfg.int("num_layers", default=18, low=1)
    patch, channels = cfg.int("patch_size", default=2, low=1), cfg.int("in_channels", default=16, low=1)
    rows = max(1, cfg.int("sample_size", default=128, low=1) // patch) ** 2
    dual = set(cfg.ints("dual_attention_layers", default=[]))
    kind = cfg.raw.get("qk_norm")
    if kind not in (None, "rms_norm"):
        raise cfg.error("qk_norm", kind, "rms_norm or null", "other norms are not read")
    caption = cfg.int("caption_projection_dim", default=1152, low=1)
    if caption != hidden:
        raise cfg.error("caption_projection_dim", caption, f"the model's width {hidden}", "correct the value")
    joint = cfg.int("joint_attention_dim", default=4096, low=1)
    embed: list[Operator] = [
        Linear(name="patch_embed", ins=("x",), d_in=channels * patch * patch, d_out=hidden, bias=True),
        *embedder("time", 256, hidden),
        *embedder("pooled", cfg.int("pooled_projection_dim", default=2048, low=1), hidden),
        Pool(name="text", ins=("memory",), features=joint, positions=SD3_TEXT),
        Linear(name="context_embedder", d_in=joint, d_out=caption, bias=True),
    ]

    def layer(key: str) -> list[Operator]:
        last, twice = "last" in key, "dual" in key
        return _joint(hidden, heads, dim, rows, SD3_TEXT, normed=kind is not None, rope=False, last=last, dual=twice)

    keys = [("dual" if i in dual else "joint") + ("-last" if i == depth - 1 else "") for i in range(depth)]
    out = cfg.int("out_channels", default=channels, low=1)
    return single(
        cfg,
        family="diffusion",
        embed=embed,
        stacks=[stack("layers", keys, layer, width=hidden, stream=_STREAM, positions=rows)],
        head=_ends(hidden, patch * patch * out),
        hidden=hidden,
        embed_stream=_STREAM,
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=dim,
        ffn=4 * hidden,
        notes=(f"text rows are {SD3_TEXT}",),
    )
