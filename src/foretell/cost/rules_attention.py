"""Attention: rotary embedding, scores or fused kernels, and the prompt attention of adapters."""

from __future__ import annotations

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
    """Attention core.

    flash: q, k, v, out and the fp32 log-sum-exp (FlashAttention-2, arXiv 2307.08691); its backward holds an
    fp32 accumulator of dq.  eager: the probabilities, in ``softmax`` bytes and again in compute bytes.
    """
    st = e.style
    form = st.attention if op.fused else "eager"
    unit = st.compute
    out_size = e.size(op.width, unit, "tp")
    trains = e.weights.trains(op)
    grad = e.weights.gradient(op)
    k, v = k or e.outside("keys"), v or e.outside("values")
    scores, n = score_rows(e, op, k)
    if st.autocast and st.rope == "composite" and form != "eager":  # tables wider than the operands: cast at the call
        q, k, v = (
            cast(e, t, unit, "tp", n * d, f"{op.name}.cast")
            for t, n, d in ((q, op.heads, op.head_dim), (k, op.kv_heads, op.head_dim), (v, op.kv_heads, op.v_dim))
        )
    if op.kv_heads != op.heads and (st.gqa_expand or form in ("eager", "efficient")):
        k = e.tape.node(f"{op.name}.repeat_k", [k], e.size(op.heads * op.head_dim, k.unit, "tp"), unit=k.unit)
        v = e.tape.node(f"{op.name}.repeat_v", [v], e.size(op.heads * op.v_dim, v.unit, "tp"), unit=v.unit)
    narrow = q.unit == unit
    if st.autocast and form == "eager":
        q = cast(e, q, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_q")
        k = cast(e, k, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_k")
    if form != "eager":
        lse = e.tape.extra(f"{op.name}.lse", e.size(op.heads, 4.0, "tp"))
        accumulator = e.work(op.heads * op.head_dim, 4.0, "tp") + e.work(op.heads, 4.0, "tp")
        node_saved = [q, k, v, lse]
        ring = e.work(op.kv_heads * (op.head_dim + op.v_dim), unit, "tp") * 2.0 if st.ring else Lin()
        if form in ("te", "efficient"):
            accumulator = Lin()
        if st.packed_kv:
            pack = e.tape.node(
                f"{op.name}.pack_kv", [k, v], e.size(op.kv_heads * (op.head_dim + op.v_dim), unit, "tp"), unit=unit
            )
            k = v = pack
            node_saved = [q, pack, lse]
        if st.ring:
            node_saved.append(e.tape.extra(f"{op.name}.ring", out_size))
            accumulator = (
                accumulator + ring + e.work(op.heads * op.head_dim + op.kv_heads * (op.head_dim + op.v_dim), unit, "tp") * 2.0
            )
        out = e.tape.node(
            op.name, [q, k, v], out_size, saved=node_saved, work=ring, bwork=accumulator, wgrad=grad, trainable=trains, unit=unit
        )
        if out.grad:
            e.tape.nodes[-1].saved = (*node_saved, out)
        if st.heads_first or op.heads_first:
            out = e.tape.node(f"{op.name}.reshape", [out], out_size, unit=unit)
        return out

    def square(unit: float) -> Lin:
        return Lin.of("activations", f"{scores}/tp", n * unit)

    s = e.tape.node(f"{op.name}.scores", [q, k], square(unit), saved=[q, k], unit=unit)
    if st.softmax != unit or st.scores == "composite":
        s = e.tape.node(f"{op.name}.scale", [s], square(unit), unit=unit)
    if op.softcap:
        s = e.tape.node(f"{op.name}.tanh", [s], square(unit), unit=unit)
        e.tape.nodes[-1].saved = (s,) if s.grad else ()
        s = e.tape.node(f"{op.name}.cap", [s], square(unit), unit=unit)
    if st.mask:
        unit = max(unit, st.mask)
        s = e.tape.node(f"{op.name}.mask", [s], square(unit), passes=True, unit=unit)
    masked = s
    if st.scores == "composite" and st.softmax_copy and unit < st.softmax:
        s = e.tape.node(f"{op.name}.float", [s], square(st.softmax), unit=st.softmax)
    unit = st.compute
    product = square(st.softmax).as_category("temporaries") if st.scores == "composite" else Lin()
    p = e.tape.node(f"{op.name}.softmax", [s], square(st.softmax), bwork=product, unit=st.softmax)
    e.tape.nodes[-1].saved = ((s, p) if st.softmax_input and st.scores == "composite" else (p,)) if p.grad else ()
    if st.softmax != unit:
        held = [masked] if st.frames and narrow else []  # cast to q's format before the name is rebound
        p = e.tape.node(f"{op.name}.softmax_cast", [p], square(unit), unit=unit, extends=held)
    if op.dropout if st.attention_dropout is None else st.attention_dropout:
        m = e.tape.extra(f"{op.name}.mask", square(1.0))
        p = e.tape.node(f"{op.name}.dropout", [p], square(unit), saved=[m], unit=unit)
    if st.frames:
        e.frame.append(p)
    return e.tape.node(op.name, [p, v], out_size, saved=[p, v], wgrad=grad, trainable=trains, unit=unit)


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
