"""From operators to kernels: what one block runs in its forward and backward pass, by name, shape and format.

The nodes of a block's tape (:mod:`foretell.cost.saved`) are what the framework's code runs.  Matrix products and attention
are kernels of their own; every other node moves the bytes of the tensors that it reads and makes.  Nothing here depends on
a run's sizes: shapes are linear forms, like the bytes of the memory fold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from foretell.arch.operators import Attention, Conv, Experts, Head, Linear, Operator, Router, Scan
from foretell.cost.graph import Node, Tensor
from foretell.cost.linear import Lin
from foretell.cost.rules_scores import eager
from foretell.cost.saved import Emitter, Span

__all__ = ["BlockWorks", "Core", "Exchange", "Product", "Stream", "block_works"]

Place = str
"""A monomial of :mod:`foretell.cost.linear`."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product ``rows x k`` by ``k x n``, and its two gradients where they are wanted."""

    name: str
    rows: tuple[Place, float]
    """Rows as (monomial, coefficient)."""
    n: float
    k: float
    n_shard: str = "1"
    """What divides ``n`` (``tp``, ``etp``), and ``k``."""
    k_shard: str = "1"
    batch: tuple[Place, float] = ("1/1", 1.0)
    spread: bool = False
    """Rows are divided over the batch (routed tokens over the experts of a rank)."""
    trains: bool = True
    input_grad: bool = True
    low: bool = False
    """It may run in a low-precision format."""
    grouped: bool = False
    inner: tuple[Place, float] | None = None
    """``n`` as a form, where it grows with the sequence (scores)."""
    deep: tuple[Place, float] | None = None
    """``k`` as a form (scores times values)."""
    weighted: bool = True
    """One operand is a weight, whose gradient is written in the gradient's format."""
    unit: float = 2.0


@dataclass(frozen=True, slots=True)
class Core:
    """Fused attention."""

    name: str
    op: Attention
    rows: tuple[Place, float]
    keys: str
    """Rows of the keys: ``T`` (as the queries), ``E`` or ``B``."""
    per: float
    unit: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A node that moves bytes."""

    name: str
    forward: dict[str, float]
    backward: dict[str, float]
    launches: float = 1.0
    launches_backward: float = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Bytes that ranks exchange: which group, how, and in which pass.

    ``whole``: bytes of the whole tensor of the group (what an all-gather makes, what a reduce-scatter takes), or, all to
    all, what one rank sends.
    """

    name: str
    group: Literal["tp", "ep", "cp"]
    kind: Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "ring"]
    whole: dict[str, float]
    choices: float = 1.0
    """Ranks that a routed token may be sent to."""


@dataclass(slots=True)
class BlockWorks:
    """What a block runs: kernels with the nodes they stand for, and exchanges of either pass."""

    kernels: list[Product | Core | Stream] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    """Name of the node of each kernel."""
    forward: list[Exchange] = field(default_factory=list)
    backward: list[Exchange] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)


def block_works(e: Emitter, *, low: frozenset[str] = frozenset(), fused_columns: bool = False) -> BlockWorks:
    """Return the works of an emitted block.

    ``low``: kinds of operators that run in the low-precision format (``linear``, ``expert``, ``head``).
    ``fused_columns``: matrices that read one tensor are one matrix (Megatron's QKV and gated MLP).
    """
    out = BlockWorks()
    for span in e.spans:
        for node, work in _span(e, span, low):
            out.kernels.append(work)
            out.nodes.append(node)
    if fused_columns:
        _fuse(out)
    _sums(e, out, fused_columns)
    _tensor_parallel(e, out)
    _routed(e, out)
    _ring(e, out)
    return out


def _flat(form: Lin) -> dict[str, float]:
    return form.by_monomial()


def _sum(forms: Iterator[Lin]) -> dict[str, float]:
    out: dict[str, float] = {}
    for form in forms:
        for monomial, value in _flat(form).items():
            out[monomial] = out.get(monomial, 0.0) + value
    return out


