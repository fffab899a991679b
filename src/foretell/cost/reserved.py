"""Reserved memory by replaying a rank's allocations: load, then two steps of forward, loss, backward and optimizer.

The same tapes that give allocated memory log every allocation in order; :class:`~foretell.cost.allocator.CachingAllocator`
says what they make the process reserve.  This is a replay of one rank with numbers, for one run at a time: sweeps use
the linear forms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from foretell.arch.architecture import Architecture
from foretell.cost.allocator import MIB, CachingAllocator, Chunk, DeviceFullError
from foretell.cost.buffers import Buffers, step_workspace
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.events import GOUT, OUT, Kind, Program, Programs, X, release
from foretell.cost.folder import StageFolder
from foretell.cost.linear import Lin
from foretell.cost.loading import Loader
from foretell.cost.sharding import buffers
from foretell.cost.states import states
from foretell.cost.training_memory import folders, sizes_of
from foretell.recipe.resolve import Run

__all__ = ["Replay", "reserved"]

STEPS = 2
"""The first step makes optimizer states, the second shows the steady state."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator held at most; bytes."""

    reserved: float
    allocated: float
    """Peak of allocated bytes in the last step, rounding included."""
    loaded: float
    """Allocated after loading."""
    retries: int = 0
    """Times that the allocator gave cached segments back because the device was full."""
    fits: bool = True
    """False: the run ends out of memory on a device of the given capacity; the other numbers are those at that moment."""


def reserved(
    arch: Architecture,
    run: Run,
    stage: int | None = None,
    *,
    workspace: float = 8.125 * MIB,
    descending: bool = True,
    capacity: float = math.inf,
) -> Replay:
    """Replay one pipeline rank (None: the one that reserves most).

    ``workspace``: bytes of one cuBLAS workspace, of which the forward and the autograd thread make one each.
    ``capacity``: what the device has for the allocator, so that it gives cached segments back, or fails.
    ``descending``: the driver places segments at falling addresses; the other order shows how much ties matter.
    """
    ranks = folders(arch, run)
    chosen = ranks if stage is None else [ranks[stage]]
    replays = [
        _Rank(r, run, workspace, CachingAllocator(expandable=run.expandable, descending=descending, capacity=capacity)).replay()
        for r in chosen
    ]
    return max(replays, key=lambda replay: (not replay.fits, replay.reserved))


@dataclass(slots=True)
class _Pass:
    """One micro-batch under way."""

    layers: list[tuple[Kind, list[Any], list[Any], Chunk | None]] = field(default_factory=list)
    """Programs, slots forward and backward, kept outputs."""
    out: Any = None
    """The last layer's output."""
    embed: Program | None = None
    embed_slots: list[Any] = field(default_factory=list)


