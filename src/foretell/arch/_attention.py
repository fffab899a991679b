"""Attention sub-layers as lists of operators: multi-head, grouped, gated, and multi-head latent attention."""

from __future__ import annotations

from dataclasses import replace

from foretell.arch.operators import Attention, Gate, Linear, Norm, Operator, Rope, Slice, Weight


def attention(
    x: str,
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    v_dim: int | None = None,
    qkv_bias: bool = False,
    o_bias: bool = False,
    rotary: int | None = None,
    qk_norm: Norm | None = None,
    qk_norm_per_head: bool = True,
    norm_after_rope: bool = False,
    v_norm: Norm | None = None,
    window: int = 0,
    causal: bool = True,
    sinks: bool = False,
    gate: bool = False,
    shared_kv: bool = False,
    foreign_kv: bool = False,
    fused: str = "",
    out: str = "o_proj",
    dropout: float = 0.0,
    eager: bool = False,
    prefix: str = "",
) -> list[Operator]:
    """Self-attention reading tensor ``x``: q/k/v projections, optional q/k norm and rope, core, output projection.

    ``qk_norm`` is a template (its kind/bias/affine are used; dims are filled in): per head with one weight of
    ``head_dim``, or, with ``qk_norm_per_head=False``, over the whole projection; it runs before the rope unless
    ``norm_after_rope``.  ``v_norm`` is the same for the values.  ``gate`` doubles the query projection with a
    sigmoid output gate (Qwen3-Next).  ``shared_kv`` reuses the key projection as values.  ``foreign_kv`` has no
    keys and values of its own: the core reads those of an earlier layer (its ``ins`` is the query alone).
    ``fused`` names one projection that holds q, k and v.  The last operator is the output projection,
    ``{prefix}{out}``.
    """
    p = prefix
    v_dim = v_dim or head_dim
    widths = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * v_dim}
    names = {which: f"{p}{fused}" if fused else f"{p}{which}_proj" for which in widths}
    if shared_kv:
        names["v"] = names["k"]
    if fused:
        made = {names["q"]: sum(widths.values())}
    else:
        made = {names["q"]: widths["q"] * (2 if gate else 1)}
        if not foreign_kv:
            made |= {names["k"]: widths["k"], names["v"]: widths["v"]}
    ops: list[Operator] = [
        Linear(name=name, ins=(x,), d_in=hidden, d_out=width, bias=qkv_bias, split="col") for name, width in made.items()
    ]
    now = dict(names)
    turn = head_dim if rotary is None else rotary
    steps = ("rope", "norm") if norm_after_rope else ("norm", "rope")
    for step in steps:
        for which, n in (("q", heads),) if foreign_kv else (("q", heads), ("k", kv_heads)):
            dim, groups = (head_dim, n) if qk_norm_per_head else (n * head_dim, 1)
            name = f"{p}{which}_{step}"
            if step == "norm" and qk_norm is not None:
                ops.append(replace(qk_norm, name=name, ins=(now[which],), dim=dim, groups=groups, split=True))
            elif step == "rope" and turn:
                ops.append(Rope(name=name, ins=(now[which],), heads=n, dim=head_dim, rotary=turn))
            else:
                continue
            now[which] = name
    if v_norm is not None and not foreign_kv:
        ops.append(replace(v_norm, name=f"{p}v_norm", ins=(now["v"],), dim=v_dim, groups=kv_heads, split=True))
        now["v"] = f"{p}v_norm"
    extra = (Weight(f"{p}sinks", (heads,), "tp"),) if sinks else ()
    ops.append(
        Attention(
            name=f"{p}attn",
            ins=(now["q"],) if foreign_kv else (now["q"], now["k"], now["v"]),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            v_dim=v_dim,
            causal=causal,
            window=window,
            extra=extra,
            dropout=dropout,
            fused=not eager,
        )
    )
    if gate:
        ops.append(Gate(name=f"{p}attn_gate", ins=(names["q"], f"{p}attn"), fn="sigmoid", features=heads * v_dim))
    ops.append(Linear(name=f"{p}{out}", d_in=heads * v_dim, d_out=hidden, bias=o_bias, split="row"))
    return ops


def mla(
    x: str,
    *,
    hidden: int,
    heads: int,
    q_lora: int | None,
    kv_lora: int,
    nope: int,
    rope: int,
    v_dim: int,
    bias: bool = False,
    out_gate: bool = False,
) -> list[Operator]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): low-rank q and kv projections with norms.

    ``out_gate`` multiplies the core's output with a sigmoid of a projection of ``x`` (Kimi-K3).
    """
    qk = nope + rope
    ops: list[Operator] = []
    if q_lora:
        ops += [
            Linear(name="q_a_proj", ins=(x,), d_in=hidden, d_out=q_lora, bias=bias),
            Norm(name="q_a_layernorm", dim=q_lora),
            Linear(name="q_b_proj", d_in=q_lora, d_out=heads * qk, split="col"),
        ]
        q = "q_b_proj"
    else:
        ops.append(Linear(name="q_proj", ins=(x,), d_in=hidden, d_out=heads * qk, split="col"))
        q = "q_proj"
    ops += [
        Linear(name="kv_a_proj_with_mqa", ins=(x,), d_in=hidden, d_out=kv_lora + rope, bias=bias),
        Norm(name="kv_a_layernorm", dim=kv_lora),
        Linear(name="kv_b_proj", d_in=kv_lora, d_out=heads * (nope + v_dim), split="col"),
        Rope(name="q_rope", ins=(q,), heads=heads, dim=qk, rotary=rope),
        Slice(name="v_slice", ins=("kv_b_proj",), features=heads * v_dim),
        Rope(name="k_rope", ins=("kv_b_proj",), heads=heads, dim=qk, rotary=rope),
        Attention(name="attn", ins=("q_rope", "k_rope", "v_slice"), heads=heads, kv_heads=heads, head_dim=qk, v_dim=v_dim),
    ]
    if out_gate:
        width = heads * v_dim
        ops.append(Linear(name="g_proj", ins=(x,), d_in=hidden, d_out=width, split="col"))
        ops.append(Gate(name="attn_gate", ins=("g_proj", "attn"), fn="sigmoid", features=width))
    ops += [
        Linear(name="o_proj", d_in=heads * v_dim, d_out=hidden, bias=bias, split="row"),
    ]
    return ops