def _plus(a: dict[str, float], b: dict[str, float], factor: float = 1.0) -> dict[str, float]:
    out = dict(a)
    for key, value in b.items():
        out[key] = out.get(key, 0.0) + factor * value
    return out


def stream(node: Node) -> Stream:
    """The traffic of a node: it reads its inputs and writes its outputs and what it keeps; backward it reads the incoming
    gradient and what was kept, and writes a gradient for every input that wants one."""
    made = {t.storage for t in node.outs}
    fresh = [t for t in node.saved if t not in node.ins and t.storage not in made and not t.grad]
    if node.outs[0].storage is not node.outs[0]:  # a view
        return Stream(node.name, {}, {}, 0.0, 0.0)
    forward = _plus(_sum(t.size for t in node.ins), _sum(t.size for t in (*node.outs, *fresh)))
    loss = not node.outs[0].size
    if loss:  # logits are read once more for their gradient, which is written over them or in their place
        forward = _plus(forward, _sum(t.size for t in node.ins), 2.0 if node.passes else 1.0)
        forward = _plus(forward, _flat(node.work), 2.0)
    backward: dict[str, float] = {}
    if not node.passes and any(t.grad for t in node.outs):
        backward = _plus(_sum(t.size for t in node.outs), _sum(t.size for t in node.saved))
        backward = _plus(backward, _sum(t.size for t in node.ins if t.grad))
        if loss:
            backward = _plus(backward, _flat(node.bwork), 2.0)
    return Stream(node.name, forward, backward, 1.0, 1.0 if backward else 0.0)


def _span(e: Emitter, span: Span, low: frozenset[str]) -> Iterator[tuple[str, Product | Core | Stream]]:
    """Kernels of one operator."""
    op, nodes = span.op, e.tape.nodes[span.start : span.end]
    for node in nodes:
        if node.name.endswith(".a2a"):  # an exchange, which is no kernel
            continue
        work = _kernel(e, op, span, node, low)
        yield node.name, work if work is not None else stream(node)


def _kernel(e: Emitter, op: Operator, span: Span, node: Node, low: frozenset[str]) -> Product | Core | None:
    """The kernel that a node is, if it is more than traffic."""
    maker: Callable[..., Product | Core | None] | None = _KERNELS.get(type(op))
    return None if maker is None else maker(e, op, span, node, low)


def _rows(span: Span, shard: str = "1") -> tuple[str, float]:
    return f"{span.rows[0]}/{shard}", span.rows[1]


def _trains(e: Emitter, op: Operator) -> bool:
    return bool(e.weights.trains(op))


def _wants(node: Node) -> bool:
    return any(t.grad for t in node.ins)


def _linear(e: Emitter, op: Linear, span: Span, node: Node, low: frozenset[str]) -> Product | None:
    shard = {"col": ("tp", "1"), "row": ("1", "tp"), "": ("1", "1")}[op.split]
    if node.name == op.name:
        # a matrix that stays whole works on this rank's part of the sequence
        rows = _rows(span, "1" if op.split else "sp")
        return Product(
            op.name,
            rows,
            float(op.d_out),
            float(op.d_in),
            *shard,
            trains=_trains(e, op),
            input_grad=_wants(node),
            low="linear" in low,
            unit=e.style.compute,
        )
    return _low_rank(e, op, span, node, float(op.d_in), shard)


def _low_rank(e: Emitter, op: Linear | Head, span: Span, node: Node, d_in: float, shard: tuple[str, str]) -> Product | None:
    adapter = e.weights.adapter(op)
    if adapter is None:
        return None
    if node.name == f"{op.name}.lora_A":
        return Product(
            node.name, _rows(span), adapter.rank, d_in, "1", shard[1], trains=not adapter.frozen, input_grad=_wants(node)
        )
    if node.name == f"{op.name}.lora_B":
        return Product(node.name, _rows(span), adapter.outputs, adapter.rank, shard[0], "1", input_grad=True)
    return None


