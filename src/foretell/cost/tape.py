"""A tape: one block's forward and backward pass as nodes over tensors, and the memory it holds at each node.

This is autograd in miniature.  A node reads tensors, makes tensors, keeps some for its backward pass and needs
workspace in either direction.  :meth:`Tape.run` replays the nodes with reference counts, as an eager framework
does, and gives linear forms (:class:`~foretell.cost.linear.Lin`) instead of numbers: what stays after the
forward pass, and every level that memory reaches on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foretell.cost.linear import Lin, total


class Tensor:
    """A value on the tape.

    ``size`` in bytes, ``unit`` bytes per element; views share ``storage``; ``grad`` says whether it needs one.
    """

    __slots__ = ("grad", "held", "name", "size", "storage", "unit")

    def __init__(self, name: str, size: Lin, grad: bool, storage: Tensor | None = None, unit: float = 2.0) -> None:
        self.name = name
        self.size = size
        self.unit = unit
        self.grad = grad
        self.storage: Tensor = storage.storage if storage is not None else self
        self.held = False
        """Kept by the caller's code until the end of the backward pass (a returned ``logits``)."""


@dataclass(slots=True, eq=False)
class Node:
    """One step: ``saved`` tensors live until its backward ran; ``work``/``bwork`` are transient workspace."""

    name: str
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    work: Lin
    bwork: Lin
    wgrad: Lin
    passes: bool
    """Its backward hands the incoming gradient on without a copy (addition, views)."""
    grad_size: Lin | None = None
    inplace: bool = False
    """Its backward writes gradients over the tensors it kept."""
    extends: tuple[Tensor, ...] = ()
    """Tensors that the caller's frame keeps alive up to here in the forward pass."""


class Point:
    """A level of memory, and where it was reached; ``flat`` is its size by monomial."""

    __slots__ = ("_flat", "operator", "phase", "size")

    def __init__(self, phase: str, operator: str, size: Lin) -> None:
        self.phase = phase
        self.operator = operator
        self.size = size
        self._flat: dict[str, float] | None = None

    @property
    def flat(self) -> dict[str, float]:
        if self._flat is None:
            self._flat = self.size.by_monomial()
        return self._flat


@dataclass(slots=True)
class BlockMemory:
    """What one pass through a block holds, above what was there before (its input ``x`` counts as inside)."""

    saved: Lin
    """Live after the forward pass, ``x`` included when the block keeps it."""
    output: Lin
    """The output handed to the next block."""
    forward: list[Point] = field(default_factory=list)
    backward: list[Point] = field(default_factory=list)
    """Levels of the backward pass: incoming gradient, still-saved tensors, new gradients, workspace."""
    wgrad: Lin = field(default_factory=Lin)
    """Weight gradients that the whole backward pass leaves behind."""
    held: Lin = field(default_factory=Lin)
    """Outputs that the caller keeps (a returned ``logits``)."""
    grad_in: Lin = field(default_factory=Lin)


Trace = list[tuple[str, Any, Lin | None]]
"""What a run allocates (``alloc``), releases (``free``), leaves behind (``weight``), takes over from the next block
(``take``), hands on (``give``) or hands on and keeps (``share``); ``backward`` separates the passes."""


