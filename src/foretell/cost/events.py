"""Programs: what one pass through a block allocates and frees, as numbers, ready for an allocator model.

A program is a list of (bytes, slot): bytes > 0 allocate, 0 free, -1 one more reference.  Slots ``X``, ``OUT`` and ``GOUT``
are those shared with the neighbouring blocks: the block's input, its output and the gradient of its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from foretell.arch.architecture import Block
from foretell.cost.allocator import CachingAllocator, Chunk
from foretell.cost.buffers import Buffers
from foretell.cost.folder import StageFolder
from foretell.cost.linear import Lin
from foretell.cost.recompute import layer_pass
from foretell.cost.states import states
from foretell.cost.tape import Tape, Tensor, Trace

X, OUT, GOUT = 0, 1, 2
Number = Callable[[Lin], float]
"""A form's value for the run's sizes."""


@dataclass(slots=True)
class Program:
    """Allocations of one pass; ``weights`` are the (slot, bytes) of weight gradients that outlive it."""

    ops: list[tuple[int, int]] = field(default_factory=list)
    weights: list[tuple[int, int]] = field(default_factory=list)
    grad_in: int = -1
    """Slot of the gradient of the block's input (-1: none)."""

    def play(self, memory: CachingAllocator, slots: list[Any]) -> None:
        """Run on an allocator; ``slots`` hold the chunks."""
        malloc, free = memory.malloc, memory.free
        for size, slot in self.ops:
            if size > 0:
                slots[slot] = malloc(size)
            elif slots[slot] is None:  # a gradient that nobody made
                continue
            elif size == 0:
                free(slots[slot])
            else:
                slots[slot].refs += 1


class Slots:
    """Numbers for the storages of one block."""

    def __init__(self, tape: Tape, out: Tensor | None) -> None:
        """Begin with the block's input and, where the next block gets it, its output."""
        self.numbers: dict[Any, int] = {}
        if tape.x is not None:
            self.numbers[tape.x.storage] = X
        if out is not None:
            self.numbers.setdefault(out.storage, OUT)
        self.count = 3

    def of(self, key: Any) -> int:  # a tensor or a node
        """Return the number of a storage."""
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
    empty: set[Any] = set()
    values: dict[int, int] = {}

    def value(size: Lin | None) -> int:
        if id(size) not in values:
            values[id(size)] = round(number(size)) if size is not None else 0
        return values[id(size)]

    for kind, key, size in trace:
        if kind == "take":
            slots.numbers[key] = GOUT
        elif kind == "give":
            if key.name.startswith("d_"):
                out.grad_in = slots.of(key)
        elif kind in ("alloc", "weight") and value(size) <= 0:
            empty.add(key)
        elif kind != "backward" and key not in empty:
            _add(out, kind, slots.of(("weight", key) if kind == "weight" else key), value(size), keep_x=keep_x)
        elif kind == "free":
            empty.discard(key)
    return out


def _add(out: Program, kind: str, slot: int, size: int, *, keep_x: bool) -> None:
    if slot == X and (kind == "alloc" or keep_x):
        return
    if kind == "weight":
        out.weights.append((slot, size))
    out.ops.append((size if kind in ("alloc", "weight") else 0 if kind == "free" else -1, slot))


def release(memory: CachingAllocator, chunks: list[Chunk]) -> None:
    """Free everything in a list and empty it."""
    for chunk in chunks:
        memory.free(chunk)
    chunks.clear()


@dataclass(slots=True)
class Kind:
    """A layer's programs, forward and backward; ``shared`` when they use the same slots (nothing is recomputed)."""

    forward: Program
    backward: Program
    slots: tuple[int, int]
    shared: bool
    buffers: tuple[float, float]
    kept: float
    """Outputs that selective checkpointing keeps beside the layer's input."""
    cached: float
    """Copies of trained weights that the autocast cache keeps until the forward pass has ended."""
    sharded: float
    """Bytes of this block's weight gradients once divided (0: they are not)."""


class Programs:
    """The programs of every layer of a rank; equal layers share one."""

    def __init__(self, folder: StageFolder, work: Buffers, number: Number) -> None:
        """Begin without any."""
        self.folder, self.work, self.number = folder, work, number
        self.kinds: dict[tuple[Block, str, bool], Kind] = {}

    def sharded(self, block: Block) -> float:
        """Bytes of a block's weight gradients once divided (0: they are not)."""
        zero = self.folder.par.zero
        return self.number(states([(block, 1.0)], self.folder.plan, zero).gradients) if zero >= 2 else 0.0

    def edge(self, block: Block, *, loss: bool = False) -> tuple[Program, Program, list[Any], list[int]]:
        """Forward and backward of the embedding or the head, room for their slots, and slots of held outputs."""
        folder = self.folder
        e = folder.emitter(block, loss=loss, input_grad=loss or block is not folder.arch.embed or folder.block_trains(block))
        out = e.emit()
        trace: Trace = []
        e.tape.run(out, trace=trace, accumulate=folder.transient)
        slots = Slots(e.tape, out)
        one, two = split(trace)
        forward, backward = program(one, slots, self.number), program(two, slots, self.number)
        held = [slots.numbers[t.storage] for n in e.tape.nodes for t in n.outs if t.held and t.storage in slots.numbers]
        return forward, backward, [None] * slots.count, held

    def kind(self, block: Block, mode: str, flows: bool) -> Kind:
        """Return the programs of a block checkpointed as ``mode`` says."""
        key = (block, mode, flows)
        if key in self.kinds:
            return self.kinds[key]
        folder = self.folder
        e = folder.emitter(block, input_grad=flows)
        out = e.emit()
        first: Trace = []
        second: Trace = []
        memory = layer_pass(
            e.tape,
            out,
            mode,
            folder.recipe.recompute,
            folder.style,
            accumulate=folder.transient,
            checkpoints=block.checkpoints,
            traces=(first, second),
        )
        ahead = Slots(e.tape, out)
        if second:
            back = Slots(e.tape, None)
            forward = program(first, ahead, self.number)
            backward = program(second, back, self.number, keep_x=True)
            backward.ops.append((0, X))
        else:
            back = ahead
            one, two = split(first)
            forward, backward = program(one, ahead, self.number), program(two, back, self.number)
        sharded = self.sharded(block)
        x = e.tape.x.size if e.tape.x is not None else Lin()
        kept = max(0.0, self.number(memory.saved - x)) if second else 0.0
        cached = self.number(e.copies) if second else 0.0
        whole = (self.number(self.work.forward(block)), self.number(self.work.backward(block)))
        self.kinds[key] = Kind(forward, backward, (ahead.count, back.count), not second, whole, kept, cached, sharded)
        return self.kinds[key]

    def layers(self) -> Iterator[tuple[Kind, float]]:
        """Every layer of the rank in forward order, with the micro-batches it has in flight."""
        folder = self.folder
        for run in folder.runs():
            for block, mode, flows in folder.placed(*run):
                yield self.kind(block, mode, flows), folder.stage.in_flight[run[-1]]