def _head(e: Emitter, op: Head, span: Span, node: Node, low: frozenset[str]) -> Product | None:
    trains = (op.tied and e.weights.recipe.adapter is None) or (_trains(e, op) and not op.tied)
    if node.name in (op.name, "fused_linear_cross_entropy", "chunked_cross_entropy"):
        return Product(
            op.name,
            _rows(span),
            float(op.rows),
            float(op.dim),
            "tp",
            "1",
            trains=trains,
            input_grad=_wants(node),
            low="head" in low,
            unit=e.style.compute,
        )
    return _low_rank(e, op, span, node, float(op.dim), ("tp", "1"))


def _experts(e: Emitter, op: Experts, span: Span, node: Node, low: frozenset[str]) -> Product | None:
    first = float(op.ffn * (2 if op.gated else 1))
    kind = {f"{op.name}.up": (first, float(op.dim), "etp", "1"), f"{op.name}.down": (float(op.dim), float(op.ffn), "1", "etp")}
    if node.name not in kind:
        return None
    n, k, n_shard, k_shard = kind[node.name]
    routed = op.experts if op.dense else op.top_k
    return Product(
        node.name,
        (f"{span.rows[0]}/r", span.rows[1] * routed),
        n,
        k,
        n_shard,
        k_shard,
        batch=("1/e", float(op.experts)),
        spread=True,
        trains=_trains(e, op),
        input_grad=_wants(node),
        low="expert" in low,
        grouped=True,
        unit=e.style.compute,
    )


def _router(e: Emitter, op: Router, span: Span, node: Node, _: frozenset[str]) -> Product | None:
    if node.name != op.name:
        return None
    return Product(
        op.name,
        _rows(span, "sp"),
        float(op.experts),
        float(op.dim),
        trains=_trains(e, op),
        input_grad=_wants(node),
        unit=e.style.compute,
    )


def _conv(e: Emitter, op: Conv, span: Span, node: Node, _: frozenset[str]) -> Product | None:
    if node.name != op.name:
        return None
    window = 1.0
    for width in op.kernel:
        window *= width
    if op.groups > 1 and op.groups == op.c_in:
        return None  # depthwise: bound by its traffic
    out = next(iter(node.outs[0].size.by_monomial()), f"{span.rows[0]}/1")
    rows = node.outs[0].size.by_monomial().get(out, 0.0) / (op.c_out * node.outs[0].unit)
    return Product(
        op.name,
        (out.split("/")[0] + "/1", rows),
        float(op.c_out // op.groups),
        op.c_in / op.groups * window,
        batch=("1/1", float(op.groups)),
        trains=_trains(e, op),
        input_grad=_wants(node),
        unit=e.style.compute,
    )


def _attention(e: Emitter, op: Attention, span: Span, node: Node, _: frozenset[str]) -> Product | Core | None:
    place = e.places.get(span.ins[1], e.home) if len(span.ins) > 1 else e.home
    written = any(n.name == f"{op.name}.scores" for n in e.tape.nodes[span.start : span.end])
    if not (written or eager(e.style, op)):
        return Core(op.name, op, _rows(span, "tp"), place[0], place[1], e.style.compute) if node.name == op.name else None
    long = (f"{ {'T': 'S', 'E': 'F', 'B': '1'}[place[0]] }/1", place[1])
    batch = ("B/tp", float(op.heads))
    rows = ({"T": "S/cp", "E": "F/1", "B": "1/1"}[span.rows[0]], span.rows[1])
    if node.name == f"{op.name}.scores":
        return Product(node.name, rows, 0.0, float(op.head_dim), batch=batch, inner=long, weighted=False, unit=node.outs[0].unit)
    if node.name == op.name:
        return Product(node.name, rows, float(op.v_dim), 0.0, batch=batch, deep=long, weighted=False, unit=node.outs[0].unit)
    return None


def _scan(e: Emitter, op: Scan, span: Span, node: Node, _: frozenset[str]) -> Product | None:
    """A chunked scan is products of chunks of the sequence with the state (Mamba-2, arXiv 2405.21060, section 6)."""
    if op.kind in ("mamba1", "rglru") or node.name != op.name:
        return None
    return Product(
        op.name,
        _rows(span, "1"),
        float(op.d_inner),
        2.0 * max(1.0, op.state / max(1, op.d_inner)),
        "tp",
        "1",
        weighted=False,
        unit=e.style.compute,
    )


_KERNELS: dict[type[Operator], Callable[..., Product | Core | None]] = {
    Linear: _linear,
    Head: _head,
    Experts: _experts,
    Router: _router,
    Conv: _conv,
    Attention: _attention,
    Scan: _scan,
}


def _fuse(out: BlockWorks) -> None:
    """Join matrices whose names Megatron-Core merges: queries, keys and values; gate and up."""
    for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("shared_gate_proj", "shared_up_proj")):
        found = [i for i, w in enumerate(out.kernels) if isinstance(w, Product) and w.name.rsplit(".", 1)[-1] in names]
        if len(found) != len(names):
            continue
        parts = [out.kernels[i] for i in found]
        if len({(p.rows, p.k, p.n_shard) for p in parts if isinstance(p, Product)}) > 1:
            continue
        first = parts[0]
        assert isinstance(first, Product)  # noqa: S101  # found by that
        width = sum(p.n for p in parts if isinstance(p, Product))
        out.kernels[found[0]] = replace(first, name="+".join(names), n=width)
        for i in reversed(found[1:]):
            del out.kernels[i], out.nodes[i]


