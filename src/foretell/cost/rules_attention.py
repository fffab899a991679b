"""Attention: rotary embedding, scores or fused kernels, and the prompt attention of adapters."""

from __future__ import annotations

from collections.abc import Callable

from foretell.arch.operators import Attention, PromptAttention, Rope
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor


@rule(Rope)
def rope(e: Emitter, op: Rope, x: Tensor) -> Tensor:
    """Rotation: linear in ``x``, so only the (shared, small) tables are kept."""
    w = float(op.width)
    unit = e.style.compute
    if e.style.rope == "composite":
        unit, half = max(x.unit, e.style.residual), e.work(w / 2, x.unit, "tp")
        size = e.size(w, unit, "tp")
        a = e.tape.node(f"{op.name}.cos", [x], size, unit=unit)
        turned = e.tape.node(f"{op.name}.turn", [x], e.size(w, x.unit, "tp"), work=half, bwork=half, unit=x.unit)
        b = e.tape.node(f"{op.name}.sin", [turned], size, unit=unit)
        return e.tape.node(op.name, [a, b], size, passes=True, unit=unit)
    work = e.work(w, unit, "tp") if e.style.rope == "eager" else Lin()
    if e.style.rope == "inplace":  # the projection itself is turned
        return e.tape.node(op.name, [x], view=True)
    if e.style.rope == "complex":
        work = e.work(w, 4.0, "tp") * 2
    return e.tape.node(op.name, [x], e.size(w, unit, "tp"), work=work, bwork=work, unit=unit)


