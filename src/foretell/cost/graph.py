"""What a tape is made of: tensors, nodes, and the levels of memory that replaying them reaches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretell.cost.linear import Lin


class Tensor:
    """A value on the tape.

    ``size`` in bytes, ``unit`` bytes per element; views share ``storage``; ``grad`` says whether it needs one.
    """

    __slots__ = ("grad", "held", "name", "size", "storage", "unit")

    def __init__(self, name: str, size: Lin, grad: bool, storage: Tensor | None = None, unit: float = 2.0) -> None:
        """Make a value; with ``storage`` a view of that tensor."""
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
    narrow: float = 0.0
    """Its weight gradient comes in a narrower format, as this share of its bytes, and is converted once what the node kept
    is gone (autocast); 0: it comes as it stays."""


class Point:
    """A level of memory, and where it was reached; ``flat`` is its size by monomial."""

    __slots__ = ("_flat", "operator", "phase", "size")

    def __init__(self, phase: str, operator: str, size: Lin) -> None:
        """Note a level."""
        self.phase = phase
        self.operator = operator
        self.size = size
        self._flat: dict[str, float] | None = None

    @property
    def flat(self) -> dict[str, float]:
        """Bytes by monomial, whatever they are for."""
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