def _sums(e: Emitter, out: BlockWorks, fused: bool) -> None:
    """Gradients that meet where a tensor is read more than once: each further one is added, two read and one written."""
    readers: dict[Tensor, set[str]] = {}
    sizes: dict[Tensor, dict[str, float]] = {}
    for span in e.spans:
        for t in span.ins:
            if t.grad:
                name = "columns" if fused and isinstance(span.op, Linear) else span.op.name
                readers.setdefault(t.storage, set()).add(name)
                sizes[t.storage] = _flat(t.size)
    for tensor, names in readers.items():
        if len(names) > 1:
            back = {m: 3.0 * v * (len(names) - 1) for m, v in sizes[tensor].items()}
            out.kernels.append(Stream("gradient_sum", {}, back, 0.0, float(len(names) - 1)))
            out.nodes.append("gradient_sum")


def _tensor_parallel(e: Emitter, out: BlockWorks) -> None:
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
                out.forward.append(Exchange(op.name, "tp", "all_gather", size))
                if grads:
                    out.backward.append(Exchange(op.name, "tp", "reduce_scatter", size))
                if _trains(e, op):
                    out.backward.append(Exchange(f"{op.name}.again", "tp", "all_gather", size))
            elif grads:
                out.backward.append(Exchange(op.name, "tp", "all_reduce", size))
        elif st.sequence_parallel:
            out.forward.append(Exchange(op.name, "tp", "reduce_scatter", size))
            out.backward.append(Exchange(op.name, "tp", "all_gather", size))
        else:
            out.forward.append(Exchange(op.name, "tp", "all_reduce", size))


def _routed(e: Emitter, out: BlockWorks) -> None:
    """Dispatch and combine of routed tokens: each once forward and once backward, in every layer with experts."""
    for span in e.spans:
        op = span.op
        if isinstance(op, Experts):
            size = {f"{span.rows[0]}/r": span.rows[1] * op.top_k * op.dim * e.style.compute}
            for part in ("dispatch", "combine"):
                exchange = Exchange(f"{op.name}.{part}", "ep", "all_to_all", size, float(op.top_k))
                out.forward.append(exchange)
                out.backward.append(exchange)


def _ring(e: Emitter, out: BlockWorks) -> None:
    """Keys and values that context parallelism passes round (Ring Attention, arXiv 2310.01889), backward their gradients too."""
    for span in e.spans:
        op = span.op
        if isinstance(op, Attention) and op.memory == "self" and span.rows[0] == "T":
            size = {"T/tp": float(op.kv_heads * (op.head_dim + op.v_dim)) * e.style.compute}
            out.forward.append(Exchange(op.name, "cp", "ring", size))
            out.backward.append(Exchange(op.name, "cp", "ring", {key: 2.0 * v for key, v in size.items()}))
