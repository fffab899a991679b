"""UNet2DConditionModel of diffusers: Stable Diffusion 1.x, 2.x and XL.

Rows follow ``sample_size`` (latent places, 64 x 64 when the file has none).  ``"memory"`` is the
conditioning: the text encoder's tokens for cross attention, the time embedding (one row) for residual blocks;
``"skip"`` is the output of the mirrored down block.  In these files ``attention_head_dim`` is the number of
heads.
Source: diffusers 0.42.1 ``unet_2d_condition``, ``unet_2d_blocks``, ``transformer_2d``, ``attention``.
"""

from __future__ import annotations

import re

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import norm, residual
from foretell.arch.operators import Act, Conv, Gate, Linear, Operator, Parameters, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import mha, single
from foretell.arch.readers._registry import reader
from foretell.arch.readers._unet import Checkpoints, Part, down, group_norm, per_block, resnet, run, side, up, widths

LATENT = 64
_CROSS = "CrossAttn"
_UNREAD = {
    "only_cross_attention": False,
    "dual_cross_attention": False,
    "attention_type": "default",
    "time_embedding_type": "positional",
    "mid_block_only_cross_attention": None,
    "cross_attention_norm": None,
    "class_embeddings_concat": False,
    "resnet_skip_time_act": False,
    "timestep_post_act": None,
    "time_embedding_act_fn": None,
}
_TRANSFORMER = re.compile(r"t\d+_")


def _checkpointed(part: Part, _place: int = 1) -> Checkpoints:
    """What diffusers computes again: residual blocks, and each transformer block; it keeps what lies between, and changes of
    resolution."""
    label, ops = part[:2]
    if not label.startswith("resnet"):
        return ()
    names = [op.name for op in ops]
    inner = [_TRANSFORMER.match(name) for name in names]
    residual = tuple(names[names.index("norm1") : names.index("out") + 1])
    prefixes = dict.fromkeys(found.group() for found in inner if found)
    return residual, *(tuple(name for name in names if name.startswith(prefix)) for prefix in prefixes)


def _in_the_middle(part: Part, place: int) -> Checkpoints:
    """... where the first residual block is not."""
    return _checkpointed(part)[place == 0 :]


def _spatial(dim: int, heads: int, layers: int, cross: int, x: str) -> list[Operator]:
    """Group norm, projection in, transformer blocks (self, cross, gated MLP), projection out, residual."""
    ops: list[Operator] = [
        group_norm("attn_norm", dim, x),
        Linear(name="proj_in", d_in=dim, d_out=dim, bias=True),
    ]
    h = "proj_in"
    for i in range(layers):
        p = f"t{i}_"
        ops += [
            norm(f"{p}norm1", dim, "layer", bias=True, ins=h),
            *mha(f"{p}norm1", hidden=dim, heads=heads, bias=False, o_bias=True, prefix=f"{p}self_"),
            *residual(f"{p}add1", h, f"{p}self_o_proj", dim),
            norm(f"{p}norm2", dim, "layer", bias=True),
            *mha(
                f"{p}norm2",
                hidden=dim,
                heads=heads,
                bias=False,
                o_bias=True,
                memory="memory",
                memory_dim=cross,
                prefix=f"{p}cross_",
            ),
            *residual(f"{p}add2", f"{p}add1", f"{p}cross_o_proj", dim),
            norm(f"{p}norm3", dim, "layer", bias=True),
            Linear(name=f"{p}ff_in", d_in=dim, d_out=8 * dim, bias=True, split="col"),
            Gate(name=f"{p}geglu", ins=(f"{p}ff_in", f"{p}ff_in"), fn="gelu", features=4 * dim),
            Linear(name=f"{p}ff_out", d_in=4 * dim, d_out=dim, bias=True, split="row"),
            *residual(f"{p}add3", f"{p}add2", f"{p}ff_out", dim),
        ]
        h = f"{p}add3"
    ops.append(Linear(name="proj_out", ins=(h,), d_in=dim, d_out=dim, bias=True))
    return [*ops, *residual("attn_out", x, "proj_out", dim)]


