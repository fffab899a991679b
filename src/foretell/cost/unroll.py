"""Replaying a tape with reference counts, as an eager framework does: forward, then backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foretell.cost.graph import BlockMemory, Node, Point, Tensor, Trace
from foretell.cost.linear import Lin, total


@dataclass(frozen=True, slots=True)
class Options:
    """How to replay; see :meth:`foretell.cost.tape.Tape.run`."""

    keep: bool = True
    accumulate: bool = False
    recompute: bool = False
    early_stop: bool = False
    discard: Sequence[frozenset[Tensor]] = ()
    prompt: bool = False
    """Groups are dropped as soon as nothing in the forward pass uses them; else once it is over."""


class Unroll:
    """One replay of a block's nodes."""

    def __init__(self, nodes: list[Node], x: Tensor | None, out: Tensor, options: Options, log: Trace) -> None:
        """Count the uses of every tensor; nothing runs yet."""
        self.nodes, self.x, self.out, self.options, self.log = nodes, x, out, options, log
        self.live = Lin()
        self.refs: dict[Tensor, int] = {}
        self.result = BlockMemory(saved=Lin(), output=out.storage.size)
        self.last_use = {t: i for i, node in enumerate(nodes) for t in (*node.ins, *node.extends)}
        self.grad_out = Lin(out.size).as_category("gradient_flow") if out.grad else Lin()
        self.gone: list[set[Tensor]] = []
        """Storages dropped after the forward pass, by the group that is computed again together."""
        self.grads: dict[Tensor, tuple[Tensor, Lin]] = {}
        """Tensor -> the storage of its gradient, and its size."""
        self.counts: dict[Tensor, int] = {}
        """How many tensors' gradients share a storage."""
        last = len(nodes) - 1
        self.end = max((i for i, n in enumerate(nodes) if n.saved), default=last) if options.early_stop else last
        """Index of the last node that runs forward."""

    # -- storages -------------------------------------------------------------------------------------------

    def hold(self, t: Tensor) -> None:
        """Count one more holder of a tensor's storage."""
        s = t.storage
        if self.refs.get(s, 0) == 0:
            self.live.add(s.size)
            self.log.append(("alloc", s, s.size))
        self.refs[s] = self.refs.get(s, 0) + 1

    def drop(self, t: Tensor) -> None:
        """Count one holder less."""
        s = t.storage
        self.refs[s] -= 1
        if self.refs[s] == 0:
            self.live.add(s.size, -1.0)
            self.log.append(("free", s, None))

    def momentary(self, key: Tensor | Node, size: Lin) -> None:
        """Log what is allocated and freed at once."""
        self.log += [("alloc", key, size), ("free", key, None)]

    # -- forward --------------------------------------------------------------------------------------------

    def run(self) -> BlockMemory:
        """Both passes (the forward one alone where nothing is kept)."""
        options, result = self.options, self.result
        if options.recompute:
            self.live.add(self.grad_out)
        self.enter()
        for i in range(self.end + 1):
            self.forward(i, self.nodes[i])
            if options.prompt:
                self.discard([group for group in options.discard if self.last_of(group) == i])
        if not options.prompt:
            self.discard(options.discard)
        result.saved = Lin(self.live) - (self.grad_out if options.recompute else Lin())
        if options.recompute and self.x is not None and self.refs[self.x.storage] == 1:  # kept by the checkpoint alone
            result.saved.add(self.x.size, -1.0)
        if self.refs.get(self.out.storage, 0) > 0 and not self.out.held:  # the next block counts its input where anybody keeps it
            result.saved.add(self.out.storage.size, -1.0)
        if not options.keep:
            result.saved = Lin()
            return result
        if not options.recompute:
            self.live.add(self.grad_out)
        self.hand_on()
        self.log.append(("backward", None, None))
        result.held = total(t.storage.size for n in self.nodes for t in n.outs if t.held)
        self.seed()
        for node in reversed(self.nodes):
            self.backward(node)
        if self.x is not None and self.x in self.grads:
            result.grad_in = self.grads[self.x][1]
            self.log.append(("give", self.grads[self.x][0], None))
        return result

    def enter(self) -> None:
        """Hold the block's input and what comes from outside (an image, the encoder's output, a parameter)."""
        if self.x is not None:
            self.hold(self.x)
            if self.options.recompute or not self.options.keep:
                self.hold(self.x)  # the checkpoint keeps its input, until its backward has ended
        made = {t for node in self.nodes for t in node.outs}
        for t in self.last_use:
            if t not in made and t is not self.x:
                self.hold(t)

    def forward(self, i: int, node: Node) -> None:
        """Run one node and drop what is used for the last time."""
        keep, out = self.options.keep, self.out
        if node.work:
            self.log.append(("alloc", node, node.work))
        for t in (*node.outs, *(node.saved if keep else ())):
            self.hold(t)
        if node.work:
            self.log.append(("free", node, None))
        recompute = self.options.recompute
        point = Point("backward" if recompute else "forward", node.name, self.live + node.work)
        (self.result.backward if recompute else self.result.forward).append(point)
        for t in () if keep else node.saved:  # statistics made and thrown away in the same step
            if t.storage not in self.refs:
                point.size.add(t.size)
                self.momentary(t, t.size)
        done = [t for t in dict.fromkeys((*node.ins, *node.extends)) if self.last_use[t] == i]
        for t in (*done, *(t for t in node.outs if t not in self.last_use)):
            if t is not out and not t.held:
                self.drop(t)

    def last_of(self, group: frozenset[Tensor]) -> int:
        """Return the index of the last node that uses any of a group's storages."""
        return max(i for i, n in enumerate(self.nodes) if any(t.storage in group for t in (*n.ins, *n.outs, *n.saved)))

    def discard(self, groups: Sequence[frozenset[Tensor]]) -> None:
        """Free groups that are computed again in the backward pass."""
        for group in groups:
            left = {s for s in group if self.refs.get(s, 0) > 0}
            self.gone.append(left)
            for s in left:
                self.live.add(s.size, -1.0)
                self.log.append(("free", s, None))

    def hand_on(self) -> None:
        """Give the output to the next block; a replay that stopped early drops what it had not used up."""
        out, recompute = self.out, self.options.recompute
        if self.end < len(self.nodes) - 1:  # the block's input stays with the checkpoint until its backward has ended
            for node in self.nodes[: self.end + 1]:
                for t in node.outs:
                    if self.last_use.get(t, self.end + 1) > self.end and not t.held:
                        self.drop(t)
        elif not out.held:
            if not recompute:
                self.log.append(("give" if self.refs[out.storage] == 1 else "share", out.storage, None))
            self.drop(out)
            if not recompute and self.log[-1][:2] == ("free", out.storage):
                self.log.pop()

    # -- backward -------------------------------------------------------------------------------------------

    def gradient(self, name: str, size: Lin) -> Tensor:
        """Allocate a gradient."""
        g = Tensor(f"d_{name}", size, grad=False)
        self.counts[g] = 1
        self.live.add(size)
        self.log.append(("alloc", g, size))
        return g

    def seed(self) -> None:
        """Take the output's gradient over from the next block."""
        g = Tensor("d_out", self.grad_out, grad=False)
        self.counts[g] = 1
        self.log.append(("take", g, None))
        self.grads[self.out] = (g, self.grad_out)

    def backward(self, node: Node) -> None:
        """Run a node's backward and free what it alone kept."""
        self.restore(node)
        o = node.outs[0]
        if not o.grad or o not in self.grads:
            self.drop_all(node)
            return
        g, size = self.grads.pop(o)
        if node.inplace:
            self.drop_all(node)
        transient = Lin(node.bwork)
        if node.bwork:
            self.log.append(("alloc", node, node.bwork))
        transient.add(node.wgrad * node.narrow if node.narrow else self.weight_gradient(node))
        sums = self.input_gradients(node, o, g, size)
        for t, t_size in sums:
            transient.add(t_size)
            self.sum_into(t, t_size)
        if node.bwork:
            self.log.append(("free", node, None))
        self.result.backward.append(Point("backward", node.name, self.live + transient))
        self.counts[g] -= 1
        if self.counts[g] == 0:
            self.live.add(size, -1.0)
            self.log.append(("free", g, None))
        if not node.inplace:
            self.drop_all(node)
        if node.narrow and node.wgrad:  # converted: both formats for a moment
            both = self.weight_gradient(node) + node.wgrad * node.narrow
            self.result.backward.append(Point("backward", node.name, self.live + both))

    def drop_all(self, node: Node) -> None:
        """Drop the tensors that a node kept."""
        for t in node.saved:
            self.drop(t)

    def restore(self, node: Node) -> None:
        """Compute a discarded group again when its first tensor is needed."""
        for group in self.gone:
            if any(t.storage in group for t in node.saved):
                for s in group:
                    if self.refs[s] > 0:
                        self.live.add(s.size)
                        self.log.append(("alloc", s, s.size))
                group.clear()

    def weight_gradient(self, node: Node) -> Lin:
        """Make a node's weight gradient; returns it where it is added to an existing one and freed."""
        if not node.wgrad:
            return node.wgrad
        self.result.wgrad.add(node.wgrad)
        if self.options.accumulate:
            self.momentary(node, node.wgrad)
            return node.wgrad
        self.live.add(node.wgrad)
        self.log.append(("weight", node, node.wgrad))
        return Lin()

    def input_gradients(self, node: Node, o: Tensor, g: Tensor, size: Lin) -> list[tuple[Tensor, Lin]]:
        """Make (or hand on) the gradients of a node's inputs; returns those that add to an existing one."""
        wanted = list(dict.fromkeys(t for t in node.ins if t.grad))
        if len(wanted) == BINARY:  # autograd's generated functions make the gradient of the second operand first
            wanted.reverse()
        sums: list[tuple[Tensor, Lin]] = []
        for t in wanted:
            if node.passes and t.unit == o.unit:
                if t not in self.grads:  # else summed into the gradient that is already there
                    self.counts[g] += 1
                    self.grads[t] = (g, size)
                continue
            t_size = (node.grad_size or t.size).as_category("gradient_flow")
            if t in self.grads:
                sums.append((t, t_size))
            else:
                self.grads[t] = (self.gradient(t.name, t_size), t_size)
        return sums

    def sum_into(self, t: Tensor, size: Lin) -> None:
        """Add a contribution to a gradient: in place where nothing else holds it (autograd ``input_buffer.cpp``)."""
        more = Tensor(f"d_{t.name}", size, grad=False)
        self.log.append(("alloc", more, size))
        old, old_size = self.grads[t]
        if self.counts[old] > 1:
            self.counts[old] -= 1
            self.grads[t] = (self.gradient(t.name, size), old_size)
        self.log.append(("free", more, None))


BINARY = 2
