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
    q_w, k_w, v_w = heads * head_dim, kv_heads * head_dim, kv_heads * v_dim
    rotary = head_dim if rotary is None else rotary
    ops: list[Operator] = []
    if fused:
        q = k = v = f"{p}{fused}"
        ops.append(Linear(name=q, ins=(x,), d_in=hidden, d_out=q_w + k_w + v_w, bias=qkv_bias, split="col"))
    else:
        q, k, v = f"{p}q_proj", f"{p}k_proj", f"{p}v_proj" if not shared_kv else f"{p}k_proj"
        widths = {q: q_w * (2 if gate else 1)}
        if not foreign_kv:
            widths |= {k: k_w, v: v_w}
        ops += [
            Linear(name=name, ins=(x,), d_in=hidden, d_out=width, bias=qkv_bias, split="col")
            for name, width in widths.items()
        ]
    q_gate = q
    sides = [("q", heads)] if foreign_kv else [("q", heads), ("k", kv_heads)]
    now = {"q": q, "k": k}

    def norms() -> None:
        if qk_norm is None:
            return
        for which, n in sides:
            dim, groups = (head_dim, n) if qk_norm_per_head else (n * head_dim, 1)
            name = f"{p}{which}_norm"
            ops.append(replace(qk_norm, name=name, ins=(now[which],), dim=dim, groups=groups, split=True))
            now[which] = name

    if not norm_after_rope:
        norms()
    if rotary:
        for which, n in sides:
            name = f"{p}{which}_rope"
            ops.append(Rope(name=name, ins=(now[which],), heads=n, dim=head_dim, rotary=rotary))
            now[which] = name
    if norm_after_rope:
        norms()
    if v_norm is not None and not foreign_kv:
        ops.append(replace(v_norm, name=f"{p}v_norm", ins=(v,), dim=v_dim, groups=kv_heads, split=True))
        v = f"{p}v_norm"
    extra = (Weight(f"{p}sinks", (heads,), "tp"),) if sinks else ()
    ops.append(
        Attention(
            name=f"{p}attn", ins=(now["q"],) if foreign_kv else (now["q"], now["k"], v), heads=heads,
            kv_heads=kv_heads, head_dim=head_dim, v_dim=v_dim, causal=causal, window=window, extra=extra,
            dropout=dropout, fused=not eager,
        )
    )  # fmt: skip
    if gate:
        ops.append(Gate(name=f"{p}attn_gate", ins=(q_gate, f"{p}attn"), fn="sigmoid", features=heads * v_dim))
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
        Attention(
            name="attn", ins=("q_rope", "k_rope", "v_slice"), heads=heads, kv_heads=heads, head_dim=qk, v_dim=v_dim
        ),
    ]
    if out_gate:
        width = heads * v_dim
        ops.append(Linear(name="g_proj", ins=(x,), d_in=hidden, d_out=width, split="col"))
        ops.append(Gate(name="attn_gate", ins=("g_proj", "attn"), fn="sigmoid", features=width))
    ops += [
        Linear(name="o_proj", d_in=heads * v_dim, d_out=hidden, bias=bias, split="row"),
    ]
    return ops
