"""Sequence mixers that are not attention: Mamba 1 and 2, gated delta nets."""

from __future__ import annotations

from foretell.arch.operators import Conv, Gate, Linear, Norm, Operator, Parameters, Scan, Weight

CHUNK = 64
"""Tokens of a chunk in the gated-delta-rule kernels: each token keeps one row of a chunk matrix a head."""


def mamba1(
    x: str,
    *,
    hidden: int,
    inner: int,
    state: int,
    dt_rank: int,
    kernel: int,
    proj_bias: bool = False,
    conv_bias: bool = True,
    norms: bool = False,
    bare_norms: bool = False,
) -> list[Operator]:
    """Mamba (arXiv 2312.00752); ``norms`` adds Jamba's norms of dt, B and C (``bare_norms``: without weights)."""
    ops: list[Operator] = [
        Linear(name="in_proj", ins=(x,), d_in=hidden, d_out=2 * inner, bias=proj_bias, split="col"),
        Conv(name="conv1d", c_in=inner, c_out=inner, kernel=(kernel,), groups=inner, bias=conv_bias, split=True),
        Linear(name="x_proj", d_in=inner, d_out=dt_rank + 2 * state, split="row"),
    ]
    dt, rest = "x_proj", "x_proj"
    if norms:
        ops += [
            Norm(name="dt_layernorm", ins=("x_proj",), dim=dt_rank, affine=not bare_norms),
            Norm(name="b_layernorm", ins=("x_proj",), dim=state, affine=not bare_norms),
            Norm(name="c_layernorm", ins=("x_proj",), dim=state, affine=not bare_norms),
        ]
        dt = "dt_layernorm"
    ops += [
        Linear(name="dt_proj", ins=(dt,), d_in=dt_rank, d_out=inner, bias=True, split="col"),
        Scan(
            name="scan",
            ins=("conv1d", "dt_proj", rest),
            kind="mamba1",
            d_inner=inner,
            state=inner * state,
            extra=(Weight("A_log", (inner, state), "tp"), Weight("D", (inner,), "tp")),
        ),
        Gate(name="gated", ins=("in_proj", "scan"), fn="silu", features=inner),
        Linear(name="out_proj", d_in=inner, d_out=hidden, bias=proj_bias, split="row"),
    ]
    return ops


def mamba2(
    x: str,
    *,
    hidden: int,
    inner: int,
    heads: int,
    groups: int,
    state: int,
    kernel: int,
    proj_bias: bool = False,
    conv_bias: bool = True,
    gated_norm: bool = True,
    out_bias: bool | None = None,
) -> list[Operator]:
    """Mamba 2 (arXiv 2405.21060): one projection to gate, x, B, C and dt; a norm that takes the gate."""
    conv = inner + 2 * groups * state
    extra = (Weight("dt_bias", (heads,), "tp"), Weight("A_log", (heads,), "tp"), Weight("D", (heads,), "tp"))
    ops: list[Operator] = [
        Linear(name="in_proj", ins=(x,), d_in=hidden, d_out=inner + conv + heads, bias=proj_bias, split="col"),
        Conv(name="conv1d", c_in=conv, c_out=conv, kernel=(kernel,), groups=conv, bias=conv_bias, split=True),
        Scan(name="scan", ins=("conv1d", "in_proj"), kind="mamba2", d_inner=inner, state=inner * state, extra=extra),
    ]
    ops.append(Gate(name="gated", ins=("in_proj", "scan"), fn="silu", features=inner))
    if gated_norm:
        ops.append(Norm(name="mixer_norm", dim=inner, split=True))
    bias = proj_bias if out_bias is None else out_bias
    ops.append(Linear(name="out_proj", d_in=inner, d_out=hidden, bias=bias, split="row"))
    return ops


