"""Norms, activations, gates, sums, dropout, lookups: operators that touch each element once."""

from __future__ import annotations

from foretell.arch.operators import Act, Add, Dropout, Embedding, Gate, Mul, Norm, Parameters, Slice
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor


@rule(Norm)
def norm(e: Emitter, op: Norm, x: Tensor) -> Tensor:
    """Norms.  eager = the composite fp32 code of transformers' RMSNorm classes."""
    st, w = e.style, float(op.dim * op.groups)
    shard = "tp" if op.split else "sp"
    trains = e.weights.trains(op)
    stats = e.tape.extra(f"{op.name}.stats", e.size(op.groups * (2 if op.kind == "layer" else 1), 4.0, shard))
    grad = e.weights.gradient(op)
    unit = x.unit
    if st.autocast and op.kind in ("layer", "group") and x.unit < 4.0:  # among autocast's fp32 operators
        x = cast(e, x, 4.0, shard, w, f"{op.name}.cast")
        unit = 4.0
    if op.kind in ("batch", "group"):  # statistics per channel or per group and sample: a few kilobytes
        return e.tape.node(op.name, [x], x.size, saved=[x] if trains or x.grad else [], wgrad=grad, trainable=trains, unit=unit)
    if st.norm == "eager" and op.kind in ("rms", "l2") and not op.fused:
        wide = cast(e, x, 4.0, shard, w, f"{op.name}.float")
        more = e.work(w, 4.0, shard) * 2.0 if st.norm_pow else Lin()
        squares = e.tape.node(f"{op.name}.pow", [wide], e.size(w, 4.0, shard), saved=[wide], bwork=more, unit=4.0)
        inverse = e.tape.node(f"{op.name}.rsqrt", [squares], stats.size, saved=[stats], unit=4.0)
        y = e.tape.node(f"{op.name}.mul", [wide, inverse], e.size(w, 4.0, shard), saved=[wide], unit=4.0)
        if st.norm_scale_wide and op.affine and op.kind == "rms":
            y = e.tape.node(
                op.name, [y], e.size(w, 4.0, shard), saved=[y] if trains else [], wgrad=grad, trainable=trains, unit=4.0
            )
            return cast(e, y, unit, shard, w, f"{op.name}.to")
        y = cast(e, y, unit, shard, w, f"{op.name}.to")
        if op.affine and op.kind == "rms":
            y = e.tape.node(
                op.name, [y], e.size(w, unit, shard), saved=[y] if trains else [], wgrad=grad, trainable=trains, unit=unit
            )
        return y
    return e.tape.node(
        op.name, [x], e.size(w, unit, shard), saved=[x, stats], wgrad=grad, trainable=trains, unit=unit, passes=st.inplace
    )


@rule(Gate)
def gate(e: Emitter, op: Gate, g: Tensor, up: Tensor) -> Tensor:
    """``fn(gate) * up``."""
    st, shard = e.style, "tp" if op.split else "sp"
    size = e.size(op.features, max(g.unit, up.unit), shard)
    if st.gate == "eager":
        a = e.tape.node(f"{op.name}.{op.fn}", [g], size, saved=[g, *composite(e, op, size)])
        saved = ([up] if a.grad else []) + ([a] if up.grad else [])
        return e.tape.node(op.name, [a, up], size, saved=saved)
    return e.tape.node(op.name, [g, up], size, saved=[g, up], inplace=st.inplace)


COMPOSITE = {"gelu_new": 3, "quick_gelu": 1, "gelu_fast": 5, "relu2": 1}
"""Tensors kept beside the input by activations that are written out in Python (transformers ``activations.py``):
``gelu_new`` keeps tanh, 1 + tanh and x / 2; ``quick_gelu`` the sigmoid."""


def composite(e: Emitter, op: Act | Gate, size: Lin) -> list[Tensor]:
    """The further tensors that ``op.fn`` keeps in this run."""
    n = COMPOSITE.get(op.fn, 0) if e.style.act == "eager" else 0
    return [e.tape.extra(f"{op.name}.{i}", size) for i in range(n)]


@rule(Act)
def act(e: Emitter, op: Act, x: Tensor) -> Tensor:
    """Pointwise activation: keeps its input (ReLU keeps its output, which the next matmul keeps anyway)."""
    size = e.size(op.features, x.unit, "tp" if op.split else "sp")
    out = e.tape.node(op.name, [x], size, saved=[x])
    if not out.grad:
        return out
    if op.fn in ("relu", "relu6", "tanh", "sigmoid"):
        e.tape.nodes[-1].saved = (out,)
    else:
        e.tape.nodes[-1].saved = (x, *composite(e, op, size))
    return out


@rule(Add)
def add(e: Emitter, op: Add, *xs: Tensor) -> Tensor:
    """A sum keeps nothing; it has the widest summand's format, as PyTorch promotes types."""
    unit = max(x.unit for x in xs)
    return e.tape.node(op.name, list(xs), e.size(op.features, unit, "sp"), passes=True, unit=unit)


@rule(Mul)
def mul(e: Emitter, op: Mul, a: Tensor, *rest: Tensor) -> Tensor:
    """A product keeps each factor that another factor's gradient is multiplied by."""
    ins = [a, *rest]
    unit = max(t.unit for t in ins)
    saved = [t for t in ins if any(other.grad for other in ins if other is not t)]
    return e.tape.node(op.name, ins, e.size(op.features, unit, "sp"), saved=saved, unit=unit)


@rule(Dropout)
def dropout(e: Emitter, op: Dropout, x: Tensor) -> Tensor:
    """Dropout keeps its mask, 1 byte an element (aten ``native_dropout``); with probability 0 there is none."""
    p = op.p if e.style.dropout is None else e.style.dropout
    if not p:
        return x
    shard = "tp" if op.split else "sp"
    mask = e.tape.extra(f"{op.name}.mask", e.size(op.features, 1.0, shard))
    return e.tape.node(op.name, [x], e.size(op.features, x.unit, shard), saved=[mask])


@rule(Embedding)
def embedding(e: Emitter, op: Embedding, *_: Tensor) -> Tensor:
    """Lookup: keeps the ids (8 bytes a token); its weight gradient is dense."""
    ids = e.tape.extra(f"{op.name}.ids", e.size(1, 8.0, "1"))
    trains = e.weights.trains(op)
    out = e.tape.node(
        op.name,
        [],
        e.size(op.dim, e.style.residual, "sp"),
        saved=[ids],
        wgrad=e.weights.gradient(op),
        trainable=trains,
        unit=e.style.residual,
    )
    out.grad = out.grad or e.input_grad
    return out


@rule(Slice)
def slice_(e: Emitter, op: Slice, x: Tensor) -> Tensor:
    """A view keeps its source alive; a copy does not."""
    size = e.size(op.features, x.unit, "tp" if op.split else "sp")
    if e.style.slices == "view":
        return e.tape.node(op.name, [x], view=True)
    return e.tape.node(op.name, [x], size)


@rule(Parameters)
def parameters(e: Emitter, op: Parameters, *_: Tensor) -> Tensor:
    """Bare parameters: a leaf that no activation memory is counted for."""
    weights = list(op.weights())
    unit = e.weights.param_unit(op, weights[0]) if weights and not e.style.autocast else e.style.residual
    return Tensor(op.name, Lin(), e.weights.trains(op), unit=unit)
