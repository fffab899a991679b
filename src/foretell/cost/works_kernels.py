"""Kernels that do arithmetic: which node of a tape is a matrix product or fused attention, and of what shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretell.arch.operators import Attention, Conv, Experts, Head, Linear, Operator, Router, Scan
from foretell.cost.graph import Node
from foretell.cost.rules_scores import eager
from foretell.cost.saved import Emitter, Span
from foretell.cost.works_kinds import Core, Product

__all__ = ["kernel"]


def kernel(e: Emitter, op: Operator, span: Span, node: Node, low: frozenset[str]) -> Product | Core | None:
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
    if node.name in (op.name, "fused_linear_cross_entropy", "chunked_cross_entropy", "linear_cross_entropy"):
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
    shared: dict[str, Any] = {
        "batch": batch,
        "weighted": False,
        "unit": node.outs[0].unit,
        "causal": op.causal and place[0] == "T" and op.memory == "self",
        "window": op.window,
    }
    if node.name == f"{op.name}.scores":
        return Product(node.name, rows, 0.0, float(op.head_dim), inner=long, **shared)
    if node.name == op.name:
        return Product(node.name, rows, float(op.v_dim), 0.0, deep=long, **shared)
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
