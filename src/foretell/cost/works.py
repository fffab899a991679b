"""From operators to kernels: what one block runs in its forward and backward pass, by name, shape and format.

The nodes of a block's tape (:mod:`foretell.cost.saved`) are what the framework's code runs.  Matrix products and attention
are kernels of their own; every other node moves the bytes of the tensors that it reads and makes.  Nothing here depends on
a run's sizes: shapes are linear forms, like the bytes of the memory fold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foretell.arch.operators import Linear
from foretell.cost.graph import Node, Tensor
from foretell.cost.linear import Lin
from foretell.cost.saved import Emitter, Span
from foretell.cost.works_exchanges import exchanges
from foretell.cost.works_kernels import kernel
from foretell.cost.works_kinds import Core, Exchange, Product, Stream

__all__ = ["BlockWorks", "Core", "Exchange", "Product", "Stream", "block_works"]


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
    out.forward, out.backward = exchanges(e)
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
        work = kernel(e, op, span, node, low)
        yield node.name, work if work is not None else stream(node)


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
