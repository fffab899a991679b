"""AutoencoderKL of diffusers: convolutional encoder and decoder around a small latent.

Rows follow ``sample_size`` (pixels, 32 x 32 by default in the class); training runs on the recipe's images,
so a forecast scales them.
Source: diffusers 0.42.1 ``autoencoder_kl``, ``vae``, ``unet_2d_blocks``.
"""

from __future__ import annotations

from foretell.arch.architecture import Architecture, Stack
from foretell.arch.builders import residual
from foretell.arch.operators import Act, Conv, Operator, Pool
from foretell.arch.readers._config import Config
from foretell.arch.readers._encoder import mha, once, single
from foretell.arch.readers._registry import reader
from foretell.arch.readers._unet import down, group_norm, resnet, run, side, up, widths


def _middle(dim: int, rows: int, fn: str, attention: bool) -> list[tuple[str, list[Operator], int, int]]:
    """Residual block, optional one-head attention, residual block."""
    first = ("resnet", resnet(dim, dim, rows, fn=fn), dim, rows)
    if not attention:
        return [first, first]
    ops: list[Operator] = [
        group_norm("norm", dim, "x"),
        *mha("norm", hidden=dim, heads=1),
        *residual("out", "x", "o_proj", dim),
    ]
    return [first, ("attention", ops, dim, rows), first]


@reader("AutoencoderKL")
def autoencoder(cfg: Config) -> Architecture:
    """Encoder stacks, then decoder stacks (the trunk is the decoder's last)."""
    sizes = widths(cfg, [64])
    for key, kind in (("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")):
        names = cfg.list(key, default=[kind] * len(sizes))
        if len(names) != len(sizes) or any(name != kind for name in names):
            raise cfg.error(key, names, f"{len(sizes)} times {kind}", "other blocks are not read")
    n, latent, fn = (
        cfg.int("layers_per_block", default=1, low=1),
        cfg.int("latent_channels", default=4, low=1),
        cfg.str("act_fn", "silu"),
    )
    pixels, attention = side(cfg, 32), cfg.bool("mid_block_add_attention", True)
    rows, c_in = pixels, sizes[0]
    embed: list[Operator] = [
        Conv(
            name="conv_in",
            ins=("x",),
            c_in=cfg.int("in_channels", default=3, low=1),
            c_out=c_in,
            kernel=(3, 3),
            positions=rows,
        )
    ]
    stacks: list[Stack] = []
    for i, dim in enumerate(sizes):
        parts = [("resnet", resnet(c_in if j == 0 else dim, dim, rows, fn=fn), c_in if j == 0 else dim, rows) for j in range(n)]
        if i < len(sizes) - 1:
            parts.append(("down", down(dim, max(1, rows // 4)), dim, rows))
            rows = max(1, rows // 4)
        stacks.append(run(f"encoder{i}", parts))
        c_in = dim
    stacks.append(run("encoder_mid", _middle(c_in, rows, fn, attention)))
    between: list[Operator] = [
        group_norm("norm_out", c_in, "x"),
        Act(name="act_out", fn=fn, features=c_in),
        Conv(name="encoder_out", c_in=c_in, c_out=2 * latent, kernel=(3, 3), positions=rows),
    ]
    if cfg.bool("use_quant_conv", True):
        between.append(Conv(name="quant_conv", c_in=2 * latent, c_out=2 * latent, kernel=(1, 1), positions=rows))
    between.append(Pool(name="latent", features=latent, positions=rows))
    if cfg.bool("use_post_quant_conv", True):
        between.append(Conv(name="post_quant_conv", c_in=latent, c_out=latent, kernel=(1, 1), positions=rows))
    between.append(Conv(name="decoder_in", c_in=latent, c_out=c_in, kernel=(3, 3), positions=rows))
    stacks.append(once("latent", between, width=c_in, stream="sample", positions=rows))
    stacks.append(run("decoder_mid", _middle(c_in, rows, fn, attention)))
    for i, dim in enumerate(reversed(sizes)):
        parts = [
            ("resnet", resnet(c_in if j == 0 else dim, dim, rows, fn=fn), c_in if j == 0 else dim, rows) for j in range(n + 1)
        ]
        if i < len(sizes) - 1:
            parts.append(("up", up(dim, rows * 4), dim, rows))
            rows *= 4
        stacks.append(run(f"decoder{i}", parts))
        c_in = dim
    head: list[Operator] = [
        group_norm("norm", c_in, "x"),
        Act(name="act", fn=fn, features=c_in),
        Conv(
            name="conv_out",
            c_in=c_in,
            c_out=cfg.int("out_channels", default=3, low=1),
            kernel=(3, 3),
            positions=rows,
        ),
    ]
    return single(
        cfg,
        family="cnn",
        embed=embed,
        stacks=stacks,
        head=head,
        hidden=sizes[-1],
        embed_stream="sample",
        embed_positions=pixels,
        head_width=c_in,
        head_positions=rows,
        notes=(f"rows are those of {pixels} pixels",),
    )
