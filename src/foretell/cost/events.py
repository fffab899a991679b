"""Programs: what one pass through a block allocates and frees, as numbers, ready for an allocator model.

A program is a list of (bytes, slot): bytes > 0 allocate, 0 free, -1 one more reference.  Slots ``X``, ``OUT`` and ``GOUT``
are those shared with the neighbouring blocks: the block's input, its output and the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foretell.cost.allocator import CachingAllocator, Chunk
from foretell.cost.linear import Lin
from foretell.cost.tape import Tape, Tensor, Trace

X, OUT, GOUT = 0, 1, 2
Number = Callable[[Lin], float]
"""A form's value for the run's sizes."""


@dataclass(slots=True)
class Program:
    """Allocations of one pass; ``weights`` are the slots of weight gradients that outlive it."""

    ops: list[tuple[int, int]] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    grad_in: int = -1
    """Slot of the gradient of the block's input (-1: none)."""

    def play(self, memory: CachingAllocator, slots: list[Any]) -> None:
        malloc, free = memory.malloc, memory.free
        for size, slot in self.ops:
            if size > 0:
                slots[slot] = malloc(size)
            elif size == 0:
                free(slots[slot])
            else:
                slots[slot].refs += 1


class Slots:
    """Numbers for the storages of one block."""

    def __init__(self, tape: Tape, out: Tensor | None) -> None:
        self.numbers: dict[Any, int] = {}
        if tape.x is not None:
            self.numbers[tape.x.storage] = X
        if out is not None:
            self.numbers.setdefault(out.storage, OUT)
        self.count = 3

    def of(self, key: Any) -> int:  # noqa: ANN401  # a tensor or a node
        if key not in self.numbers:
            self.numbers[key] = self.count
            self.count += 1
        return self.numbers[key]


def split(trace: Trace) -> tuple[Trace, Trace]:
    """The forward and the backward part of a log."""
    for i, entry in enumerate(trace):
        if entry[0] == "backward":
            return trace[:i], trace[i + 1 :]
    return trace, []


def program(trace: Trace, slots: Slots, number: Number, *, keep_x: bool = False) -> Program:
    """Number the slots of a log and evaluate its sizes; zero bytes vanish.

    ``keep_x``: the block's input is a checkpoint's, freed by its backward pass only.
    """
    out = Program()
    sizes: dict[int, int] = {}
    empty: set[Any] = set()
    for kind, key, size in trace:
        if kind == "take":
            slots.numbers[key] = GOUT
            continue
        if kind == "give":
            if isinstance(key, Tensor) and key.name.startswith("d_"):
                out.grad_in = slots.of(key)
            continue
        if kind == "backward" or key in empty:
            if kind == "free":
                empty.discard(key)
            continue
        slot = slots.of(key)
        if slot == X and (kind == "alloc" or keep_x):
            continue
        if kind in ("alloc", "weight"):
            assert size is not None
            known = id(size)
            if known not in sizes:
                sizes[known] = round(number(size))
            if sizes[known] <= 0:
                empty.add(key)
                continue
            if kind == "weight":  # a node's slot may hold its workspace: gradients get one of their own
                slot = slots.of(("weight", key))
                out.weights.append(slot)
            out.ops.append((sizes[known], slot))
        elif kind == "free":
            out.ops.append((0, slot))
        else:
            out.ops.append((-1, slot))
    return out


def release(memory: CachingAllocator, chunks: list[Chunk]) -> None:
    """Free everything in a list and empty it."""
    for chunk in chunks:
        memory.free(chunk)
    chunks.clear()
