"""Shapes that recur: attention, gated MLP, mixture of experts, as lists of operators.

Readers of configuration files compose these; a block that fits none of them is written out operator by
operator.  Every helper returns operators whose last one leaves the sub-layer's output, residual added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foretell.arch._attention import attention, mla
from foretell.arch.operators import (
    Act,
    Add,
    Dropout,
    Experts,
    Gate,
    Linear,
    Norm,
    Operator,
    Router,
    Weight,
)

__all__ = ["PLACES", "attention", "layer", "mla", "mlp", "moe", "norm", "pre_norm_layer", "residual"]


def norm(name: str, dim: int, kind: str = "rms", *, bias: bool = False, ins: str = "") -> Norm:
    """A norm over the residual stream."""
    return Norm(name=name, dim=dim, kind=kind, bias=bias, ins=(ins,) if ins else ())  # type: ignore[arg-type]


def mlp(
    x: str,
    *,
    hidden: int,
    ffn: int,
    fn: str = "silu",
    gated: bool = True,
    bias: bool = False,
    up: str = "up_proj",
    down: str = "down_proj",
    fused: str = "",
    prefix: str = "",
) -> list[Operator]:
    """Feed-forward network reading tensor ``x``; ``fused`` names one projection that holds gate and up.

    The last operator is ``{prefix}{down}``.
    """
    p = prefix
    ops: list[Operator] = []
    act = Act(name=f"{p}act", fn=fn, features=ffn)
    if fused:
        both = f"{p}{fused}"
        ops.append(Linear(name=both, ins=(x,), d_in=hidden, d_out=2 * ffn, bias=bias, split="col"))
        ops.append(Gate(name=f"{p}act", ins=(both, both), fn=fn, features=ffn))
    else:
        if gated:
            ops.append(Linear(name=f"{p}gate_proj", ins=(x,), d_in=hidden, d_out=ffn, bias=bias, split="col"))
        ops.append(Linear(name=f"{p}{up}", ins=(x,), d_in=hidden, d_out=ffn, bias=bias, split="col"))
        gate = Gate(name=f"{p}act", ins=(f"{p}gate_proj", f"{p}{up}"), fn=fn, features=ffn)
        ops.append(gate if gated else act)
    ops.append(Linear(name=f"{p}{down}", d_in=ffn, d_out=hidden, bias=bias, split="row"))
    return ops


def moe(
    x: str,
    *,
    hidden: int,
    ffn: int,
    experts: int,
    top_k: int,
    fn: str = "silu",
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
    score: str = "softmax",
    router_extra: tuple[Weight, ...] = (),
    router_in: str = "",
    dense: bool = False,
    latent: int = 0,
    latent_bias: bool = False,
    shared_ffn: int = 0,
    shared_gated: bool | None = None,
    shared_gate: bool = False,
    shared_bias: bool = False,
    shared_fused: str = "",
) -> list[Operator]:
    """Router, routed experts and an optional shared expert (``shared_gate`` adds its sigmoid gate).

    ``router_in`` is what the router reads when it is not ``x``; ``latent`` > 0 projects to that width before the
    experts and back after them; ``dense`` says that the model's code runs every expert on every token.
    """
    source, width = x, latent or hidden
    ops: list[Operator] = [
        Router(
            name="router",
            ins=(router_in or x,),
            dim=hidden,
            experts=experts,
            top_k=top_k,
            bias=router_bias,
            score=score,  # type: ignore[arg-type]
            extra=router_extra,
        )
    ]
    if latent:
        ops.append(Linear(name="latent_down", ins=(x,), d_in=hidden, d_out=latent, bias=latent_bias))
        source = "latent_down"
    ops.append(
        Experts(
            name="experts",
            ins=(source, "router"),
            dim=width,
            ffn=ffn,
            experts=experts,
            top_k=top_k,
            gated=gated,
            fn=fn,
            bias=bias,
            dense=dense,
        )
    )
    if latent:
        ops.append(Linear(name="latent_up", d_in=latent, d_out=hidden, bias=latent_bias))
    routed = ops[-1].name
    if shared_ffn:
        g = gated if shared_gated is None else shared_gated
        ops += mlp(x, hidden=hidden, ffn=shared_ffn, fn=fn, gated=g, bias=shared_bias, fused=shared_fused, prefix="shared_")
        out = "shared_down_proj"
        if shared_gate:
            ops.append(Linear(name="shared_gate", ins=(x,), d_in=hidden, d_out=1))
            ops.append(Gate(name="shared_gated", ins=("shared_gate", out), fn="sigmoid", features=hidden, split=False))
            out = "shared_gated"
        ops.append(Add(name="moe_out", ins=(routed, out), features=hidden))
    return ops


def residual(name: str, a: str, b: str, width: int, *, dropout: float = 0.0) -> list[Operator]:
    """``a + dropout(b)``, the sum called ``name`` (a recipe can switch dropout on where the model has none)."""
    return [
        Dropout(name=f"{name}_drop", ins=(b,), features=width, p=dropout),
        Add(name=name, ins=(a, f"{name}_drop"), features=width),
    ]


PLACES: dict[str, tuple[str, str]] = {
    "pre": ("norm1", "norm2"),
    "sandwich": ("norm1", "norm2"),
    "post": ("x", "add1"),
    "after": ("x", "norm1"),
    "parallel": ("norm1", "norm1"),
    "parallel2": ("norm1", "norm2"),
}
"""Where a layer's norms stand -> the tensors that its mixer and its feed-forward must read.

