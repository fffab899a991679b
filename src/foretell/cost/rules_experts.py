"""Mixture of experts: router, dispatch, grouped matrix products, combine."""

from __future__ import annotations

from foretell.arch.operators import Experts, Router
from foretell.cost.rules_matmul import cast_weights, narrowed
from foretell.cost.rules_pointwise import halves
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor

INDEX = 8.0
"""Bytes of an index (int64)."""
CLAMPED = 3
"""Tensors that gpt-oss's gate keeps beside a plain one's: the clamped gate, its sigmoid, and one more than the clamped up."""


@rule(Router)
def router(e: Emitter, op: Router, x: Tensor) -> Tensor:
    """Scores in fp32 (softmax or sigmoid kept), and the choice of ``top_k``."""
    if e.style.composite:
        return _chosen(e, op, _logits(e, op, x))
    trains = e.weights.trains(op)
    logits = e.tape.node(
        op.name,
        [x],
        e.size(op.experts, 4.0, "sp"),
        saved=[x] if trains else [],
        wgrad=e.weights.gradient(op),
        trainable=trains,
        unit=4.0,
    )
    scores = e.tape.node(f"{op.name}.{op.score}", [logits], e.size(op.experts, 4.0, "sp"), unit=4.0)
    e.tape.nodes[-1].saved = (scores,) if scores.grad else ()
    index = e.tape.extra(f"{op.name}.index", e.size(op.top_k, 8.0, "sp"))
    if e.style.experts == "alltoall":  # fp32 logits, scores, probabilities, a bool map and bf16 logits: 15 B an expert
        index.size.add(e.size(op.experts, 15.0 - 4.0, "sp"))
    return e.tape.node(f"{op.name}.topk", [scores], e.size(op.top_k, 4.0, "sp"), saved=[index], unit=4.0)


def _logits(e: Emitter, op: Router, x: Tensor) -> Tensor:
    """The router's product as transformers runs it: in the stream's format, under autocast in its format, or in fp32."""
    trains = e.weights.trains(op)
    x = cast(e, x, e.style.compute if e.style.autocast else 4.0 if op.wide else x.unit, "sp", op.dim, f"{op.name}.cast")
    copies = cast_weights(e, op, trains)
    return e.tape.node(
        op.name,
        [x],
        e.size(op.experts, x.unit, "sp"),
        saved=[x, *copies] if trains else [],
        wgrad=e.weights.gradient(op),
        narrow=narrowed(e, copies),
        trainable=trains,
        unit=x.unit,
    )


def _chosen(e: Emitter, op: Router, logits: Tensor) -> Tensor:
    """Weights of the chosen experts (transformers ``models/mixtral``, ``models/gpt_oss``, ``models/deepseek_v3``)."""
    k, name = float(op.top_k), op.name
    index = e.tape.extra(f"{name}.index", e.size(k, INDEX, "sp"))
    if op.chosen_first:
        top = e.tape.node(f"{name}.topk", [logits], e.size(k, logits.unit, "sp"), saved=[index], unit=logits.unit)
        out = e.tape.node(f"{name}.{op.score}", [top], top.size, unit=top.unit)
        e.tape.nodes[-1].saved = (out,) if out.grad else ()
        return out
    unit = 4.0 if op.score == "softmax" else logits.unit  # autocast has softmax in fp32, a sigmoid as it comes
    scores = e.tape.node(f"{name}.{op.score}", [logits], e.size(op.experts, unit, "sp"), unit=unit)
    e.tape.nodes[-1].saved = (scores,) if scores.grad else ()
    top = e.tape.node(f"{name}.topk", [scores], e.size(k, unit, "sp"), saved=[index], unit=unit)
    if op.normalised:  # in place: the quotient's backward wants the numerators of before
        sums = e.tape.extra(f"{name}.sum", e.size(1, 4.0, "sp"))
        top = e.tape.node(f"{name}.normalise", [top], top.size, saved=[e.tape.extra(f"{name}.top", top.size), sums], unit=unit)
    return cast(e, top, logits.unit, "sp", k, f"{name}.to") if op.narrow else top


