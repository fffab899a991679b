"""A tape: one block's forward and backward pass as nodes over tensors, and the memory it holds at each node.

This is autograd in miniature.  A node reads tensors, makes tensors, keeps some for its backward pass and needs
workspace in either direction.  :meth:`Tape.run` replays the nodes with reference counts, as an eager framework
does, and gives linear forms (:class:`~foretell.cost.linear.Lin`) instead of numbers: what stays after the
forward pass, and every level that memory reaches on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from foretell.cost.graph import BlockMemory, Node, Point, Tensor, Trace
from foretell.cost.linear import Lin
from foretell.cost.unroll import Options, Unroll

__all__ = ["BlockMemory", "Node", "Point", "Tape", "Tensor", "Trace"]


class Tape:
    """Records nodes of one block; ``input`` is the block's ``x``."""

    def __init__(self, x: Tensor | None) -> None:
        """Begin an empty tape."""
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
        part: bool = False,
        passes: bool = False,
        trainable: bool = False,
        grad_size: Lin | None = None,
        unit: float | None = None,
        extends: Sequence[Tensor] = (),
        inplace: bool = False,
        narrow: float = 0.0,
    ) -> Tensor:
        """Record a node with one output of ``size`` bytes (``view``: shares the first input's storage; ``part``: it is a
        part of it, whose gradient is written into a new one of the whole)."""
        grad = trainable or any(t.grad for t in ins)
        out = Tensor(
            name,
            ins[0].size if view and size is None else (size or Lin()),
            grad,
            ins[0] if view else None,
            unit if unit is not None else (ins[0].unit if ins else 2.0),
        )
        self.nodes.append(
            Node(
                name,
                tuple(ins),
                (out,),
                tuple(saved) if grad else (),
                work or Lin(),
                bwork or Lin(),
                wgrad or Lin(),
                passes or (view and not part),
                grad_size,
                inplace,
                tuple(extends),
                narrow,
            )
        )
        return out

    def extra(self, name: str, size: Lin) -> Tensor:
        """A tensor that a node makes only to keep (softmax statistics, masks): give it to ``saved``."""
        return Tensor(name, size, False)

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
        prompt: bool = False,
        trace: Trace | None = None,
    ) -> BlockMemory:
        """Replay forward and backward.

        ``keep=False``: nothing is saved (a checkpointed first pass).  ``accumulate``: weight gradients already
        exist, new ones are transient.  ``recompute``: the forward runs inside the backward pass (the incoming
        gradient is live all along, its points are backward points), with ``early_stop`` only up to the last node that
        keeps something.  ``discard``: groups of storages that are
        dropped after the forward pass (``prompt``: as soon as nothing in it uses them) and computed again, group by group, when
        the backward pass needs one.
        ``trace`` receives every allocation and release in order.
        """
        options = Options(keep, accumulate, recompute, recompute and early_stop, discard, prompt)
        return Unroll(self.nodes, self.x, out, options, [] if trace is None else trace).run()