``pre``: before each sub-layer.  ``post``: on each sub-layer's output, inside the residual (OLMo 2).  ``sandwich``:
both (Gemma 2).  ``after``: on each residual sum (the original transformer).  ``parallel``: one norm feeds both,
one residual sum (GPT-J).  ``parallel2``: a norm each (NeoX).
"""


def layer(
    mixer: list[Operator],
    ffn: list[Operator],
    *,
    hidden: int,
    place: str = "pre",
    kind: Norm | None = None,
    dropout: float = 0.0,
    mixer_dropout: float | None = None,
) -> list[Operator]:
    """A residual layer of two sub-layers, whose first operators must read what :data:`PLACES` names.

    ``kind`` is the norm's template (its name, inputs and dim are filled in).
    """
    template = kind or Norm(name="", dim=hidden)
    first = dropout if mixer_dropout is None else mixer_dropout

    def norm_of(name: str, source: str) -> Norm:
        return replace(template, name=name, ins=(source,), dim=hidden)

    if place in ("parallel", "parallel2"):
        norms: list[Operator] = [norm_of(f"norm{i}", "x") for i in range(1, 3 if place == "parallel2" else 2)]
        sums: list[Operator] = [
            Dropout(name=f"{part[-1].name}_drop", ins=(part[-1].name,), features=hidden, p=p)
            for part, p in ((mixer, first), (ffn, dropout))
        ]
        return [*norms, *mixer, *ffn, *sums, Add(name="add2", ins=("x", *(op.name for op in sums)), features=hidden)]
    return _serial(mixer, ffn, norm_of, place, hidden, (first, dropout))


def _serial(
    mixer: list[Operator],
    ffn: list[Operator],
    norm_of: Callable[[str, str], Norm],
    place: str,
    hidden: int,
    dropouts: tuple[float, float],
) -> list[Operator]:
    """The two sub-layers one after the other, each with its residual; an empty one is left out."""
    ops: list[Operator] = []
    before = "x"
    for i, (part, p) in enumerate(zip((mixer, ffn), dropouts, strict=True), start=1):
        if not part:
            continue
        if place in ("pre", "sandwich"):
            ops.append(norm_of(f"norm{i}", before))
        ops += part
        out = part[-1].name
        if place in ("post", "sandwich"):
            ops.append(norm_of(f"post_norm{i}", out))
            out = f"post_norm{i}"
        ops += residual(f"add{i}", before, out, hidden, dropout=p)
        before = f"add{i}"
        if place == "after":
            ops.append(norm_of(f"norm{i}", before))
            before = f"norm{i}"
    return ops


def pre_norm_layer(
    mixer: list[Operator], ffn: list[Operator], *, hidden: int, kind: str = "rms", bias: bool = False, dropout: float = 0.0
) -> list[Operator]:
    """``x + mixer(norm(x))`` then ``+ ffn(norm(.))``: the mixer must read ``norm1`` and the ffn ``norm2``."""
    template = norm("", hidden, kind, bias=bias)
    return layer(mixer, ffn, hidden=hidden, kind=template, dropout=dropout)
