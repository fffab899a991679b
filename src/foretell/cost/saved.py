"""What each operator keeps for its backward pass, by the style of the framework that runs it.

Every function here puts one operator on a :class:`~foretell.cost.tape.Tape`.  The rules are PyTorch's autograd
formulas (``tools/autograd/derivatives.yaml`` of PyTorch 2.x) applied to the code each style stands for; a
kernel's own choices are cited at the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foretell.arch.architecture import Block
from foretell.arch.operators import (
    Act, Add, Attention, Conv, Dropout, Embedding, Experts, Gate, Head, Linear, Mul, Norm, Operator, Parameters, Pool,
    PromptAttention, Rope, Router, Scan, Slice,
)  # fmt: skip
from foretell.cost.inner import applies, fuse
from foretell.cost.linear import Lin
from foretell.cost.tape import Tape, Tensor
from foretell.cost.weights import scales_input
from foretell.cost.weights import LOCAL
from foretell.recipe.style import Style

ROWS = {"text": "T", "encoder": "E", "sample": "B"}
Place = tuple[str, float]
"""What one row of a tensor is: the monomial that counts rows, and how many there are per unit of it."""


CONDITION: Place = ("B", 77.0)
"""Rows of the conditioning that a diffusion model is given: CLIP's 77 text positions (arXiv 2112.10752)."""


def place_of(block: Block) -> Place:
    """Rows of a block's input."""
    return ROWS[block.stream], float(block.positions or 1) if block.stream == "sample" else 1.0


@dataclass
class Emitter:
    """Puts the operators of one block on a tape."""

    block: Block
    style: Style
    weights: Any
    """A :class:`foretell.cost.weights.WeightPlan`: which weights train, adapters, bytes of each kind."""
    input_grad: bool = True
    loss: bool = False
    """The block ends in a loss."""
    unit: float = 0.0
    """Bytes per element of the block's input (0: the style's residual stream)."""
    memory: Place | None = None
    """Rows of the encoder's output, where the block may read it."""
    tape: Tape = field(init=False)
    env: dict[str, Tensor] = field(init=False, default_factory=dict)
    unfreed: dict[Tensor, Lin] = field(init=False, default_factory=dict)
    """Storages kept outside autograd's saved tensors: they live as long as the graph, not until their backward ran."""
    copies: Lin = field(init=False, default_factory=Lin)
    """Compute-format copies of trained weights (autocast)."""
    frame: list[Tensor] = field(init=False, default_factory=list)
    """Tensors that a local variable keeps until the block ends."""
    casts: dict[tuple[Tensor, float], Tensor] = field(init=False, default_factory=dict)
    places: dict[Tensor, Place] = field(init=False, default_factory=dict)
    """Rows of each tensor that does not have the block's."""

    def __post_init__(self) -> None:
        self.home = place_of(self.block)
        self.rows, self.per = self.home
        x = None
        if self.block.width:
            unit = self.unit or self.style.residual
            x = Tensor("x", self.size(self.block.width, unit, "sp"), self.input_grad, unit=unit)
        self.tape = Tape(x)
        if x is not None:
            self.env["x"] = x
        if self.memory is not None:  # its bytes are counted once, where it is made
            source = Tensor("memory", Lin(), self.input_grad, unit=self.style.residual)
            self.env["memory"] = source
            self.places[source] = self.memory

    def size(self, width: float, unit: float, shard: str, category: str = "activations", rows: str = "") -> Lin:
        """Bytes of ``width`` elements per row of this block."""
        return Lin.of(category, f"{rows or self.rows}/{shard}", width * unit * self.per)

    def work(self, width: float, unit: float, shard: str, rows: str = "") -> Lin:
        return self.size(width, unit, shard, "temporaries", rows)

    def wgrad(self, op: Operator, name: str = "") -> Lin:
        """Gradients of the trainable weights of ``op``."""
        return self.weights.gradient(op)

    def outside(self, name: str) -> Tensor:
        """A tensor that another block made (``"skip"``): its bytes are counted there, where it is kept."""
        self.env[name] = Tensor(name, Lin(), self.input_grad, unit=self.style.residual)
        return self.env[name]

    def emit(self) -> Tensor:
        """All operators in order; returns the block's output."""
        previous = self.env.get("x")
        local: list[Tensor] = []
        for i, op in enumerate(self.block.ops):
            ins = [previous] if previous is not None and not op.ins else []
            ins += [self.env.get(name) or self.outside(name) for name in op.ins if name != "x" or name in self.env]
            self.rows, self.per = next((self.places.get(t, self.home) for t in ins if t.size or t.name == "memory"), self.home)
            if not ins and isinstance(op, Linear):  # the sample itself
                ins = [Tensor("sample", self.size(op.d_in, self.style.residual, "sp"), False, unit=self.style.residual)]
            rule: Callable[..., Tensor] | None = getattr(op, "emit", None)
            out = rule(self, *ins) if rule is not None else RULES[type(op)](self, op, *ins)
            if out is not None:
                self.env[op.name] = out
                if out is not previous and (self.rows, self.per) != self.home:
                    self.places[out] = (self.rows, self.per)
                if not isinstance(op, Parameters):
                    previous = out
                if self.style.frames:
                    local = self._frame(i, local, ins)
        if self.frame:
            self.tape.nodes[-1].extends += tuple(self.frame)
        assert previous is not None
        if self.style.scan == "fused" and applies(self.block.ops):
            fuse(self.tape, self.env)
        return previous


    def _frame(self, i: int, local: list[Tensor], ins: list[Tensor]) -> list[Tensor]:
        """Tensors that local variables keep: a module's input from its first matmul to its last."""
        ops = self.block.ops
        op = ops[i]
        if isinstance(op, Attention):
            return [*local, *ins]
        if isinstance(op, Linear):
            if op.split != "row":
                return [*local, ins[0]] if not local else local
            self.tape.nodes[-1].extends += tuple(local)
            return []
        return local


