"""Operators that change the rows: convolutions, pools and recurrences over the sequence."""

from __future__ import annotations

from foretell.arch.operators import Conv, Pool, Scan
from foretell.cost.rules_matmul import cast_weights, narrowed
from foretell.cost.rules_scan import convolved, widened, written_out
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor


@rule(Conv)
def conv(e: Emitter, op: Conv, *xs: Tensor) -> Tensor:
    """Convolution: keeps its input; without one it reads the sample itself (an image, a waveform)."""
    st, shard = e.style, "tp" if op.split else "sp"
    trains = e.weights.trains(op)
    source = list(xs)
    if not source:
        e.rows, e.per = "B", float(op.source or op.positions or 1)
        unit = 4.0 if st.autocast else st.compute
        source = [Tensor("sample", e.size(op.c_in, unit, "sp"), False, unit=unit)]
    written = e.style.scan == "eager" and not op.positions
    if written:
        source = [widened(e, op, x) for x in source]
    if st.autocast:
        source = [cast(e, x, st.compute, shard, op.c_in / len(source), f"{op.name}.cast") for x in source]
    copies = cast_weights(e, op, trains)
    if op.positions:
        e.rows, e.per = "B", float(op.positions)
    out = e.tape.node(
        op.name,
        source,
        e.size(op.c_out, st.compute, shard),
        saved=[*source, *copies] if trains else copies,
        wgrad=e.weights.gradient(op),
        narrow=narrowed(e, copies),
        trainable=trains,
        unit=st.compute,
    )
    return convolved(e, op, out) if written else out


@rule(Pool)
def pool(e: Emitter, op: Pool, *xs: Tensor) -> Tensor:
    """Change of resolution: a view keeps its source alive, a maximum keeps its source and the indices."""
    if op.positions:
        e.rows, e.per = "B", float(op.positions)
    unit = xs[0].unit if xs else e.style.residual
    if op.kind == "view":
        return e.tape.node(op.name, [xs[0]], view=True)
    saved = []
    if op.kind == "max":
        saved = [xs[0], e.tape.extra(f"{op.name}.indices", e.size(op.features, 8.0, "sp"))]
    return e.tape.node(op.name, list(xs), e.size(op.features, unit, "sp"), saved=saved, unit=unit)


@rule(Scan)
def scan(e: Emitter, op: Scan, *xs: Tensor) -> Tensor:
    """Fused recurrence: keeps its inputs and the chunk states."""
    if e.style.scan == "eager" and op.kind == "mamba1":
        return written_out(e, op, *xs)
    stored, unit = float(op.stored) * 4.0, e.style.compute
    states = e.tape.extra(f"{op.name}.states", e.size(stored, 1.0, "tp"))
    trains = e.weights.trains(op)
    return e.tape.node(
        op.name,
        list(xs),
        e.size(op.d_inner, unit, "tp"),
        saved=[*xs, states],
        wgrad=e.weights.gradient(op),
        trainable=trains,
        unit=unit,
    )
