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
    if op.kind in ("batch", "group"):
        stats = e.tape.extra(f"{op.name}.stats", _channel_statistics(op))
        saved = [x, stats] if trains or x.grad else []
        return e.tape.node(op.name, [x], x.size, saved=saved, wgrad=grad, trainable=trains, unit=unit)
    written = op.written if st.composite else "wide" if st.norm_scale_wide else ""
    if st.norm == "eager" and not op.fused and (op.kind in ("rms", "l2") or written == "centred"):
        return _written_out(e, op, x, written)
    return e.tape.node(
        op.name, [x], e.size(w, unit, shard), saved=[x, stats], wgrad=grad, trainable=trains, unit=unit, passes=st.inplace
    )


def _channel_statistics(op: Norm) -> Lin:
    """Mean and inverse deviation of each channel of a batch (those of a group and sample are not counted)."""
    return Lin.of("activations", "1/1", 8.0 * op.dim * op.groups) if op.kind == "batch" else Lin()


def _written_out(e: Emitter, op: Norm, x: Tensor, written: str) -> Tensor:
    """``x * rsqrt(mean(x^2))`` in fp32, then the weight: ways as in :attr:`foretell.arch.operators.Norm.written`."""
    st, w, unit, name = e.style, float(op.dim * op.groups), x.unit, op.name
    shard = "tp" if op.split else "sp"
    size, stats = e.size(w, 4.0, shard), e.tape.extra(f"{name}.stats", e.size(op.groups, 4.0, shard))
    more = e.work(w, 4.0, shard) * 2.0 if st.norm_pow else Lin()
    wide = cast(e, x, 4.0, shard, w, f"{name}.float")
    centre = wide
    if written == "centred":  # the mean is subtracted twice
        centre, wide = (e.tape.node(f"{name}.{part}", [wide], size, unit=4.0) for part in ("centre", "difference"))
    squares = e.tape.node(f"{name}.pow", [centre], size, saved=[centre], bwork=more, unit=4.0)
    inverse = e.tape.node(f"{name}.rsqrt", [squares], stats.size, saved=[stats], unit=4.0)
    factor = x if written == "apart" else wide
    y = e.tape.node(f"{name}.mul", [factor, inverse], size, saved=[factor], unit=4.0)
    trains, grad = e.weights.trains(op), e.weights.gradient(op)
    scaled = op.affine and (op.kind == "rms" or written == "centred")
    if scaled and written in ("wide", "offset", "centred"):
        saved = [*([y] if trains else []), *_weight_in_fp32(e, op, written)]
        y = e.tape.node(name, [y], size, saved=saved, wgrad=grad, trainable=trains, unit=4.0)
        return cast(e, y, unit, shard, w, f"{name}.to")
    y = cast(e, y, unit, shard, w, f"{name}.to")
    if scaled:
        y = e.tape.node(name, [y], e.size(w, unit, shard), saved=[y] if trains else [], wgrad=grad, trainable=trains, unit=unit)
    return y


def _weight_in_fp32(e: Emitter, op: Norm, written: str) -> list[Tensor]:
    """What a norm multiplies by, where that is not the parameter: one more than it, or its copy in fp32."""
    weight = next(op.weights())
    if written == "offset" or (written == "centred" and e.weights.param_unit(op, weight) < 4.0):
        return [e.tape.extra(f"{op.name}.scale", Lin.of("activations", "1/1", 4.0 * weight.elements))]
    return []


@rule(Gate)
def gate(e: Emitter, op: Gate, g: Tensor, up: Tensor) -> Tensor:
    """``fn(gate) * up``."""
    st, shard = e.style, "tp" if op.split else "sp"
    size = e.size(op.features, max(g.unit, up.unit), shard)
    if st.gate != "eager":
        return e.tape.node(op.name, [g, up], size, saved=[g, up], inplace=st.inplace)
    if g is up:
        g, up = halves(e, op.name, g, size)
    a = activated(e, op, g, f"{op.name}.{op.fn}", shard)
    unit = max(a.unit, up.unit)
    saved = ([up] if a.grad else []) + ([a] if up.grad else [])
    return e.tape.node(op.name, [a, up], e.size(op.features, unit, shard), saved=saved, unit=unit)


