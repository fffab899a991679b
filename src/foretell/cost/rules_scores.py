"""Attention whose scores are tensors: eager code, and PyTorch's composite of products where no fused kernel fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from foretell.arch.architecture import Block
from foretell.arch.operators import Attention
from foretell.cost.linear import Lin, total
from foretell.cost.saved import ROWS, Emitter, cast, sized
from foretell.cost.tape import Tensor
from foretell.recipe.style import Style


def eager(style: Style, op: Attention) -> bool:
    """Whether scores are written out, by choice or for want of anything else."""
    return style.attention == "eager" or not op.fused or (op.unfused and style.composite and style.attention == "sdpa")


def mask_unit(style: Style) -> float:
    """Bytes per element of the mask that is added to scores (0: one kernel masks and normalises)."""
    return style.mask or (style.residual if style.composite else 0.0)


def repeated(e: Emitter, op: Attention, which: Literal["k", "v"], t: Tensor) -> Tensor:
    """Keys or values repeated to the number of query heads, for code that cannot share them."""
    if op.kv_heads == op.heads:
        return t
    width = op.heads * (op.head_dim if which == "k" else op.v_dim)
    many = e.like(e.tape.node(f"{op.name}.repeat_{which}", [t], sized(e, t, width, t.unit), unit=t.unit), t)
    e.heads_first.add(many)
    return many


def _batched(e: Emitter, op: Attention, t: Tensor, width: float, name: str) -> Tensor:
    """A copy that a batched product can read as a list of matrices, unless it lies so already (``aten`` ``matmul``)."""
    if not e.style.composite or t in e.heads_first:
        return t
    return e.like(e.tape.node(f"{op.name}.{name}", [t], sized(e, t, width, t.unit), unit=t.unit), t)


def written_out(e: Emitter, op: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores as tensors: product, mask, softmax.  The probabilities are kept in ``softmax`` bytes and again in compute
    bytes, or in their own format alone where the model's code never widens them."""
    st, unit, given = e.style, e.style.compute, q.unit
    rows, n = score_rows(e, op, k)
    k, v = repeated(e, op, "k", k), repeated(e, op, "v", v)
    if st.autocast:
        q = cast(e, q, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_q")
        k = cast(e, k, unit, "tp", op.heads * op.head_dim, f"{op.name}.cast_k")
    q = _batched(e, op, q, op.heads * op.head_dim, "rows_q")
    k = _batched(e, op, k, op.heads * op.head_dim, "rows_k")
    v = _batched(e, op, v, op.heads * op.v_dim, "rows_v")

    def square(unit: float) -> Lin:
        return Lin.of("activations", f"{rows}/tp", n * unit)

    s = e.tape.node(f"{op.name}.scores", [q, k], square(unit), saved=[q, k, *buckets(e, op)], unit=unit)
    s = _masked(e, op, s, square)
    p = _probabilities(e, op, s, square)
    wanted = p.unit if op.narrow == "kept" else unit if op.narrow or not st.composite else max(given, unit)
    if p.unit != wanted:
        held = [s] if st.frames and given == unit else []  # cast to q's format before the name is rebound
        p = e.tape.node(f"{op.name}.softmax_cast", [p], square(wanted), unit=wanted, extends=held)
    if op.dropout if st.attention_dropout is None else st.attention_dropout:
        m = e.tape.extra(f"{op.name}.mask", square(1.0))
        p = e.tape.node(f"{op.name}.dropout", [p], square(wanted), saved=[m], unit=wanted)
    if st.frames:
        e.frame.append(p)
    if p.unit != unit:  # by autocast
        p = e.tape.node(f"{op.name}.cast_p", [p], square(unit), unit=unit)
    grad, trains, size = e.weights.gradient(op), e.weights.trains(op), e.size(op.width, unit, "tp")
    out = e.tape.node(op.name, [p, v], size, saved=[p, v], wgrad=grad, trainable=trains, unit=unit)
    return e.tape.node(f"{op.name}.reshape", [out], size, unit=unit) if st.composite else out


def _masked(e: Emitter, op: Attention, s: Tensor, square: Callable[[float], Lin]) -> Tensor:
    """Scores scaled, capped (Gemma 2: ``cap * tanh(s / cap)``) and masked; one kernel may do it with the softmax."""
    st, unit = e.style, s.unit
    if st.softmax != unit or st.scores == "composite":
        s = e.tape.node(f"{op.name}.scale", [s], square(unit), unit=unit)
    if op.softcap:
        s = e.tape.node(f"{op.name}.tanh", [s], square(unit), unit=unit)
        e.tape.nodes[-1].saved = (s,) if s.grad else ()
        s = e.tape.node(f"{op.name}.cap", [s], square(unit), unit=unit)
    if mask_unit(st):
        unit = max(unit, mask_unit(st))
        s = e.tape.node(f"{op.name}.mask", [s], square(unit), passes=True, unit=unit)
    return s


def _probabilities(e: Emitter, op: Attention, s: Tensor, square: Callable[[float], Lin]) -> Tensor:
    """Softmax of the scores, in ``softmax`` bytes; composite code makes an fp32 copy of half-precision scores first, and
    its backward one more tensor of the gradient's size."""
    st = e.style
    composite = st.scores == "composite"
    column = Lin()
    if st.composite and any(w.name.endswith("sinks") for w in op.extra):  # a column more, the largest score subtracted (gpt-oss)
        column = e.size(op.heads, 1.0, "tp")
        s = e.tape.node(f"{op.name}.sinks", [s], square(s.unit) + column * s.unit, unit=s.unit)
        kept = [e.tape.extra(f"{op.name}.largest", column * 8.0)]
        s = e.tape.node(f"{op.name}.less", [s], s.size, saved=kept, unit=s.unit)
    wide = s.unit if composite and op.narrow and not st.autocast else st.softmax
    if composite and st.softmax_copy and s.unit < wide:
        s = e.tape.node(f"{op.name}.float", [s], square(wide) + column * wide, unit=wide)
    size = square(wide) + column * wide
    p = e.tape.node(f"{op.name}.softmax", [s], size, bwork=size.as_category("temporaries") if composite else Lin(), unit=wide)
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


PAIRS = {"T": "SS", "E": "FF"}
"""Pairs of positions of a block's sequence, whatever the batch."""


def buckets(e: Emitter, op: Attention) -> list[Tensor]:
    """Which entry of a trained table of position biases each pair reads (int64; T5): kept by the layer that has the table."""
    if op.position != "table" or not op.extra or not e.style.composite:
        return []
    return [e.tape.extra(f"{op.name}.buckets", Lin.of("activations", f"{PAIRS[e.rows]}/1", 8.0))]


def biases(block: Block, style: Style) -> Lin:
    """Biases by position that the layer with the table makes for all: of pairs of positions, and zeros in cross attention."""
    cores = [op for op in block.ops if isinstance(op, Attention) and op.position in ("table", "zeros")]
    if not any(op.extra for op in cores):
        return Lin()
    pairs = {"table": PAIRS.get(ROWS[block.stream], "1"), "zeros": "SF"}
    return total(Lin.of("mask", f"{pairs[op.position]}/tp", op.heads * style.residual) for op in cores)


def by_products(e: Emitter, op: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's own composite (``aten/src/ATen/native/transformers/attention.cpp`` ``_scaled_dot_product_attention_math``).

    It works in fp32 whatever the operands' format; q and k are scaled before their product, which wants q contiguous and
    keys and values repeated; scores are masked in place.
    """
    unit, rows = q.unit, score_rows(e, op, k)
    wide = [
        cast(e, t, 4.0, "tp", width, f"{op.name}.float")
        for t, width in (
            (q, op.heads * op.head_dim),
            (k, op.kv_heads * op.head_dim),
            (v, op.kv_heads * op.v_dim),
        )
    ]
    q = e.tape.node(f"{op.name}.scale_q", [wide[0]], wide[0].size, unit=4.0)
    q = _batched(e, op, q, op.heads * op.head_dim, "rows_q")
    k, v = wide[1:]
    if not op.broadcast:
        k, v = repeated(e, op, "k", k), repeated(e, op, "v", v)
    k = e.tape.node(f"{op.name}.scale_k", [k], k.size, unit=4.0)
    k = repeated(e, op, "k", k) if op.broadcast else k
    square = Lin.of("activations", f"{rows[0]}/tp", rows[1] * 4.0)
    mask = Lin.of("temporaries", "SS/1", 5.0) if op.causal else Lin()
    s = e.tape.node(f"{op.name}.scores", [q, k], square, saved=[q, k], work=mask, unit=4.0)
    p = e.tape.node(f"{op.name}.softmax", [s], square, bwork=square.as_category("temporaries"), unit=4.0)
    e.tape.nodes[-1].saved = (p,) if p.grad else ()
    v = repeated(e, op, "v", v) if op.broadcast else v  # by the product itself
    out = e.tape.node(op.name, [p, v], e.size(op.width, 4.0, "tp"), saved=[p, v], unit=4.0)
    out = cast(e, out, unit, "tp", op.width, f"{op.name}.to")
    return e.tape.node(f"{op.name}.reshape", [out], e.size(op.width, unit, "tp"), unit=unit)


__all__ = ["PAIRS", "biases", "buckets", "by_products", "eager", "mask_unit", "repeated", "score_rows", "written_out"]
