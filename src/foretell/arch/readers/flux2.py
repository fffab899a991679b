"""FLUX.2: two-stream blocks, then parallel single-stream blocks, with modulations that all blocks share.

``image_size`` (pixels; 1024 x 1024 without it) gives the image rows: the autoencoder and the packing divide each side
by 16.  Text rows: 512, the pipelines' ``max_sequence_length``.  Operators have the names of diffusers' modules, so that
adapters find them.
Source: diffusers 0.42.1 ``transformer_flux2``, ``pipeline_flux2_klein``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Block, Stack, Stream
from foretell.arch.operators import Act, Attention, Gate, Linear, Norm, Operator, Pool, Rope, Slice
from foretell.arch.readers._config import Config
from foretell.arch.readers._dit import ada, gated
from foretell.arch.readers._encoder import single
from foretell.arch.readers._registry import reader
from foretell.arch.readers._vision import pair

_TEXT, _SIDE = 512, 16
_STREAM: Stream = "sample"


def _linear(name: str, x: str, d_in: int, d_out: int, *, row: bool = False) -> Linear:
    return Linear(name=name, ins=(x,), d_in=d_in, d_out=d_out, split="row" if row else "col")


def _head_norm(name: str, x: str, heads: int, dim: int) -> Norm:
    return Norm(name=name, ins=(x,), dim=dim, groups=heads, split=True, fused=True)


def _attention(v: str, heads: int, dim: int) -> Attention:
    ins = ("rope_q", "rope_k", v)
    return Attention(name="attn", ins=ins, heads=heads, kv_heads=heads, head_dim=dim, v_dim=dim, causal=False)


def _modulation(name: str, hidden: int, chunks: int) -> Pool:
    """Shift, scale and gate vectors, one row a sample; their matrix stands outside the blocks."""
    return Pool(name=name, ins=("memory",), features=chunks * hidden, positions=1)


def _ff(prefix: str, x: str, hidden: int, ffn: int) -> list[Operator]:
    """The gate and its factor are halves of one projection."""
    return [
        _linear(f"{prefix}.linear_in", x, hidden, 2 * ffn),
        Slice(name=f"{prefix}.gate", ins=(f"{prefix}.linear_in",), features=ffn),
        Slice(name=f"{prefix}.up", ins=(f"{prefix}.linear_in",), features=ffn),
        Gate(name=f"{prefix}.act", ins=(f"{prefix}.gate", f"{prefix}.up"), fn="silu", features=ffn),
        _linear(f"{prefix}.linear_out", f"{prefix}.act", ffn, hidden, row=True),
    ]


def _double(hidden: int, heads: int, dim: int, ffn: int, rows: int) -> list[Operator]:
    """Image and text keep their own weights and attend to each other."""
    streams = (("", "x", "attn.to_", "", "attn.norm_"), ("context_", "context", "attn.add_", "_proj", "attn.norm_added_"))
    ops: list[Operator] = [
        Pool(name="context", ins=("memory",), features=hidden, positions=_TEXT),
        _modulation("mod", hidden, 6),
        _modulation("context_mod", hidden, 6),
    ]
    for prefix, x, before, after, normed in streams:
        ops += ada(f"{prefix}norm1", x, f"{prefix}mod", hidden)
        ops += [_linear(f"{before}{t}{after}", f"{prefix}norm1", hidden, heads * dim) for t in "qkv"]
        ops += [_head_norm(f"{normed}{t}", f"{before}{t}{after}", heads, dim) for t in "qk"]
    ends = (("attn.norm_q", "attn.norm_added_q"), ("attn.norm_k", "attn.norm_added_k"), ("attn.to_v", "attn.add_v_proj"))
    for t, ins in zip("qkv", ends, strict=True):
        ops.append(Pool(name=f"joint_{t}", ins=ins, features=heads * dim, positions=rows + _TEXT))
    ops += [Rope(name=f"rope_{t}", ins=(f"joint_{t}",), heads=heads, dim=dim, rotary=dim) for t in "qk"]
    ops.append(_attention("joint_v", heads, dim))
    for prefix, x, out, ff, positions in (
        ("context_", "context", "attn.to_add_out", "ff_context", _TEXT),
        ("", "x", "attn.to_out.0", "ff", rows),
    ):
        ops += [
            Pool(name=f"{prefix}attn", ins=("attn",), features=heads * dim, positions=positions, kind="view")
            if prefix
            else Pool(name="image_attn", ins=("attn",), features=heads * dim, positions=positions, kind="view"),
            _linear(out, f"{prefix}attn" if prefix else "image_attn", heads * dim, hidden, row=True),
            *gated(f"{prefix}add1", x, out, f"{prefix}mod", hidden),
            *ada(f"{prefix}norm2", f"{prefix}add1", f"{prefix}mod", hidden),
            *_ff(ff, f"{prefix}norm2", hidden, ffn),
            *gated(f"{prefix}add2", f"{prefix}add1", f"{ff}.linear_out", f"{prefix}mod", hidden),
        ]
    return ops


def _single(hidden: int, heads: int, dim: int, ffn: int) -> list[Operator]:
    """Attention and feed-forward side by side, between one matrix in and one out."""
    whole, width = "attn.to_qkv_mlp_proj", heads * dim
    return [
        _modulation("mod", hidden, 3),
        *ada("norm", "x", "mod", hidden),
        _linear(whole, "norm", hidden, 3 * width + 2 * ffn),
        *(Slice(name=t, ins=(whole,), features=width) for t in "qkv"),
        *(Slice(name=t, ins=(whole,), features=ffn) for t in ("gate", "up")),
        *(_head_norm(f"attn.norm_{t}", t, heads, dim) for t in "qk"),
        *(Rope(name=f"rope_{t}", ins=(f"attn.norm_{t}",), heads=heads, dim=dim, rotary=dim) for t in "qk"),
        _attention("v", heads, dim),
        Gate(name="act", ins=("gate", "up"), fn="silu", features=ffn),
        Pool(name="concat", ins=("attn", "act"), features=width + ffn),
        _linear("attn.to_out", "concat", width + ffn, hidden, row=True),
        *gated("add", "x", "attn.to_out", "mod", hidden),
    ]


def _outside(hidden: int, channels: int, context: int, steps: int, guided: bool) -> list[Operator]:
    """Patches, time (and guidance) embedding, the three shared modulations, text."""
    ops: list[Operator] = [Linear(name="x_embedder", ins=("x",), d_in=channels, d_out=hidden)]
    for name in ("timestep", "guidance") if guided else ("timestep",):
        ops += [
            Pool(name=f"{name}_in", ins=("memory",), features=steps, positions=1),
            Linear(name=f"{name}_1", d_in=steps, d_out=hidden),
            Act(name=f"{name}_act", fn="silu", features=hidden, split=False),
            Linear(name=f"{name}_2", d_in=hidden, d_out=hidden),
        ]
    ops.append(Act(name="mod_act", fn="silu", features=hidden, split=False))
    ops += [
        Linear(name=f"{name}_modulation", ins=("mod_act",), d_in=hidden, d_out=chunks * hidden)
        for name, chunks in (("image", 6), ("text", 6), ("single", 3))
    ]
    ops.append(Pool(name="text", ins=("memory",), features=context, positions=_TEXT))
    ops.append(Linear(name="context_embedder", d_in=context, d_out=hidden))
    return ops


@reader("Flux2Transformer2DModel")
def flux2(cfg: Config) -> Architecture:
    """FLUX.2 transformers (dev, klein); no biases anywhere."""
    heads, dim = cfg.int("num_attention_heads", default=48, low=1), cfg.int("attention_head_dim", default=128, low=1)
    hidden, channels = heads * dim, cfg.int("in_channels", default=128, low=1)
    patch, out = cfg.int("patch_size", default=1, low=1), cfg.int("out_channels", default=channels, low=1)
    ffn = int(hidden * cfg.float("mlp_ratio", 3.0))
    image = pair(cfg, "image_size", [1024, 1024])
    rows = max(1, image[0] // _SIDE) * max(1, image[1] // _SIDE)
    embed = _outside(
        hidden,
        channels,
        cfg.int("joint_attention_dim", default=15360, low=1),
        cfg.int("timestep_guidance_channels", default=256, low=1),
        cfg.bool("guidance_embeds", True),
    )
    double = Block("layer", tuple(_double(hidden, heads, dim, ffn, rows)), hidden, _STREAM, rows)
    parallel = Block("layer", tuple(_single(hidden, heads, dim, ffn)), hidden, _STREAM, rows + _TEXT)
    stacks = [
        Stack("double", (double,), (0,) * cfg.int("num_layers", default=8)),
        Stack("single", (parallel,), (0,) * cfg.int("num_single_layers", default=48)),
    ]
    end: list[Operator] = [
        Pool(name="cond", ins=("memory",), features=hidden, positions=1),
        Act(name="cond_silu", fn="silu", features=hidden, split=False),
        Linear(name="mod_out", d_in=hidden, d_out=2 * hidden),
        *ada("norm_out", "x", "mod_out", hidden),
        Linear(name="proj_out", d_in=hidden, d_out=patch * patch * out),
    ]
    return single(
        cfg,
        family="diffusion",
        embed=embed,
        stacks=stacks,
        head=end,
        hidden=hidden,
        embed_stream=_STREAM,
        embed_positions=rows,
        head_positions=rows,
        heads=heads,
        head_dim=dim,
        ffn=ffn,
        notes=(f"rows are {rows} image and {_TEXT} text tokens",),
    )