def delta_net(
    x: str,
    *,
    hidden: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    layout: str = "qkvz",
) -> list[Operator]:
    """Gated delta net (arXiv 2412.06464) as Qwen has it: a short convolution, the rule, a norm gated by ``z``.

    ``layout`` is how the projections are cut: ``qkvz`` (Qwen3-Next), ``qkv`` (Qwen3.5) or ``each`` (OLMo hybrid).
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    wide = 2 * keys + values

    def col(name: str, width: int) -> Linear:
        return Linear(name=name, ins=(x,), d_in=hidden, d_out=width, split="col")

    if layout == "qkvz":
        ops: list[Operator] = [col("in_proj_qkvz", wide + values), col("in_proj_ba", 2 * value_heads)]
        mixed, z, decay = ("in_proj_qkvz",), "in_proj_qkvz", ("in_proj_ba",)
    elif layout == "qkv":
        ops = [
            col("in_proj_qkv", wide),
            col("in_proj_z", values),
            col("in_proj_b", value_heads),
            col("in_proj_a", value_heads),
        ]
        mixed, z, decay = ("in_proj_qkv",), "in_proj_z", ("in_proj_b", "in_proj_a")  # type: ignore[assignment]
    else:
        ops = [
            col("q_proj", keys),
            col("k_proj", keys),
            col("v_proj", values),
            col("a_proj", value_heads),
            col("b_proj", value_heads),
            col("g_proj", values),
        ]
        mixed, z, decay = ("q_proj", "k_proj", "v_proj"), "g_proj", ("b_proj", "a_proj")  # type: ignore[assignment]
    ops += [
        Conv(name="conv1d", ins=mixed, c_in=wide, c_out=wide, kernel=(kernel,), groups=wide, bias=False, split=True),
        Scan(
            name="scan",
            ins=("conv1d", *decay),
            kind="delta",
            d_inner=values,
            state=value_heads * key_dim * value_dim,
            stored=value_heads * CHUNK,
            extra=(Weight("dt_bias", (value_heads,), "tp"), Weight("A_log", (value_heads,), "tp")),
        ),
        Norm(name="mixer_norm", dim=value_dim, groups=value_heads, split=True),
        Gate(name="gated", ins=(z, "mixer_norm"), fn="silu", features=values),
        Linear(name="out_proj", d_in=values, d_out=hidden, split="row"),
    ]
    return ops


def kimi_delta(x: str, *, hidden: int, heads: int, head_dim: int, kernel: int, full_rank_gate: bool = False) -> list[Operator]:
    """Kimi delta attention (arXiv 2510.26692): a decay for each channel, low-rank forget and output gates."""
    wide = heads * head_dim

    def col(name: str, width: int, source: str = x, d_in: int = hidden) -> Linear:
        return Linear(name=name, ins=(source,), d_in=d_in, d_out=width, split="col")

    gates: list[Operator] = [
        Linear(name="f_a_proj", ins=(x,), d_in=hidden, d_out=head_dim),
        col("f_b_proj", wide, "f_a_proj", head_dim),
        col("b_proj", heads),
    ]
    if full_rank_gate:
        gates.append(col("g_proj", wide))
    else:
        gates += [
            Linear(name="g_a_proj", ins=(x,), d_in=hidden, d_out=head_dim),
            col("g_b_proj", wide, "g_a_proj", head_dim),
        ]
    gate = gates[-1].name
    return [
        col("q_proj", wide),
        col("k_proj", wide),
        col("v_proj", wide),
        Conv(
            name="conv1d",
            ins=("q_proj", "k_proj", "v_proj"),
            c_in=3 * wide,
            c_out=3 * wide,
            kernel=(kernel,),
            groups=3 * wide,
            bias=False,
            split=True,
        ),
        *gates,
        Scan(
            name="scan",
            ins=("conv1d", "f_b_proj", "b_proj"),
            kind="kda",
            d_inner=wide,
            state=heads * head_dim * head_dim,
            stored=heads * CHUNK,
            extra=(Weight("dt_bias", (wide,), "tp"), Weight("A_log", (heads,), "tp")),
        ),
        Norm(name="o_norm", dim=head_dim, groups=heads, split=True),
        Gate(name="gated", ins=(gate, "o_norm"), fn="sigmoid", features=wide),
        Linear(name="o_proj", d_in=wide, d_out=hidden, split="row"),
    ]


def bare(name: str, *shapes: tuple[int, ...]) -> Parameters:
    """Parameters without an operator."""
    return Parameters(name=name, shapes=shapes)