def cast(e: Emitter, x: Tensor, unit: float, shard: str, width: float, name: str = "cast") -> Tensor:
    """A copy of ``x`` in ``unit`` bytes per element, or ``x`` itself."""
    if x.unit == unit:
        return x
    if e.style.cast_once and (x, unit) in e.casts:
        return e.casts[x, unit]
    e.casts[x, unit] = e.tape.node(name, [x], e.size(width, unit, shard), unit=unit)
    return e.casts[x, unit]


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
    saved = []
    if trains:
        kept = x
        if st.fp8_inputs and x.unit > 1:
            kept = e.tape.extra(f"{op.name}.fp8", e.size(op.d_in, 1.0, in_shard))
        saved.append(kept)
    saved += frozen_saves(e, op, x) + cast_weights(e, op, trains)
    out = e.tape.node(
        op.name, [x], e.size(op.d_out, inner, out_shard), saved=saved, work=work, bwork=bwork,
        wgrad=plan.gradient(op), trainable=trains, unit=inner,
    )  # fmt: skip
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


def cast_weights(e: Emitter, op: Linear | Head | Conv | Experts, trains: bool) -> list[Tensor]:
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
        f"{op.name}.lora_A", [x], e.size(r, unit, "sp"), saved=[] if adapter.frozen else [x], wgrad=adapter.grad_a, trainable=True, unit=unit
    )
    b = e.tape.node(
        f"{op.name}.lora_B", [a], e.size(adapter.outputs, unit, out_shard), saved=[a], wgrad=adapter.grad_b, trainable=True,
        unit=unit,
    )  # fmt: skip
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
            pack = e.tape.node(f"{op.name}.pack_kv", [k, v], e.size(op.kv_heads * (op.head_dim + op.v_dim), unit, "tp"), unit=unit)
            k = v = pack
            node_saved = [q, pack, lse]
        if st.ring:
            node_saved.append(e.tape.extra(f"{op.name}.ring", out_size))
            accumulator = accumulator + ring + e.work(op.heads * op.head_dim + op.kv_heads * (op.head_dim + op.v_dim), unit, "tp") * 2.0
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


