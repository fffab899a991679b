"""Exchanges of a block: of tensor parallelism, of routed tokens, and of context parallelism."""

from __future__ import annotations

from foretell.arch.operators import Attention, Experts, Head, Linear
from foretell.cost.saved import Emitter
from foretell.cost.works_kinds import Exchange

__all__ = ["exchanges"]

Both = tuple[list[Exchange], list[Exchange]]
"""Forward and backward."""


def exchanges(e: Emitter) -> Both:
    """Return what the ranks of an emitted block exchange in its forward and in its backward pass."""
    out: Both = ([], [])
    _tensor_parallel(e, out)
    _routed(e, out)
    _ring(e, out)
    return out


def _tensor_parallel(e: Emitter, out: Both) -> None:
    """Exchanges of tensor parallelism (arXiv 1909.08053), or with sequence parallelism (arXiv 2205.05198)."""
    st, seen = e.style, set()
    for span in e.spans:
        op = span.op
        split = "col" if isinstance(op, Head) else op.split if isinstance(op, Linear) else ""
        if not split:
            continue
        width = {Head: "dim", Linear: "d_in"}.get(type(op), "") if split == "col" else "d_out"
        size = {f"{span.rows[0]}/1": span.rows[1] * float(getattr(op, width)) * st.compute}
        if split == "col":
            source = span.ins[0] if span.ins else None
            if source in seen:
                continue
            seen.add(source)
            grads = source is None or source.grad
            if st.sequence_parallel:
                out[0].append(Exchange(op.name, "tp", "all_gather", size))
                if grads:
                    out[1].append(Exchange(op.name, "tp", "reduce_scatter", size))
                if e.weights.trains(op):
                    out[1].append(Exchange(f"{op.name}.again", "tp", "all_gather", size))
            elif grads:
                out[1].append(Exchange(op.name, "tp", "all_reduce", size))
        elif st.sequence_parallel:
            out[0].append(Exchange(op.name, "tp", "reduce_scatter", size))
            out[1].append(Exchange(op.name, "tp", "all_gather", size))
        else:
            out[0].append(Exchange(op.name, "tp", "all_reduce", size))


def _routed(e: Emitter, out: Both) -> None:
    """Dispatch and combine of routed tokens: each once forward and once backward, in every layer with experts."""
    for span in e.spans:
        op = span.op
        if isinstance(op, Experts):
            size = {f"{span.rows[0]}/r": span.rows[1] * op.top_k * op.dim * e.style.compute}
            for part in ("dispatch", "combine"):
                exchange = Exchange(f"{op.name}.{part}", "ep", "all_to_all", size, float(op.top_k))
                out[0].append(exchange)
                out[1].append(exchange)


def _ring(e: Emitter, out: Both) -> None:
    """Keys and values that context parallelism passes round (Ring Attention, arXiv 2310.01889), backward their gradients too."""
    for span in e.spans:
        op = span.op
        if isinstance(op, Attention) and op.memory == "self" and span.rows[0] == "T":
            size = {"T/tp": float(op.kv_heads * (op.head_dim + op.v_dim)) * e.style.compute}
            out[0].append(Exchange(op.name, "cp", "ring", size))
            out[1].append(Exchange(op.name, "cp", "ring", {key: 2.0 * v for key, v in size.items()}))