def _check(cfg: Config) -> None:
    for key, usual in _UNREAD.items():
        if cfg.raw.get(key, usual) not in (usual, None, False):
            raise cfg.error(key, cfg.raw[key], repr(usual), "other variants of this network are not read")


def _choice(cfg: Config, key: str, default: str | None, *allowed: str | None) -> str | None:
    value: str | None = cfg.raw.get(key, default)
    if value not in allowed:
        names = ", ".join("null" if a is None else a for a in allowed)
        raise cfg.error(key, value, names, "other variants are not read")
    return value


def _embeddings(cfg: Config, first: int, temb: int) -> list[Operator]:
    """Time embedding and the optional class, text and pooled conditioning."""
    ops: list[Operator] = [Pool(name="time_proj", ins=("memory",), features=first, positions=1)]
    condition = cfg.int("time_cond_proj_dim", default=None)
    if condition:
        ops.append(Linear(name="time_cond", ins=("memory",), d_in=condition, d_out=first))

    def embedder(name: str, d_in: int, ins: str) -> list[Operator]:
        return [
            Linear(name=f"{name}_1", ins=(ins,), d_in=d_in, d_out=temb, bias=True),
            Act(name=f"{name}_act", fn=cfg.str("act_fn", "silu"), features=temb, split=False),
            Linear(name=f"{name}_2", d_in=temb, d_out=temb, bias=True),
        ]

    def pooled() -> int:
        return int(cfg.int("projection_class_embeddings_input_dim", low=1))

    ops += embedder("time", first, "time_proj")
    kind = _choice(cfg, "class_embed_type", None, "timestep", "projection", "identity", None)
    classes = cfg.int("num_class_embeds", default=None)
    if kind is None and classes:
        ops.append(Parameters(name="class_table", shapes=((classes, temb),), role="embedding"))
    elif kind in ("timestep", "projection"):
        ops += embedder("class", first if kind == "timestep" else pooled(), "memory")
    if _choice(cfg, "addition_embed_type", None, "text_time", None):
        ops += embedder("added", pooled(), "memory")
    hid = cfg.int("encoder_hid_dim", default=None)
    if _choice(cfg, "encoder_hid_dim_type", None, "text_proj", None) or hid:
        cross, d_in = cfg.int("cross_attention_dim", default=1280, low=1), cfg.int("encoder_hid_dim", low=1)
        ops.append(Linear(name="encoder_hid_proj", ins=("memory",), d_in=d_in, d_out=cross, bias=True))
    return ops