def prompt_attention(e: Emitter, op: PromptAttention, q: Tensor, y: Tensor) -> Tensor:
    """``y + gate * attention(q, prompt)`` (litgpt/adapter.py): the second attention keeps q and its output."""
    size = e.size(op.width, e.style.compute, "tp")
    ay = e.tape.node(f"{op.name}.attn", [q], size, saved=[q], trainable=True, unit=e.style.compute)
    e.tape.nodes[-1].saved = (q, ay)
    gated = e.tape.node(f"{op.name}.gate", [ay], size, saved=[ay], trainable=True, unit=e.style.compute)
    return e.tape.node(op.name, [y, gated], size, passes=True, unit=e.style.compute)


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


def add(e: Emitter, op: Add, *xs: Tensor) -> Tensor:
    unit = max(x.unit for x in xs)
    return e.tape.node(op.name, list(xs), e.size(op.features, unit, "sp"), passes=True, unit=unit)


def mul(e: Emitter, op: Mul, a: Tensor, *rest: Tensor) -> Tensor:
    ins = [a, *rest]
    unit = max(t.unit for t in ins)
    saved = [t for t in ins if any(other.grad for other in ins if other is not t)]  # a factor is kept for the others' gradients
    return e.tape.node(op.name, ins, e.size(op.features, unit, "sp"), saved=saved, unit=unit)


def dropout(e: Emitter, op: Dropout, x: Tensor) -> Tensor:
    p = op.p if e.style.dropout is None else e.style.dropout
    if not p:
        return x
    shard = "tp" if op.split else "sp"
    mask = e.tape.extra(f"{op.name}.mask", e.size(op.features, 1.0, shard))
    return e.tape.node(op.name, [x], e.size(op.features, x.unit, shard), saved=[mask])


def embedding(e: Emitter, op: Embedding, *_: Tensor) -> Tensor:
    """Lookup: keeps the ids (8 bytes a token); its weight gradient is dense."""
    ids = e.tape.extra(f"{op.name}.ids", e.size(1, 8.0, "1"))
    trains = e.weights.trains(op)
    out = e.tape.node(
        op.name, [], e.size(op.dim, e.style.residual, "sp"), saved=[ids], wgrad=e.weights.gradient(op), trainable=trains,
        unit=e.style.residual,
    )  # fmt: skip
    out.grad = out.grad or e.input_grad
    return out


def conv(e: Emitter, op: Conv, *xs: Tensor) -> Tensor:
    """Convolution: keeps its input; without one it reads the sample itself (an image, a waveform)."""
    st, shard = e.style, "tp" if op.split else "sp"
    trains = e.weights.trains(op)
    source = list(xs)
    if not source:
        e.rows, e.per = "B", float(op.source or op.positions or 1)
        unit = 4.0 if st.autocast else st.compute
        source = [Tensor("sample", e.size(op.c_in, unit, "sp"), False, unit=unit)]
    if st.autocast:
        source = [cast(e, x, st.compute, shard, op.c_in / len(source), f"{op.name}.cast") for x in source]
    copies = cast_weights(e, op, trains)
    if op.positions:
        e.rows, e.per = "B", float(op.positions)
    return e.tape.node(
        op.name, source, e.size(op.c_out, st.compute, shard), saved=[*source, *copies] if trains else copies,
        wgrad=e.weights.gradient(op),
        trainable=trains, unit=st.compute,
    )  # fmt: skip


def scan(e: Emitter, op: Scan, *xs: Tensor) -> Tensor:
    """Fused recurrence: keeps its inputs and the chunk states."""
    stored = float(op.stored)
    if e.style.scan == "eager" and op.kind == "mamba1":
        # exp(A dt), dt B and the state of every token, in fp32; softplus, convolution and scan results
        # (transformers models/mamba/modeling_mamba.py selective_scan_fn)
        stored += 3.0 * op.state + 3.0 * op.d_inner
    states = e.tape.extra(f"{op.name}.states", e.size(stored, 4.0, "tp"))
    trains = e.weights.trains(op)
    return e.tape.node(
        op.name, list(xs), e.size(op.d_inner, e.style.compute, "tp"), saved=[*xs, states],
        wgrad=e.weights.gradient(op), trainable=trains, unit=e.style.compute,
    )  # fmt: skip


