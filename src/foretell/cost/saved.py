"""What each operator keeps for its backward pass, by the style of the framework that runs it.

An :class:`Emitter` puts the operators of a block on a :class:`~foretell.cost.tape.Tape`, each by its rule.  The rules
stand in ``rules_*.py`` and ``loss.py`` (:mod:`foretell.cost.rules` brings them all); they are PyTorch's autograd
formulas (``tools/autograd/derivatives.yaml`` of PyTorch 2.x) applied to the code each style stands for; a
kernel's own choices are cited at the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from foretell.arch.architecture import Block
from foretell.arch.operators import Add, Attention, Linear, Norm, Operator, Parameters, Rope
from foretell.cost.inner import applies, fuse
from foretell.cost.linear import Lin
from foretell.cost.tape import Tape, Tensor
from foretell.errors import InputError
from foretell.recipe.style import Style

ROWS = {"text": "T", "encoder": "E", "sample": "B"}
Place = tuple[str, float]
"""What one row of a tensor is: the monomial that counts rows, and how many there are per unit of it."""


CONDITION: Place = ("B", 77.0)
"""Rows of the conditioning that a diffusion model is given: CLIP's 77 text positions (arXiv 2112.10752)."""


def place_of(block: Block) -> Place:
    """Rows of a block's input."""
    return ROWS[block.stream], float(block.positions or 1) if block.stream == "sample" else 1.0


class Span(NamedTuple):
    """Nodes ``start`` to ``end`` of a tape are operator ``op``, which reads ``ins`` of ``rows``."""

    op: Operator
    start: int
    end: int
    ins: tuple[Tensor, ...]
    rows: Place


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
    heads_first: set[Tensor] = field(init=False, default_factory=set)
    """Queries, keys and values laid out heads first, as a batched product reads them."""
    parts: dict[tuple[str, int], Tensor] = field(init=False, default_factory=dict)
    """Queries, keys and values of a merged projection, by who reads them (an operator and the place of its input)."""
    spans: list[Span] = field(init=False, default_factory=list)
    """Which nodes of the tape each operator is."""

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

    def like(self, t: Tensor, other: Tensor) -> Tensor:
        """Note that ``t`` has the rows of ``other``; returns ``t``."""
        if other in self.places:
            self.places[t] = self.places[other]
        return t

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
            ins = [self.parts.get((op.name, n), t) for n, t in enumerate(ins)]
            if not ins and isinstance(op, Linear):  # the sample itself
                ins = [Tensor("sample", self.size(op.d_in, self.style.residual, "sp"), False, unit=self.style.residual)]
            start, rows = len(self.tape.nodes), (self.rows, self.per)
            rule: Callable[..., Tensor] | None = getattr(op, "emit", None)
            out = rule(self, *ins) if rule is not None else RULES[type(op)](self, op, *ins)
            self.spans.append(Span(op, start, len(self.tape.nodes), tuple(ins), rows))
            if out is not None:
                self.env[op.name] = out
                if out is not previous and (self.rows, self.per) != self.home:
                    self.places[out] = (self.rows, self.per)
                if not isinstance(op, Parameters):
                    previous = out
                if self.style.frames:
                    local = self._frame(i, local, ins)
                if self.style.composite and isinstance(op, Linear):
                    self._divide(op, out)
        if self.style.frames:  # a residual's summands have names until the layer returns
            sums = [op for op in self.block.ops if isinstance(op, Add)]
            self.frame += [self.env[name] for name in (sums[-1].ins if sums else ()) if name in self.env]
        if self.frame:
            self.tape.nodes[-1].extends += tuple(self.frame)
        if previous is None:
            raise InputError("has no operators", field="block", value=self.block.name)
        if self.style.scan == "fused" and applies(self.block.ops):
            fuse(self.tape, self.env)
        return previous

    def _divide(self, op: Linear, whole: Tensor) -> None:
        """Let who reads the queries, keys and values of a merged projection read parts of it; their gradients are put side
        by side in a new tensor."""
        readers = merged(self.block.ops, op.name)
        for n, (reader, place, width) in enumerate(readers):
            size, last = self.size(width, whole.unit, "tp"), n == len(readers) - 1
            part = self.tape.node(f"{op.name}.{n}", [whole], size, view=True, part=last, unit=whole.unit)
            self.parts[reader, place] = part

    def _frame(self, i: int, local: list[Tensor], ins: list[Tensor]) -> list[Tensor]:
        """Tensors that local variables keep: a module's input from its first matmul to its last."""
        ops = self.block.ops
        op = ops[i]
        if isinstance(op, Attention):
            return [*local, *ins]
        if isinstance(op, Linear):
            if op.split != "row":
                return local or [ins[0]]
            self.tape.nodes[-1].extends += tuple(local)
            return []
        return local


def merged(ops: tuple[Operator, ...], source: str) -> list[tuple[str, int, float]]:
    """Who reads queries, keys and values of ``source`` (operator, place of its input, width), where it holds all three."""
    made = {op.name: op for op in ops}
    for core in ops:
        if not isinstance(core, Attention) or len(core.ins) < 3:
            continue
        found = []
        widths = (core.heads * core.head_dim, core.kv_heads * core.head_dim, core.kv_heads * core.v_dim)
        for place, width in enumerate(widths):
            reader, at, name = core.name, place, core.ins[place]
            while isinstance(made.get(name), (Rope, Norm)) and made[name].ins:
                reader, at, name = name, 0, made[name].ins[0]
            if name == source:
                found.append((reader, at, float(width)))
        if len(found) == len(widths):
            return found
    return []


def cast(e: Emitter, x: Tensor, unit: float, shard: str, width: float, name: str = "cast") -> Tensor:
    """A copy of ``x`` in ``unit`` bytes per element, or ``x`` itself."""
    if x.unit == unit:
        return x
    if e.style.cast_once and (x, unit) in e.casts:
        return e.casts[x, unit]
    rows, per = e.places.get(x, (e.rows, e.per))
    size = Lin.of("activations", f"{rows}/{shard}", width * unit * per)
    copy = e.casts[x, unit] = e.like(e.tape.node(name, [x], size, unit=unit), x)
    if x in e.heads_first:
        e.heads_first.add(copy)
    return copy


def sized(e: Emitter, t: Tensor, width: float, unit: float, category: str = "activations") -> Lin:
    """Bytes of a tensor with the rows of ``t``, ``width`` elements a row, divided like the heads."""
    rows, per = e.places.get(t, (e.rows, e.per))
    return Lin.of(category, f"{rows}/tp", width * unit * per)


RULES: dict[type[Operator], Callable[..., Any]] = {}
"""Operator -> the function that puts it on a tape."""
F = TypeVar("F", bound=Callable[..., Any])


def rule(kind: type[Operator]) -> Callable[[F], F]:
    """Register the decorated function as the rule of ``kind``."""

    def register(function: F) -> F:
        RULES[kind] = function
        return function

    return register
