"""Equal layers: where a model repeats itself, and the same model with fewer of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from foretell.trace.engine.equal import holders, signatures

__all__ = [
    "Stack",
    "before_sharding",
    "blocks_of",
    "keep",
    "kept_layers",
    "share_recorded",
    "shorten",
    "shortening",
    "stacks_of",
]

LEAST = 6
"""Repetitions from which leaving some out can be worth the check."""
_LEFT = 4
"""Repetitions that are left, on average."""
_SPREAD = 6
"""Layers in the middle that are recorded, all in all, each with another remainder by this number."""
Container = nn.ModuleList | nn.Sequential | nn.ModuleDict


@dataclass(frozen=True, slots=True)
class Stack:
    """A container of layers of which ``repeats`` periods of ``period`` layers, from ``start`` on, are equal."""

    name: str
    layers: Container
    start: int
    period: int
    repeats: int
    count: int
    """Layers in the container."""

    @property
    def shape(self) -> tuple[str, int, int, int, int]:
        """Return what is the same for the stack of a model that was built again."""
        return self.name, self.start, self.period, self.repeats, self.count

    @property
    def modules(self) -> int:
        """Return the number of modules in one period."""
        layers = [*self.layers._modules.values()][self.start : self.start + self.period]
        return sum(len([*layer.modules()]) for layer in layers if layer is not None)

    def place(self, index: int) -> tuple[int, int] | None:
        """Return the number of the period and the place in it of a layer; None: it is outside the stretch."""
        at = index - self.start
        return divmod(at, self.period) if 0 <= at < self.period * self.repeats else None


def blocks_of(model: nn.Module) -> list[nn.ModuleList]:
    """Return the model's outermost lists of layers, which are sharded layer by layer."""
    found: list[nn.ModuleList] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and id(module) not in inside and len(module) > 1:
            found.append(module)
            inside.update(id(inner) for inner in module.modules())
    return found


def stacks_of(model: nn.Module) -> list[Stack]:
    """Return the outermost stacks of equal layers: those with as many repetitions as the ones that hold most of the model."""
    found: list[Stack] = []
    inside: set[int] = set()
    owners = holders(model)
    for name, module in model.named_modules():
        if isinstance(module, Container) and len(module) >= LEAST and id(module) not in inside:
            start, period, repeats = _period(signatures([*module._modules.values()], owners))
            if repeats >= LEAST:
                found.append(Stack(name, module, start, period, repeats, len(module)))
                inside.update(id(inner) for inner in module.modules())
    held: dict[int, int] = {}
    for stack in found:
        held[stack.repeats] = held.get(stack.repeats, 0) + stack.modules * stack.repeats
    most = max(held, key=lambda repeats: (held[repeats], repeats), default=0)
    return [s for s in found if s.repeats == most]


def share_recorded(model: nn.Module, stacks: list[Stack], counts: tuple[int, ...]) -> float:
    """Return the modules in recordings with these numbers of repetitions, over those in one of the whole model."""
    total = len([*model.modules()])
    unit = sum(s.modules for s in stacks)
    return sum(total - (stacks[0].repeats - count) * unit for count in counts) / total


# -- fewer of them ------------------------------------------------------------------------------------------


def keep(whole: int, count: int) -> list[int]:
    """Return which of ``whole`` repetitions stand for all in a recording of ``count``: the first, the last, and some between.

    Recordings of 3, 4 and 5 have other layers between, far from each other and of every remainder by 6, so that a layer that
    behaves otherwise because of its number is not always left out.

    >>> keep(32, 3), keep(32, 4), keep(32, 5)
    ([0, 14, 31], [0, 6, 15, 31], [0, 7, 22, 29, 31])
    """
    between = range(1, whole - 1)
    if len(between) < _SPREAD or count not in (3, 4, 5):
        return [*range(count - 1), whole - 1]
    chosen = []
    for rest in range(_SPREAD):
        aim = 1 + rest * (len(between) - 1) // (_SPREAD - 1)
        chosen.append(min((i for i in between if i % _SPREAD == rest), key=lambda i: (abs(i - aim), i)))
    part = {3: chosen[2:3], 4: chosen[0:4:3], 5: [chosen[1], *chosen[4:]]}[count]
    return [0, *sorted(part), whole - 1]


def kept_layers(stack: Stack, count: int) -> list[int]:
    """Return the numbers of the layers that are left of a stack with ``count`` repetitions."""
    kept = keep(stack.repeats, count) if count < stack.repeats else range(count)
    return [i for i in range(stack.count) if (place := stack.place(i)) is None or place[0] in kept]


def shorten(stack: Stack, count: int) -> Callable[[], None]:
    """Leave ``count`` repetitions of a stack; return what puts the others back."""
    table = stack.layers._modules
    before = dict(table)
    numbers = set(kept_layers(stack, count))
    left = [layer for i, layer in enumerate(before.values()) if i in numbers]
    table.clear()
    table.update(zip(before, left, strict=False))  # under the first names, as in a model with so many layers

    def restore() -> None:
        table.clear()
        table.update(before)

    return restore


_cuts: list[Callable[[nn.Module], None]] = []


@contextlib.contextmanager
def shortening(cut: Callable[[nn.Module], None]) -> Iterator[None]:
    """Let ``cut`` shorten a model as soon as it is whole: sharding layers that go takes longer than recording those that stay."""
    _cuts.append(cut)
    try:
        yield
    finally:
        _cuts.remove(cut)


def before_sharding(model: nn.Module) -> None:
    """Shorten a model that is being built, if that is wanted."""
    for cut in _cuts:
        cut(model)


def _period(layers: list[str]) -> tuple[int, int, int]:
    """Return start, period and repeats of the stretch that saves most layers where about four repetitions are left of it.

    >>> _period(list("d" + 6 * "ab" + "c"))
    (1, 2, 6)
    """
    best = 0, 1, 0
    count = len(layers)
    for period in range(1, count // LEAST + 1):
        start = 0
        for at in range(count - period + 1):
            if at + period < count and layers[at] == layers[at + period]:
                continue
            repeats = (at - start) // period + 1
            if repeats >= LEAST and (repeats - _LEFT) * period > max(0, best[2] - _LEFT) * best[1]:
                best = start, period, repeats
            start = at + 1
    return best