def slice_(e: Emitter, op: Slice, x: Tensor) -> Tensor:
    """A view keeps its source alive; a copy does not."""
    size = e.size(op.features, x.unit, "tp" if op.split else "sp")
    if e.style.slices == "view":
        return e.tape.node(op.name, [x], view=True)
    return e.tape.node(op.name, [x], size)


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


def router(e: Emitter, op: Router, x: Tensor) -> Tensor:
    """Scores in fp32 (softmax or sigmoid kept), and the choice of ``top_k``."""
    trains = e.weights.trains(op)
    logits = e.tape.node(
        op.name, [x], e.size(op.experts, 4.0, "sp"), saved=[x] if trains else [], wgrad=e.weights.gradient(op),
        trainable=trains, unit=4.0,
    )  # fmt: skip
    scores = e.tape.node(f"{op.name}.{op.score}", [logits], e.size(op.experts, 4.0, "sp"), unit=4.0)
    e.tape.nodes[-1].saved = (scores,) if scores.grad else ()
    index = e.tape.extra(f"{op.name}.index", e.size(op.top_k, 8.0, "sp"))
    if e.style.experts == "alltoall":  # fp32 logits, scores, probabilities, a bool map and bf16 logits: 15 B an expert
        index.size.add(e.size(op.experts, 15.0 - 4.0, "sp"))
    return e.tape.node(f"{op.name}.topk", [scores], e.size(op.top_k, 4.0, "sp"), saved=[index], unit=4.0)


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
        f"{op.name}.up", [dispatched], e.size(k * first, st.compute, "rt"),
        saved=[dispatched, *cast_weights(e, op, trains)] if trains else [],
        wgrad=e.weights.gradient(op, 0), trainable=trains, work=work, bwork=bwork, unit=st.compute,
    )  # fmt: skip
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
        f"{op.name}.down", [mid], routed, saved=[mid] if trains else [], wgrad=e.weights.gradient(op, 1),
        trainable=trains, work=work, bwork=bwork, unit=st.compute,
    )  # fmt: skip
    if st.experts == "alltoall":  # probabilities were applied inside; un-sorting and combining keep indices only
        down = e.tape.node(f"{op.name}.unsort", [down], routed, work=routed.as_category("temporaries"))
        return e.tape.node(
            f"{op.name}.combine", [down], e.size(op.dim, st.compute, "sp"), work=routed.as_category("temporaries"),
            extends=frame, saved=[e.tape.extra(f"{op.name}.rows", e.size(k * 20, 1.0, "sp"))], unit=st.compute,
        )  # fmt: skip
    return e.tape.node(
        f"{op.name}.combine", [down, probs], e.size(op.dim, st.compute, "sp"), saved=[down, probs],
        work=e.work(k * op.dim, st.compute, "r"), unit=st.compute,
    )  # fmt: skip


def parameters(e: Emitter, op: Parameters, *_: Tensor) -> Tensor:
    """Bare parameters: a leaf that no activation memory is counted for."""
    weights = list(op.weights())
    unit = e.weights.param_unit(op, weights[0]) if weights and not e.style.autocast else e.style.residual
    return Tensor(op.name, Lin(), e.weights.trains(op), unit=unit)


RULES: dict[type[Operator], Callable[..., Any]] = {
    Linear: linear, Norm: norm, Rope: rope, Attention: attention, Gate: gate, Act: act, Add: add, Mul: mul,
    Dropout: dropout, Embedding: embedding, Conv: conv, Scan: scan, Pool: pool, Router: router, Experts: experts,
    Parameters: parameters, Slice: slice_, PromptAttention: prompt_attention,
}  # fmt: skip
__all__ = ["RULES", "Emitter", "cast"]