class _Rank:
    """One pipeline rank at work."""

    def __init__(self, folder: StageFolder, run: Run, workspace: float, memory: CachingAllocator) -> None:
        self.folder, self.run, self.workspace = folder, run, workspace
        self.basis = Basis(sizes_of(run))
        self.memory = memory
        self.loader = Loader(folder, self.memory, self.number)
        self.work: Buffers = buffers(folder)
        self.programs = Programs(folder, self.work, self.number)
        self.grads: list[Chunk] = []
        self.states: list[Chunk] = []
        self.sizes: list[float] = []
        """Bytes asked for of each gradient."""
        self.until_loss: list[Chunk] = []
        self.until_step: list[Chunk] = []
        self.until_backward: list[Chunk] = []
        base = states(folder.blocks(), folder.plan, folder.par.zero)
        made = self.number(base.gradients)
        self.state_ratio = self.number(base.optimizer) / made if made else 0.0
        self.step_ratio = self.number(step_workspace(folder)) / made if made else 0.0
        self.base = base

    def number(self, form: Lin) -> float:
        return float(evaluate(form.by_monomial(), self.basis))

    # -- replay ---------------------------------------------------------------------------------------------

    def replay(self) -> Replay:
        """Load, then two steps."""
        memory = self.memory
        loaded, fits = 0.0, True
        try:
            self.loader.load(self.work.resident + self.work.passes)
            loaded = float(memory.allocated)
            for _ in range(STEPS):
                memory.peak = memory.allocated
                self.step()
        except DeviceFullError:
            fits = False
        return Replay(float(memory.top), float(memory.peak), loaded, memory.retries, fits)

    def step(self) -> None:
        folder, memory = self.folder, self.memory
        if folder.fresh:
            release(memory, self.grads)
            self.sizes.clear()
        release(memory, self.until_step)
        running = [self.forward(i) for i in range(math.ceil(max(folder.stage.in_flight)))]
        for one in running:
            self.backward(one)
        release(memory, self.until_backward)
        self.optimizer()

    def forward(self, passes: int) -> _Pass:
        """One micro-batch through the rank; ``passes`` were there before (pipeline schedules)."""
        folder, memory = self.folder, self.memory
        done = _Pass()
        current: Chunk | None = None
        if folder.stage.first:
            first, done.embed, done.embed_slots, _ = self.programs.edge(folder.arch.embed)
            first.play(memory, done.embed_slots)
            current = done.embed_slots[OUT]
        if current is None:
            x = folder.emitter(folder.arch.main.blocks[0]).tape.x
            current = memory.malloc(self.number(x.size) if x is not None else 512)
        if not passes:
            self.loader.make(folder.step_tensors(), self.until_backward)
        for kind, in_flight in self.programs.layers():
            if in_flight <= passes:
                continue
            env: list[Any] = [None] * kind.slots[0]
            env[X] = current
            gather = memory.malloc(kind.buffers[0], 1) if kind.buffers[0] else None
            kind.forward.play(memory, env)
            if gather is not None:
                memory.free(gather)
            if not done.layers and not passes and not self.states:
                memory.malloc(self.workspace)
            kept = memory.malloc(kind.kept) if kind.kept else None
            self.loader.make(kind.cached, self.until_loss)
            done.layers.append((kind, env, env if kind.shared else [None] * kind.slots[1], kept))
            current = env[OUT]
        done.out = current
        return done

    def backward(self, done: _Pass) -> None:
        """Loss and backward pass of one micro-batch."""
        folder, memory = self.folder, self.memory
        if folder.stage.last:
            gradient = self.head(done.out)
        else:
            memory.free(done.out)
            gradient = memory.malloc(done.out.size)
        leaf = folder.leaf_embeddings and folder.style.outputs_in_step
        for i, (kind, env, back, kept) in enumerate(reversed(done.layers)):
            back[X], back[GOUT] = env[X], gradient
            if leaf and i == len(done.layers) - 1:
                env[X].refs += 1
                self.until_step.append(env[X])
            gather = memory.malloc(kind.buffers[1], 1) if kind.buffers[1] else None
            kind.backward.play(memory, back)
            self.collect(kind.backward, back, kind.sharded)
            for chunk in (gather, kept):
                if chunk is not None:
                    memory.free(chunk)
            gradient = back[kind.backward.grad_in] if kind.backward.grad_in >= 0 else None
        if done.embed is not None and done.embed.ops:
            done.embed_slots[GOUT] = gradient
            done.embed.play(memory, done.embed_slots)
            tied = self.number(folder.plan.tied_gradient(folder.arch.head.ops[-1])) if folder.arch.tied else 0.0  # type: ignore[arg-type]
            self.collect(done.embed, done.embed_slots, self.programs.sharded(folder.arch.embed), tied)
        elif gradient is not None:
            (self.until_step if leaf else self.until_backward).append(gradient)

    def head(self, x: Chunk) -> Chunk | None:
        """Final norm, projection and loss with its backward; returns the gradient for the last layer."""
        folder, memory = self.folder, self.memory
        forward, backward, env, held = self.programs.edge(folder.arch.head, loss=folder.has_loss)
        env[X] = x
        whole = self.number(self.work.head)
        gather = memory.malloc(whole, 1) if whole else None
        forward.play(memory, env)
        release(memory, self.until_loss)
        if not self.states:
            memory.malloc(self.workspace)
        env[GOUT] = memory.malloc(512)  # gradient of the loss
        backward.play(memory, env)
        self.collect(backward, env, self.programs.sharded(folder.arch.head))
        if gather is not None:
            memory.free(gather)
        keep = self.until_step if folder.style.outputs_in_step else self.until_backward
        keep += [env[slot] for slot in held if env[slot] is not None]
        return env[backward.grad_in] if backward.grad_in >= 0 else None

    def collect(self, done: Program, env: list[Any], sharded: float, tied: float = 0.0) -> None:
        """Weight gradients that a pass left: kept, or divided and freed; one of ``tied`` bytes is added to the head's."""
        chunks = [env[slot] for slot, _ in done.weights]
        if not self.folder.fresh:  # added to what persists
            release(self.memory, chunks)
            return
        if sharded and chunks:
            self.loader.make(sharded, self.grads)
            self.sizes.append(sharded)
            release(self.memory, chunks)
            return
        for chunk, (_, size) in zip(chunks, done.weights, strict=True):
            if size == round(tied):
                self.memory.free(chunk)
            else:
                self.grads.append(chunk)
                self.sizes.append(float(size))

    def optimizer(self) -> None:
        """States at the first step; a foreach step's copies for a moment."""
        sizes = self.sizes or [self.number(self.base.gradients)]
        each = max(1, self.folder.plan.optimizer.states)
        if not self.states:
            for size in sizes:
                for _ in range(each):
                    self.loader.make(size * self.state_ratio / each, self.states)
            if not self.state_ratio:  # no gradient is left of updates in the backward pass: a layer's states at a time
                total, layers = self.number(self.base.optimizer), max(1, self.folder.stage.layers)
                for _ in range(layers):
                    self.loader.make(total / layers, self.states)
            self.states = self.states or [self.memory.malloc(512)]
        moment: list[Chunk] = []
        for size in sizes:
            self.loader.make(size * self.step_ratio, moment)
        release(self.memory, moment)
