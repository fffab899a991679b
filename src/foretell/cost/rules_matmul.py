"""Matrix products: what a linear layer and the adapters on it keep, and the copies autocast makes."""

from __future__ import annotations

from typing import Any

from foretell.arch.operators import Conv, Experts, Head, Linear, Router
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter, cast, rule
from foretell.cost.tape import Tensor
from foretell.cost.weights import LOCAL, scales_input, unit


@rule(Linear)
def linear(e: Emitter, op: Linear, x: Tensor) -> Tensor:
    """Matmul: keeps its input when the weight trains; adapters keep theirs (LoRA, arXiv 2106.09685)."""
    st, plan = e.style, e.weights
    in_shard = "tp" if op.split == "row" else "sp"
    if plan.rescaled(op) and scales_input(op):
        x = e.tape.node(f"{op.name}.ia3", [x], x.size, saved=[x], trainable=True)
    out_shard = {"col": "tp", "row": "sp", "": "sp"}[op.split]
    given = x
    inner = plan.compute_unit if st.quantized_stream and plan.quantized(op) else st.compute
    if st.autocast or inner != st.compute:
        x = cast(e, x, inner, in_shard, op.d_in, f"{op.name}.cast")
    trains = plan.trains(op)
    work, bwork = plan.weight_copy(op)
    if st.sequence_parallel and op.split == "col":
        gathers = 0 if st.gather_buffers else 1
        work = work + e.work(op.d_in, st.compute, "1") * gathers
        bwork = bwork + e.work(op.d_in, st.compute, "1") * (gathers + trains)
    if st.sequence_parallel and op.split == "row":
        work = work + e.work(op.d_out, st.compute, "1")
        bwork = bwork + e.work(op.d_out, st.compute, "1")
    copies = cast_weights(e, op, trains)
    saved = [*([x] if trains else []), *frozen_saves(e, op, x), *copies]
    out = e.tape.node(
        op.name,
        [x],
        e.size(op.d_out, inner, out_shard),
        saved=saved,
        work=work,
        bwork=bwork,
        wgrad=plan.gradient(op),
        narrow=narrowed(e, copies),
        trainable=trains,
        unit=inner,
    )
    if st.quantized_stream and plan.quantized(op):
        out = cast(e, out, given.unit, out_shard, op.d_out, f"{op.name}.back")
    if plan.scaled(op):
        return scale_and_bias(e, op, out, op.d_out, out_shard)
    if plan.rescaled(op) and not scales_input(op):
        out = e.tape.node(f"{op.name}.ia3", [out], out.size, saved=[out], trainable=True)
    adapter = plan.adapter(op)
    if adapter is not None:
        out = lora(e, op, given, out, adapter, in_shard, out_shard)
    return out


def frozen_saves(e: Emitter, op: Linear | Head, x: Tensor) -> list[Tensor]:
    """What a matmul with a frozen weight keeps although it needs no weight gradient.

    * bitsandbytes ``MatMul4Bit`` before 0.43.2 keeps its input (``ctx.tensors``).
    * Under autocast the compute-format copy of the weight, one for each use: the autocast cache only holds copies of
      leaves that require gradients (pytorch ``aten/src/ATen/autocast_mode.cpp``, ``cached_cast``).
    """
    st, plan = e.style, e.weights
    if plan.trains(op) or not x.grad:
        return []
    if plan.quantized(op):
        if not st.quantized_keeps_input:
            return []
        e.unfreed[x.storage] = x.storage.size
        return [x]
    if not st.autocast or all(plan.param_unit(op, w) <= st.compute for w in op.weights()):
        return []
    copy, shard = float(max(w.elements for w in op.weights())) * st.compute, "tp" if isinstance(op, Head) or op.split else "1"
    rows = "K" if e.loss and st.loss == "list-chunked" else "1"
    return [e.tape.extra(f"{op.name}.weight_copy", Lin.of("weight_copies", f"{rows}/{shard}", copy))]


def cast_weights(e: Emitter, op: Linear | Head | Conv | Experts | Router, trains: bool) -> list[Tensor]:
    """Autocast's compute-format copy of a trained weight: made once, kept for the gradient of the matmul's input, and
    by the autocast cache until the forward pass ends (pytorch ``aten/src/ATen/autocast_mode.cpp`` ``cached_cast``)."""
    st, plan = e.style, e.weights
    if not st.autocast or not trains:
        return []
    out = Lin()
    for w in op.weights():
        if w.role != "vector" and plan.param_unit(op, w) > st.compute:
            out.add(Lin.of("weight_copies", LOCAL[w.shard], w.elements * st.compute))
    if isinstance(op, Head) and op.tied:
        out = Lin.of("weight_copies", LOCAL["tp"], float(op.rows) * op.dim * st.compute)
    e.copies.add(out)
    return [e.tape.extra(f"{op.name}.weight_copy", out)] if out else []


