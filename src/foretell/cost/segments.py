"""What the memory fold works with: layers, segments of them, and the levels that a stage ends up with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from foretell.arch.architecture import Block
from foretell.cost.linear import Lin, dominates, total
from foretell.cost.pipeline import Stage
from foretell.cost.recompute import Pass
from foretell.cost.states import StateTerms
from foretell.cost.tape import Point


@dataclass(frozen=True, slots=True)
class StageFold:
    """Levels of one pipeline rank.  ``base`` is resident between steps."""

    stage: Stage
    base: StateTerms
    resident: Lin
    """What is allocated between steps."""
    phases: dict[str, tuple[Point, ...]]
    """Every level by phase, dominated ones dropped: the timeline."""
    saved: Lin = field(default_factory=Lin)
    """What the forward pass of one micro-batch keeps for its backward pass."""
    pooled: tuple[Point, ...] = ()
    """Levels of reserved memory where the run's streams have allocator pools of their own (else empty)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Layers of a stage that are the same block checkpointed the same way."""

    block: Block
    count: float
    memory: Pass
    states: StateTerms
    unfreed: Lin = field(default_factory=Lin)
    """Kept outside autograd's saved tensors (:class:`~foretell.cost.saved.Emitter`)."""
    cached: Lin = field(default_factory=Lin)
    """Copies of weights that the autocast cache keeps until a checkpointed forward pass has ended."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers that run after one another."""

    layers: tuple[Layer, ...]
    chunk: int
    in_flight: float
    order: tuple[int, ...] = ()
    """Which of ``layers`` stands at each place, in forward order."""

    def ends(self, layer: Layer) -> Iterator[tuple[Layer, ...]]:
        """What stands after the last layer of a kind and, if that is another, after the first."""
        kind = next(i for i, other in enumerate(self.layers) if other is layer)
        first, last = self.order.index(kind), len(self.order) - 1 - self.order[::-1].index(kind)
        for place in dict.fromkeys((last, first)):
            counts = Counter(self.order[place + 1 :])
            yield tuple(replace(self.layers[i], count=float(n)) for i, n in counts.items())

    @property
    def saved(self) -> Lin:
        """Activations that one micro-batch leaves here."""
        return saved(self.layers)

    @property
    def wgrad(self) -> Lin:
        """Weight gradients that autograd makes here."""
        return wgrad(self.layers)

    @property
    def gradients(self) -> Lin:
        """Gradients as states between steps."""
        return gradients(self.layers)


def saved(layers: Iterable[Layer]) -> Lin:
    """Activations that one micro-batch leaves in these layers."""
    return total(layer.memory.saved * layer.count for layer in layers)


def wgrad(layers: Iterable[Layer]) -> Lin:
    """Weight gradients that autograd makes in these layers."""
    return total(layer.memory.wgrad * layer.count for layer in layers)


def gradients(layers: Iterable[Layer]) -> Lin:
    """Gradients of these layers as states between steps."""
    return total(layer.states.gradients * layer.count for layer in layers)


def prune(points: Iterable[Point]) -> tuple[Point, ...]:
    """Drop the levels that another level covers (a covering level has the larger sum, so it comes first)."""
    kept: list[Point] = []
    for p in sorted(points, key=lambda p: -sum(p.flat.values())):
        if not any(dominates(other.flat, p.flat) for other in kept):
            kept.append(p)
    return tuple(kept)