class _Net:
    """The settings of each level, and the parts made from them."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.sizes = widths(cfg, [320, 640, 1280, 1280])
        n = len(self.sizes)
        self.downs = self._kinds("down_block_types", "DownBlock2D", [True] * (n - 1) + [False])
        self.ups = self._kinds("up_block_types", "UpBlock2D", [False] + [True] * (n - 1))
        self.each = per_block(cfg, "layers_per_block", 2, n)
        self.cross = per_block(cfg, "cross_attention_dim", 1280, n)
        named = cfg.raw.get("num_attention_heads") is not None
        self.heads = per_block(cfg, "num_attention_heads" if named else "attention_head_dim", 8, n)
        self.depth = per_block(cfg, "transformer_layers_per_block", 1, n)
        self.back = list(reversed(self.depth))
        if cfg.raw.get("reverse_transformer_layers_per_block") is not None:
            self.back = per_block(cfg, "reverse_transformer_layers_per_block", 1, n)
        self.temb = cfg.int("time_embedding_dim", default=4 * self.sizes[0], low=1)
        self.shift = _choice(cfg, "resnet_time_scale_shift", "default", "default", "scale_shift") != "default"
        self.fn = cfg.str("act_fn", "silu")
        self.rows = [max(1, side(cfg, LATENT) // 4**i) for i in range(n)]

    def _kinds(self, key: str, plain: str, default: list[bool]) -> list[bool]:
        """True for each block with cross attention."""
        names = self.cfg.list(key, default=[_CROSS + plain if cross else plain for cross in default])
        if len(names) != len(default) or any(name not in (plain, _CROSS + plain) for name in names):
            allowed = f"{len(default)} of {plain} and {_CROSS}{plain}"
            raise self.cfg.error(key, names, allowed, "other blocks are not read")
        return [name != plain for name in names]

    def part(self, level: int, c_in: int, layers: int, skip: int = 0) -> Part:
        """A residual block (reading a skip connection in the up path) and its optional transformer."""
        dim, rows, ops = self.sizes[level], self.rows[level], list[Operator]()
        if skip:
            ops.append(Pool(name="concat", ins=("x", "skip"), features=c_in + skip))
        x = "concat" if skip else "x"
        ops += resnet(c_in + skip, dim, rows, temb=self.temb, scale_shift=self.shift, fn=self.fn, x=x)
        if layers:
            self.cfg.divides("attention_head_dim", dim, self.heads[level])
            ops += _spatial(dim, self.heads[level], layers, self.cross[level], "out")
        return ("resnet_attention" if layers else "resnet", ops, c_in, rows)

    def down(self) -> list[Stack]:
        """The down path, level by level, and the middle block."""
        stacks: list[Stack] = []
        c_in, last = self.sizes[0], len(self.sizes) - 1
        for i, dim in enumerate(self.sizes):
            layers = self.depth[i] if self.downs[i] else 0
            parts = [self.part(i, c_in if j == 0 else dim, layers) for j in range(self.each[i])]
            if i < last:
                parts.append(("down", down(dim, self.rows[i + 1]), dim, self.rows[i]))
            stacks.append(run(f"down{i}", parts, _checkpointed))
            c_in = dim
        if _choice(self.cfg, "mid_block_type", "UNetMidBlock2DCrossAttn", "UNetMidBlock2DCrossAttn", None):
            middle = [self.part(last, c_in, self.depth[-1]), self.part(last, c_in, 0)]
            stacks.append(run("mid", middle, _in_the_middle))
        return stacks

    def up(self) -> list[Stack]:
        """The up path: each level reads the outputs of the mirrored down level, newest first."""
        stacks: list[Stack] = []
        c_in = self.sizes[-1]
        for i, level in enumerate(reversed(range(len(self.sizes)))):
            dim, below, n = self.sizes[level], self.sizes[max(level - 1, 0)], self.each[level] + 1
            layers = self.back[i] if self.ups[i] else 0
            parts = [self.part(level, c_in if j == 0 else dim, layers, skip=below if j == n - 1 else dim) for j in range(n)]
            if level:
                parts.append(("up", up(dim, self.rows[level - 1]), dim, self.rows[level]))
            stacks.append(run(f"up{i}", parts, _checkpointed))
            c_in = dim
        return stacks


@reader("UNet2DConditionModel")
def unet(cfg: Config) -> Architecture:
    """Down blocks, middle, up blocks; every residual block takes the time embedding."""
    _check(cfg)
    net = _Net(cfg)
    first, rows = net.sizes[0], net.rows[0]
    kernel, c_in = cfg.int("conv_in_kernel", default=3, low=1), cfg.int("in_channels", default=4, low=1)
    embed = [
        *_embeddings(cfg, first, net.temb),
        Conv(name="conv_in", ins=("x",), c_in=c_in, c_out=first, kernel=(kernel, kernel), positions=rows),
    ]
    head: list[Operator] = []
    if cfg.raw.get("norm_num_groups", 32) is not None:
        head = [group_norm("conv_norm_out", first, "x"), Act(name="act", fn=net.fn, features=first)]
    kernel, out = cfg.int("conv_out_kernel", default=3, low=1), cfg.int("out_channels", default=4, low=1)
    head.append(Conv(name="conv_out", c_in=first, c_out=out, kernel=(kernel, kernel), positions=rows))
    return single(
        cfg,
        family="diffusion",
        embed=embed,
        stacks=[*net.down(), *net.up()],
        head=head,
        hidden=net.sizes[-1],
        embed_stream="sample",
        embed_positions=rows,
        head_positions=rows,
        head_width=first,
        heads=net.heads[-1],
        notes=(f"rows are those of {rows} latent places",),
    )
