"""Shapes that diffusers' UNet and VAE share: residual blocks, changes of resolution, runs of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foretell.arch.architecture import Block, Stack
from foretell.arch.operators import Act, Add, Conv, Linear, Mul, Norm, Operator, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._vision import pair


def group_norm(name: str, dim: int, ins: str = "") -> Norm:
    """A group norm over ``dim`` channels."""
    return Norm(name=name, ins=(ins,) if ins else (), dim=dim, kind="group", bias=True)


def resnet(
    c_in: int,
    c_out: int,
    rows: int,
    *,
    temb: int = 0,
    scale_shift: bool = False,
    fn: str = "silu",
    x: str = "x",
    prefix: str = "",
) -> list[Operator]:
    """Two normed 3 x 3 convolutions with a residual; ``temb`` > 0 adds a projection of the time embedding.

    The last operator is ``{prefix}out``.
    """
    p = prefix
    ops: list[Operator] = [
        group_norm(f"{p}norm1", c_in, x),
        Act(name=f"{p}act1", fn=fn, features=c_in),
        Conv(name=f"{p}conv1", c_in=c_in, c_out=c_out, kernel=(3, 3), positions=rows),
    ]
    last = f"{p}conv1"
    if temb:
        ops += [
            Pool(name=f"{p}temb", ins=("memory",), features=temb, positions=1),
            Act(name=f"{p}temb_act", fn=fn, features=temb, split=False),
            Linear(name=f"{p}temb_proj", d_in=temb, d_out=2 * c_out if scale_shift else c_out, bias=True),
        ]
        if not scale_shift:
            ops.append(Add(name=f"{p}temb_add", ins=(last, f"{p}temb_proj"), features=c_out))
            last = f"{p}temb_add"
    ops.append(group_norm(f"{p}norm2", c_out, last))
    if temb and scale_shift:
        ops.append(Mul(name=f"{p}temb_mod", ins=(f"{p}norm2", f"{p}temb_proj"), features=c_out))
    ops += [
        Act(name=f"{p}act2", fn=fn, features=c_out),
        Conv(name=f"{p}conv2", c_in=c_out, c_out=c_out, kernel=(3, 3), positions=rows),
    ]
    short = x
    if c_in != c_out:
        ops.append(Conv(name=f"{p}shortcut", ins=(x,), c_in=c_in, c_out=c_out, kernel=(1, 1), positions=rows))
        short = f"{p}shortcut"
    return [*ops, Add(name=f"{p}out", ins=(short, f"{p}conv2"), features=c_out)]


def down(dim: int, rows: int) -> list[Operator]:
    """Strided convolution to ``rows`` places."""
    return [Conv(name="down", ins=("x",), c_in=dim, c_out=dim, kernel=(3, 3), positions=rows)]


def up(dim: int, rows: int) -> list[Operator]:
    """Nearest-neighbour doubling to ``rows`` places, then a convolution."""
    return [
        Pool(name="resize", ins=("x",), features=dim, positions=rows),
        Conv(name="up", c_in=dim, c_out=dim, kernel=(3, 3), positions=rows),
    ]


Part = tuple[str, list[Operator], int, int]
"""Label, operators, width of the input, rows."""
Checkpoints = tuple[tuple[str, ...], ...]


def run(name: str, parts: Sequence[Part], checkpoints: Callable[[Part, int], Checkpoints] | None = None) -> Stack:
    """A stack of parts in order; equal ones become one block.

    ``checkpoints`` tells of a part and its place what is checkpointed in it.
    """
    blocks: list[Block] = []
    pattern: list[int] = []
    for i, part in enumerate(parts):
        label, ops, width, rows = part
        inner = checkpoints(part, i) if checkpoints is not None else None
        block = Block(label, tuple(ops), width, "sample", rows, checkpoints=inner)
        if block not in blocks:
            blocks.append(block)
        pattern.append(blocks.index(block))
    return Stack(name, tuple(blocks), tuple(pattern))


def widths(cfg: Config, default: list[int]) -> list[int]:
    """``block_out_channels``: sizes of 1 or more."""
    value: list[int] = cfg.ints("block_out_channels", default=default)
    if not value or min(value) < 1:
        raise cfg.error("block_out_channels", value, "one size of 1 or more a block", "correct the list")
    return value


def side(cfg: Config, default: int) -> int:
    """``sample_size`` as a number of latent (or pixel) places: height times width."""
    height, width = pair(cfg, "sample_size", default)
    return height * width


def per_block(cfg: Config, key: str, default: int, n: int) -> list[int]:
    """A setting given once or once a block."""
    value = cfg.get(key, default=default)
    if isinstance(value, list | tuple):
        if len(value) != n:
            raise cfg.error(key, value, f"one number, or {n}", "give one entry a block")
        return [cfg.check_int(f"{key}[{i}]", v, 1) for i, v in enumerate(value)]
    return [cfg.check_int(key, value, 1)] * n