def narrowed(e: Emitter, copies: list[Tensor]) -> float:
    """Share of a weight gradient's bytes that it has at first, where the matmul read a compute-format copy of the weight."""
    return e.style.compute / unit(e.weights.formats.wgrad) if copies else 0.0


def scale_and_bias(e: Emitter, op: Linear | Head, y: Tensor, width: float, shard: str) -> Tensor:
    """LLaMA-Adapter v2: ``scale * (y + bias)``; the sum is kept for the gradient of the scale."""
    y = e.tape.node(f"{op.name}.bias", [y], e.size(width, y.unit, shard), trainable=True)
    return e.tape.node(f"{op.name}.scale", [y], y.size, saved=[y], trainable=True)


def lora(e: Emitter, op: Linear | Head, x: Tensor, base: Tensor, adapter: Any, in_shard: str, out_shard: str) -> Tensor:
    """``base + scale * B(A(dropout(x)))`` as PEFT's ``lora.Linear.forward`` runs it.

    On some parts of a merged projection (litgpt/lora.py ``LoRAQKVLinear.zero_pad``) B's narrower output is copied into
    a zero tensor of full width, and ``index_copy`` keeps it.
    """
    st, r = e.style, adapter.rank
    d_in, d_out = (op.d_in, op.d_out) if isinstance(op, Linear) else (op.dim, op.rows)
    if st.lora_clone and e.weights.quantized(op):
        base = e.tape.node(f"{op.name}.clone", [base], base.size, passes=True)
    if adapter.cast_input and adapter.unit != x.unit and not (st.autocast and e.weights.quantized(op)):
        x = cast(e, x, adapter.unit, in_shard, d_in, f"{op.name}.lora_cast")
    if adapter.dropout:
        mask = e.tape.extra(f"{op.name}.lora_mask", e.size(d_in, 1.0, in_shard))
        x = e.tape.node(f"{op.name}.lora_dropout", [x], x.size, saved=[mask])
    if st.autocast:
        x = cast(e, x, st.compute, in_shard, d_in, f"{op.name}.lora_autocast")
    unit = st.compute if st.autocast or not adapter.cast_input else adapter.unit
    a = e.tape.node(
        f"{op.name}.lora_A",
        [x],
        e.size(r, unit, "sp"),
        saved=[] if adapter.frozen else [x],
        wgrad=adapter.grad_a,
        trainable=True,
        unit=unit,
    )
    b = e.tape.node(
        f"{op.name}.lora_B",
        [a],
        e.size(adapter.outputs, unit, out_shard),
        saved=[a],
        wgrad=adapter.grad_b,
        trainable=True,
        unit=unit,
    )
    if adapter.outputs < d_out:
        b = e.tape.node(f"{op.name}.lora_pad", [b], e.size(d_out, unit, out_shard), saved=[b], unit=unit)
    result = base.unit
    if e.weights.recipe.adapter.kind == "dora":
        base, b = dora(e, op, base, b, d_in * unit * (d_in + 2.0 * d_out), out_shard)
    scaled = e.tape.node(f"{op.name}.lora_scale", [b], b.size, unit=unit)
    wide = max(unit, base.unit)
    out = e.tape.node(f"{op.name}.lora_add", [base, scaled], e.size(d_out, wide, out_shard), passes=True, unit=wide)
    if wide != result and not st.autocast:
        out = cast(e, out, result, out_shard, d_out)
    return out


def dora(e: Emitter, op: Linear | Head, base: Tensor, b: Tensor, weights: float, shard: str) -> tuple[Tensor, Tensor]:
    """DoRA (arXiv 2402.09353) as peft ``tuners/lora/dora.py`` runs it: the base's and the adapter's results are scaled by
    a trained magnitude, which keeps both; identity, ``B A`` and the weight in the adapter's format (``weights`` bytes)
    live while it runs."""
    work = Lin.of("temporaries", "1/1", weights)
    scaled = e.tape.node(
        f"{op.name}.dora_base", [base], e.size(op.width, b.unit, shard), saved=[base], work=work, trainable=True, unit=b.unit
    )
    moved = e.tape.node(f"{op.name}.dora_lora", [b], b.size, saved=[b], work=work, trainable=True, unit=b.unit)
    size = e.size(op.width, b.unit, shard)
    return e.tape.node(f"{op.name}.dora_add", [base, scaled], size, passes=True, unit=b.unit), moved