def halves(e: Emitter, name: str, both: Tensor, size: Lin) -> tuple[Tensor, Tensor]:
    """The two halves of a tensor as views; their gradients are put side by side in a new one."""
    if not e.style.composite:
        return both, both
    first = e.tape.node(f"{name}.first", [both], size, view=True)
    return first, e.tape.node(f"{name}.second", [both], size, view=True, part=True)


COMPOSITE = {"gelu_new": 3, "quick_gelu": 1, "gelu_fast": 5, "relu2": 1}
"""Tensors kept beside the input by activations that are written out in Python (transformers ``activations.py``):
``gelu_new`` keeps tanh, 1 + tanh and x / 2; ``quick_gelu`` the sigmoid."""
REMADE = {"bloom_gelu": 4}
"""Tensors that an activation's own backward code makes beside the gradient (transformers ``bloom_gelu_back``)."""
OF_OUTPUT = ("relu", "relu6", "tanh", "sigmoid")
"""Activations whose gradient is a function of their result."""


def activated(e: Emitter, op: Act | Gate, x: Tensor, name: str, shard: str) -> Tensor:
    """Pointwise activation: keeps its input (ReLU keeps its output, which the next matmul keeps anyway)."""
    size = e.size(op.features, x.unit, shard)
    if e.style.autocast and e.style.act == "eager" and op.fn == "gelu_new" and x.unit < 4.0:
        return _cubed(e, op, x, name, shard)
    out = e.tape.node(name, [x], size, saved=[x], unit=x.unit)
    if not out.grad:
        return out
    if op.fn in OF_OUTPUT and isinstance(op, Act):
        e.tape.nodes[-1].saved = (out,)
    else:
        n = COMPOSITE.get(op.fn, 0) if e.style.act == "eager" else 0
        e.tape.nodes[-1].saved = (x, *(e.tape.extra(f"{name}.{i}", size) for i in range(n)))
        more = REMADE.get(op.fn, 0) if e.style.act == "eager" else 0
        e.tape.nodes[-1].bwork = size.as_category("temporaries") * float(more or bool(n))  # else two factors have gradients
    return out


def _cubed(e: Emitter, op: Act | Gate, x: Tensor, name: str, shard: str) -> Tensor:
    """``gelu_new`` under autocast: ``pow`` is among its fp32 operators, and so is all that follows; x / 2 is not."""
    wide, size = cast(e, x, 4.0, shard, op.features, f"{name}.pow"), e.size(op.features, 4.0, shard)
    kept = [e.tape.extra(f"{name}.{part}", size) for part in ("tanh", "one_more")]
    half = e.tape.extra(f"{name}.half", e.size(op.features, x.unit, shard))
    return e.tape.node(name, [wide, x], size, saved=[wide, *kept, half], bwork=size.as_category("temporaries"), unit=4.0)


@rule(Act)
def act(e: Emitter, op: Act, x: Tensor) -> Tensor:
    """An activation alone."""
    return activated(e, op, x, op.name, "tp" if op.split else "sp")


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
    trains = e.weights.trains(op) or (op.tied and e.weights.recipe.adapter is None)
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
    """Bare parameters: a leaf that no activation memory is counted for, beside the indices (8 bytes) of look-ups in it."""
    weights = list(op.weights())
    unit = e.weights.param_unit(op, weights[0]) if weights and not e.style.autocast else e.style.residual
    out = Tensor(op.name, Lin(), e.weights.trains(op), unit=unit)
    if op.indices and out.grad and e.style.composite:
        once = {"T": "S", "E": "F"}.get(e.rows, "1")
        rows = [once if what == "position" else e.rows for what in op.indices]
        kept = [e.tape.extra(f"{op.name}.{i}", Lin.of("activations", f"{r}/1", 8.0)) for i, r in enumerate(rows)]
        e.tape.node(f"{op.name}.lookup", [], Lin(), saved=kept, trainable=True)
    return out