class Tape:
    """Records nodes of one block; ``input`` is the block's ``x``."""

    def __init__(self, x: Tensor | None) -> None:
        self.x = x
        self.nodes: list[Node] = []

    def node(
        self,
        name: str,
        ins: Sequence[Tensor],
        size: Lin | None = None,
        *,
        saved: Sequence[Tensor] = (),
        work: Lin | None = None,
        bwork: Lin | None = None,
        wgrad: Lin | None = None,
        view: bool = False,
        passes: bool = False,
        trainable: bool = False,
        grad_size: Lin | None = None,
        unit: float | None = None,
        extends: Sequence[Tensor] = (),
        inplace: bool = False,
    ) -> Tensor:
        """Record a node with one output of ``size`` bytes (``view``: shares the first input's storage)."""
        grad = trainable or any(t.grad for t in ins)
        out = Tensor(
            name, ins[0].size if view and size is None else (size or Lin()), grad, ins[0] if view else None,
            unit if unit is not None else (ins[0].unit if ins else 2.0),
        )  # fmt: skip
        self.nodes.append(
            Node(name, tuple(ins), (out,), tuple(saved) if grad else (), work or Lin(), bwork or Lin(), wgrad or Lin(),
                 passes or view, grad_size, inplace, tuple(extends))
        )  # fmt: skip
        return out

    def extra(self, name: str, size: Lin) -> Tensor:
        """A tensor that a node makes only to keep (softmax statistics, masks): give it to ``saved``."""
        return Tensor(name, size, False)

    def last_kept(self) -> int:
        """Index of the last node that keeps a tensor for its backward pass."""
        return max((i for i, n in enumerate(self.nodes) if n.saved), default=len(self.nodes) - 1)

    # -- replay ---------------------------------------------------------------------------------------------

    def run(
        self,
        out: Tensor,
        *,
        keep: bool = True,
        accumulate: bool = False,
        recompute: bool = False,
        early_stop: bool = False,
        discard: Sequence[frozenset[Tensor]] = (),
        trace: Trace | None = None,
    ) -> BlockMemory:
        """Replay forward and backward.

        ``keep=False``: nothing is saved (a checkpointed first pass).  ``accumulate``: weight gradients already
        exist, new ones are transient.  ``recompute``: the forward runs inside the backward pass (the incoming
        gradient is live all along, its points are backward points), with ``early_stop`` only up to the last node that
        keeps something.  ``discard``: groups of storages that are
        dropped after the forward pass and computed again, group by group, when the backward pass needs one.
        ``trace`` receives every allocation and release in order.
        """
        live = Lin()
        refs: dict[Tensor, int] = {}
        log: Trace = [] if trace is None else trace

        def hold(t: Tensor) -> None:
            s = t.storage
            if refs.get(s, 0) == 0:
                live.add(s.size)
                log.append(("alloc", s, s.size))
            refs[s] = refs.get(s, 0) + 1

        def drop(t: Tensor) -> None:
            s = t.storage
            refs[s] -= 1
            if refs[s] == 0:
                live.add(s.size, -1.0)
                log.append(("free", s, None))

        result = BlockMemory(saved=Lin(), output=out.storage.size)
        last_use: dict[Tensor, int] = {}
        for i, node in enumerate(self.nodes):
            for t in (*node.ins, *node.extends):
                last_use[t] = i
        grad_out = Lin(out.size).as_category("gradient_flow") if out.grad else Lin()
        if recompute:
            live.add(grad_out)
        points = result.backward if recompute else result.forward
        phase = "backward" if recompute else "forward"
        if self.x is not None:
            hold(self.x)
            if not keep:
                hold(self.x)  # the checkpoint keeps its input
        made = {t for node in self.nodes for t in node.outs}
        for t in last_use:
            if t not in made and t is not self.x:  # what comes from outside: an image, the encoder's output, a parameter
                hold(t)
        end = self.last_kept() if recompute and early_stop else len(self.nodes) - 1
        for i, node in enumerate(self.nodes):
            if i > end:
                break
            if node.work:
                log.append(("alloc", node, node.work))
            for t in node.outs:
                hold(t)
            if keep:
                for t in node.saved:
                    hold(t)
            if node.work:
                log.append(("free", node, None))
            points.append(Point(phase, node.name, live + node.work))
            if not keep:
                for t in node.saved:  # statistics made and thrown away in the same step
                    if t.storage not in refs:
                        points[-1].size.add(t.size)
                        log += [("alloc", t, t.size), ("free", t, None)]
            for t in dict.fromkeys((*node.ins, *node.extends)):
                if last_use[t] == i and t is not out and not t.held:
                    drop(t)
            for t in node.outs:
                if t not in last_use and t is not out and not t.held:
                    drop(t)
        gone = [{s for s in group if refs.get(s, 0) > 0} for group in discard]
        for group in gone:
            for s in group:
                live.add(s.size, -1.0)
                log.append(("free", s, None))
        result.saved = Lin(live) - (grad_out if recompute else Lin())
        if refs.get(out.storage, 0) > 0 and not out.held:  # the next block counts its input where anybody keeps it
            result.saved.add(out.storage.size, -1.0)
        if not keep:
            result.saved = Lin()
            return result
        if not recompute:
            live.add(grad_out)
        if end < len(self.nodes) - 1:
            for t in (t for n in self.nodes[: end + 1] for t in n.outs if last_use.get(t, end + 1) > end and not t.held):
                drop(t)  # the block's input stays with the checkpoint until its backward has ended
        elif not out.held:
            if not recompute:  # handed to the next block
                log.append(("give" if refs[out.storage] == 1 else "share", out.storage, None))
            drop(out)
            if not recompute and log[-1][:2] == ("free", out.storage):
                log.pop()
        log.append(("backward", None, None))
        result.held = total(t.storage.size for n in self.nodes for t in n.outs if t.held)
        self._backward(out, live, refs, grad_out, accumulate, result, drop, gone, log)
        return result

    def _backward(self, out, live, refs, grad_out, accumulate, result, drop, gone, log) -> None:  # type: ignore[no-untyped-def]
        grads: dict[Tensor, tuple[Tensor, Lin]] = {}  # tensor -> (storage of its gradient, size)
        counts: dict[Tensor, int] = {}

        def new_grad(t: Tensor, size: Lin) -> Tensor:
            g = Tensor(f"d_{t.name}", size, False)
            counts[g] = 1
            live.add(size)
            log.append(("alloc", g, size))
            return g

        seed = Tensor("d_out", grad_out, False)
        counts[seed] = 1
        log.append(("take", seed, None))
        grads[out] = (seed, grad_out)
        for node in reversed(self.nodes):
            o = node.outs[0]
            for group in gone:
                if any(t.storage in group for t in node.saved):
                    for s in group:
                        if refs[s] > 0:
                            live.add(s.size)
                            log.append(("alloc", s, s.size))
                    group.clear()
            if not o.grad or o not in grads:
                for t in node.saved:
                    drop(t)
                continue
            g, size = grads.pop(o)
            wanted = list(dict.fromkeys(t for t in node.ins if t.grad))
            if len(wanted) == 2:  # autograd's generated functions make the gradient of the second operand first
                wanted.reverse()
            if node.inplace:
                for t in node.saved:
                    drop(t)
            transient = Lin(node.bwork)
            if node.bwork:
                log.append(("alloc", node, node.bwork))
            if node.wgrad:
                if accumulate:
                    transient.add(node.wgrad)
                    log += [("alloc", node, node.wgrad), ("free", node, None)]
                else:
                    live.add(node.wgrad)
                    log.append(("weight", node, node.wgrad))
                result.wgrad.add(node.wgrad)
            sums: list[tuple[Tensor, Lin]] = []
            for t in wanted:
                if node.passes and t.unit == o.unit:
                    if t in grads:  # summed into the gradient that is already there
                        continue
                    counts[g] += 1
                    grads[t] = (g, size)
                    continue
                t_size = (node.grad_size or t.size).as_category("gradient_flow")
                if t in grads:
                    transient.add(t_size)
                    sums.append((t, t_size))
                else:
                    grads[t] = (new_grad(t, t_size), t_size)
            for t, t_size in sums:  # added in place where nothing else holds the gradient (autograd input_buffer.cpp)
                more = Tensor(f"d_{t.name}", t_size, False)
                log.append(("alloc", more, t_size))
                old, old_size = grads[t]
                if counts[old] > 1:
                    counts[old] -= 1
                    sum_of = Tensor(f"d_{t.name}", t_size, False)
                    counts[sum_of] = 1
                    grads[t] = (sum_of, old_size)
                    live.add(old_size)
                    log.append(("alloc", sum_of, t_size))
                log.append(("free", more, None))
            if node.bwork:
                log.append(("free", node, None))
            result.backward.append(Point("backward", node.name, live + transient))
            counts[g] -= 1
            if counts[g] == 0:
                live.add(size, -1.0)
                log.append(("free", g, None))
            for t in () if node.inplace else node.saved:
                drop(t)
        if self.x is not None and self.x in grads:
            result.grad_in = grads[self.x][1]
            log.append(("give", grads[self.x][0], None))