@rule(Attention)
def attention(e: Emitter, op: Attention, q: Tensor, k: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """Attention core: one fused kernel, or scores written out where the style or the operator asks for them."""
    core = _written_out if e.style.attention == "eager" or not op.fused else _fused
    return core(e, op, q, k or e.outside("keys"), v or e.outside("values"))


def _repeated(e: Emitter, op: Attention, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values repeated to the number of query heads, for code that cannot share them."""
    if op.kv_heads == op.heads:
        return k, v
    k = e.tape.node(f"{op.name}.repeat_k", [k], e.size(op.heads * op.head_dim, k.unit, "tp"), unit=k.unit)
    return k, e.tape.node(f"{op.name}.repeat_v", [v], e.size(op.heads * op.v_dim, v.unit, "tp"), unit=v.unit)


def _fused(e: Emitter, op: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v, out and the fp32 log-sum-exp are kept (FlashAttention-2, arXiv 2307.08691); flash attention's backward
    holds an fp32 accumulator of dq and a row sum."""
    st, unit = e.style, e.style.compute
    if st.autocast and st.rope == "composite":  # tables wider than the operands: cast at the call
        q = cast(e, q, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast")
        k = cast(e, k, unit, "tp", op.kv_heads * op.head_dim, f"{op.name}.cast")
        v = cast(e, v, unit, "tp", op.kv_heads * op.v_dim, f"{op.name}.cast")
    if st.gqa_expand or st.attention == "efficient":
        k, v = _repeated(e, op, k, v)
    keys_and_values = op.kv_heads * (op.head_dim + op.v_dim)
    out_size = e.size(op.width, unit, "tp")
    saved = [q, k, v, e.tape.extra(f"{op.name}.lse", e.size(op.heads, 4.0, "tp"))]
    work, bwork = Lin(), Lin()
    if st.attention == "flash":
        bwork = e.work(op.heads * op.head_dim, 4.0, "tp") + e.work(op.heads, 4.0, "tp")
    if st.packed_kv:
        k = v = e.tape.node(f"{op.name}.pack_kv", [k, v], e.size(keys_and_values, unit, "tp"), unit=unit)
        saved = [q, k, saved[-1]]
    if st.ring:  # keys and values travel from rank to rank, and in the backward pass their gradients as well
        saved.append(e.tape.extra(f"{op.name}.ring", out_size))
        work = e.work(keys_and_values, unit, "tp") * 2.0
        bwork = bwork + work + e.work(op.heads * op.head_dim + keys_and_values, unit, "tp") * 2.0
    out = e.tape.node(
        op.name,
        [q, k, v],
        out_size,
        saved=saved,
        work=work,
        bwork=bwork,
        wgrad=e.weights.gradient(op),
        trainable=e.weights.trains(op),
        unit=unit,
    )
    if out.grad:
        e.tape.nodes[-1].saved = (*saved, out)
    if st.heads_first or op.heads_first:
        out = e.tape.node(f"{op.name}.reshape", [out], out_size, unit=unit)
    return out


def _written_out(e: Emitter, op: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores as tensors: product, mask, softmax.  The probabilities are kept in ``softmax`` bytes and again in compute
    bytes."""
    st, unit = e.style, e.style.compute
    rows, n = score_rows(e, op, k)
    k, v = _repeated(e, op, k, v)
    narrow = q.unit == unit
    if st.autocast:
        q = cast(e, q, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_q")
        k = cast(e, k, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_k")

    def square(unit: float) -> Lin:
        return Lin.of("activations", f"{rows}/tp", n * unit)

    s = _masked(e, op, e.tape.node(f"{op.name}.scores", [q, k], square(unit), saved=[q, k], unit=unit), square)
    p = _probabilities(e, op, s, square)
    if st.softmax != unit:
        held = [s] if st.frames and narrow else []  # cast to q's format before the name is rebound
        p = e.tape.node(f"{op.name}.softmax_cast", [p], square(unit), unit=unit, extends=held)
    if op.dropout if st.attention_dropout is None else st.attention_dropout:
        m = e.tape.extra(f"{op.name}.mask", square(1.0))
        p = e.tape.node(f"{op.name}.dropout", [p], square(unit), saved=[m], unit=unit)
    if st.frames:
        e.frame.append(p)
    grad, trains = e.weights.gradient(op), e.weights.trains(op)
    return e.tape.node(op.name, [p, v], e.size(op.width, unit, "tp"), saved=[p, v], wgrad=grad, trainable=trains, unit=unit)


def _masked(e: Emitter, op: Attention, s: Tensor, square: Callable[[float], Lin]) -> Tensor:
    """Scores scaled, capped (Gemma 2: ``cap * tanh(s / cap)``) and masked; one kernel may do it with the softmax."""
    st, unit = e.style, s.unit
    if st.softmax != unit or st.scores == "composite":
        s = e.tape.node(f"{op.name}.scale", [s], square(unit), unit=unit)
    if op.softcap:
        s = e.tape.node(f"{op.name}.tanh", [s], square(unit), unit=unit)
        e.tape.nodes[-1].saved = (s,) if s.grad else ()
        s = e.tape.node(f"{op.name}.cap", [s], square(unit), unit=unit)
    if st.mask:
        unit = max(unit, st.mask)
        s = e.tape.node(f"{op.name}.mask", [s], square(unit), passes=True, unit=unit)
    return s


def _probabilities(e: Emitter, op: Attention, s: Tensor, square: Callable[[float], Lin]) -> Tensor:
    """Softmax of the scores, in ``softmax`` bytes; composite code makes an fp32 copy of half-precision scores first, and
    its backward one more tensor of the gradient's size."""
    st = e.style
    composite = st.scores == "composite"
    if composite and st.softmax_copy and s.unit < st.softmax:
        s = e.tape.node(f"{op.name}.float", [s], square(st.softmax), unit=st.softmax)
    product = square(st.softmax).as_category("temporaries") if composite else Lin()
    p = e.tape.node(f"{op.name}.softmax", [s], square(st.softmax), bwork=product, unit=st.softmax)
    e.tape.nodes[-1].saved = ((s, p) if st.softmax_input and composite else (p,)) if p.grad else ()
    return p


def score_rows(e: Emitter, op: Attention, k: Tensor) -> tuple[str, float]:
    """Monomial and coefficient of the elements of a score tensor: query rows times keys each of them sees."""
    keys, per = e.places.get(k, e.home)
    n = float(op.heads) * e.per
    if keys == "B":
        return e.rows, n * (min(per, op.window) if op.window else per)
    both = {"TT": "TT", "EE": "EE", "TE": "TE", "ET": "TE"}.get(e.rows + keys)
    return both or {"T": "S", "E": "E"}.get(keys, keys), n


@rule(PromptAttention)
def prompt_attention(e: Emitter, op: PromptAttention, q: Tensor, y: Tensor) -> Tensor:
    """``y + gate * attention(q, prompt)`` (litgpt/adapter.py): the second attention keeps q and its output."""
    size = e.size(op.width, e.style.compute, "tp")
    ay = e.tape.node(f"{op.name}.attn", [q], size, saved=[q], trainable=True, unit=e.style.compute)
    e.tape.nodes[-1].saved = (q, ay)
    gated = e.tape.node(f"{op.name}.gate", [ay], size, saved=[ay], trainable=True, unit=e.style.compute)
    return e.tape.node(op.name, [y, gated], size, passes=True, unit=e.style.compute)