def _grouped(e: Emitter, op: Experts, x: Tensor, probs: Tensor) -> Tensor:
    """transformers' grouped products (``integrations/moe.py`` ``grouped_mm_experts_forward``).

    They are no operators of autocast: experts work in their weights' format.  The order of the tokens, the rows it stands
    for and its inverse are kept, and with biases the sorted experts.
    """
    st, plan, k, name = e.style, e.weights, float(op.top_k), op.name
    trains = plan.trains(op)
    unit = plan.param_unit(op, next(op.weights())) if st.autocast else st.compute
    first, hidden = op.ffn * (2 if op.gated else 1), e.size(k * op.ffn, unit, "rt")
    indices = [e.tape.extra(f"{name}.{what}", e.size(k, INDEX, "sp")) for what in ("rows", "order", "inverse", "sorted")]
    routed = e.tape.node(f"{name}.dispatch", [x], e.size(k * op.dim, x.unit, "r"), saved=indices[:1], unit=x.unit)
    routed = cast(e, routed, unit, "r", k * op.dim, f"{name}.cast")
    work, bwork = plan.weight_copy(op)
    up = e.tape.node(
        f"{name}.up",
        [routed],
        e.size(k * first, unit, "rt"),
        saved=[*([routed] if trains else []), *(indices[3:] if op.bias else [])],
        wgrad=plan.gradient(op, 0),
        trainable=trains,
        work=work,
        bwork=bwork,
        unit=unit,
    )
    if op.gated:
        clamped = op.fn == "swigluoai"
        up, other = halves(e, name, up, hidden)
        more = [e.tape.extra(f"{name}.{op.fn}.{i}", hidden) for i in range(CLAMPED)] if clamped else []
        a = e.tape.node(f"{name}.{op.fn}", [up], hidden, saved=[up, *more], unit=unit)
        mid = e.tape.node(f"{name}.mul", [a, other], hidden, saved=[a] if clamped else [a, other], unit=unit)
    else:
        mid = e.tape.node(f"{name}.{op.fn}", [up], hidden, saved=[up], unit=unit)
    down = e.tape.node(
        f"{name}.down",
        [mid],
        e.size(k * op.dim, unit, "r"),
        saved=[mid] if trains else [],
        wgrad=plan.gradient(op, 1),
        trainable=trains,
        work=work,
        bwork=bwork,
        unit=unit,
    )
    chosen = e.tape.node(f"{name}.weights", [probs], e.size(k, probs.unit, "sp"), saved=indices[1:2], unit=probs.unit)
    wide = max(unit, probs.unit)
    size = e.size(k * op.dim, wide, "r")
    weighed = e.tape.node(f"{name}.weigh", [down, chosen], size, saved=[down, chosen], unit=wide)
    ordered = e.tape.node(f"{name}.restore", [weighed], size, saved=indices[2:3], unit=wide)
    out = e.tape.node(f"{name}.combine", [ordered], e.size(op.dim, wide, "sp"), unit=wide)
    return cast(e, out, x.unit, "sp", op.dim, f"{name}.to")


@rule(Experts)
def experts(e: Emitter, op: Experts, x: Tensor, probs: Tensor) -> Tensor:
    """Dropless grouped experts, tokens spread evenly: permuted copy, two grouped matmuls, weighted combine.

    ``alltoall`` (Megatron-Core ``moe_layer.py``, ``token_dispatcher.py``): the layer's frame keeps the permuted and
    the dispatched tensors until the combine, and the expert input is a sorted copy.
    """
    st, k = e.style, float(op.top_k)
    if st.composite and not op.dense:
        return _grouped(e, op, x, probs)
    trains = e.weights.trains(op)
    routed = e.size(k * op.dim, st.compute, "r")
    frame: list[Tensor] = []
    source = x
    if st.experts == "alltoall":
        permuted = e.tape.node(f"{op.name}.permute", [x], routed, unit=st.compute)
        source = e.tape.node(f"{op.name}.a2a", [permuted], routed, unit=st.compute)
        frame = [permuted, source]
    dispatched = e.tape.node(f"{op.name}.dispatch", [source], routed, unit=st.compute)
    first = op.ffn * (2 if op.gated else 1)
    work, bwork = e.weights.weight_copy(op)
    up = e.tape.node(
        f"{op.name}.up",
        [dispatched],
        e.size(k * first, st.compute, "rt"),
        saved=[dispatched, *cast_weights(e, op, trains)] if trains else [],
        wgrad=e.weights.gradient(op, 0),
        trainable=trains,
        work=work,
        bwork=bwork,
        unit=st.compute,
    )
    hidden = e.size(k * op.ffn, st.compute, "rt")
    if op.gated and st.gate == "eager":
        a = e.tape.node(f"{op.name}.{op.fn}", [up], hidden, saved=[up])
        mid = e.tape.node(f"{op.name}.mul", [a, up], hidden, saved=[a, up])
    else:
        saved = [up]
        if not op.gated and st.experts == "alltoall":  # unfused act * probs keeps the activation's output
            saved.append(e.tape.extra(f"{op.name}.act_out", hidden))
        mid = e.tape.node(f"{op.name}.{op.fn}", [up], hidden, saved=saved)
    down = e.tape.node(
        f"{op.name}.down",
        [mid],
        routed,
        saved=[mid] if trains else [],
        wgrad=e.weights.gradient(op, 1),
        trainable=trains,
        work=work,
        bwork=bwork,
        unit=st.compute,
    )
    if st.experts == "alltoall":  # probabilities were applied inside; un-sorting and combining keep indices only
        down = e.tape.node(f"{op.name}.unsort", [down], routed, work=routed.as_category("temporaries"))
        return e.tape.node(
            f"{op.name}.combine",
            [down],
            e.size(op.dim, st.compute, "sp"),
            work=routed.as_category("temporaries"),
            extends=frame,
            saved=[e.tape.extra(f"{op.name}.rows", e.size(k * 20, 1.0, "sp"))],
            unit=st.compute,
        )
    return e.tape.node(
        f"{op.name}.combine",
        [down, probs],
        e.size(op.dim, st.compute, "sp"),
        saved=[down, probs],
        work=e.work(k * op.dim, st.compute, "r"),
        unit=st.compute,
    )
