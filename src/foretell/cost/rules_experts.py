"""Mixture of experts: router, dispatch, grouped matrix products, combine."""

from __future__ import annotations

from foretell.arch.operators import Experts, Router
from foretell.cost.rules_matmul import cast_weights
from foretell.cost.saved import Emitter, rule
from foretell.cost.tape import Tensor


@rule(Router)
def router(e: Emitter, op: Router, x: Tensor) -> Tensor:
    """Scores in fp32 (softmax or sigmoid kept), and the choice of ``top_k``."""
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


@rule(Experts)
def experts(e: Emitter, op: Experts, x: Tensor, probs: Tensor) -> Tensor:
    """Dropless grouped experts, tokens spread evenly: permuted copy, two grouped matmuls, weighted combine.

    ``alltoall`` (Megatron-Core ``moe_layer.py``, ``token_dispatcher.py``): the layer's frame keeps the permuted and
    the dispatched tensors until the combine, and the expert input is a sorted copy.
    """
    st, k = e.style, float(op.top_k)
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
