"""Reserved memory by replaying a rank's allocations: load, then two steps of forward, loss, backward and optimizer.

The same tapes that give allocated memory log every allocation in order; :class:`~foretell.cost.allocator.CachingAllocator`
says what they make the process reserve.  This is a replay of one rank with numbers, for one run at a time: sweeps use
the linear forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Head, Linear
from foretell.cost.allocator import MIB, CachingAllocator, Chunk
from foretell.cost.evaluate import Basis, evaluate
from foretell.cost.events import GOUT, OUT, Program, Slots, X, program, release, split
from foretell.cost.linear import Lin
from foretell.cost.memory import StageFolder
from foretell.cost.recompute import layer_pass
from foretell.cost.sharding import Buffers, buffers, step_workspace
from foretell.cost.states import states
from foretell.cost.tape import Trace
from foretell.cost.training_memory import folders, sizes_of
from foretell.cost.weights import LOCAL
from foretell.recipe.resolve import Run

STEPS = 2
LOADER_THREADS = 4
"""Half-precision sources on the device at once while a 4-bit checkpoint is loaded (transformers ``core_model_loading.py``)."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator held at most; bytes."""

    reserved: float
    allocated: float
    """Peak of allocated bytes in the last step, rounding included."""
    loaded: float
    """Allocated after loading."""


def reserved(
    arch: Architecture, run: Run, stage: int = 0, *, workspace: float = 8.125 * MIB, descending: bool = True
) -> Replay:
    """Replay one pipeline rank.  ``workspace``: bytes of one cuBLAS workspace (two are made)."""
    return _Rank(folders(arch, run)[stage], run, workspace, descending).replay()


@dataclass(slots=True)
class _Kind:
    """A layer's programs, forward and backward; ``shared`` when they use the same slots (nothing is recomputed)."""

    forward: Program
    backward: Program
    slots: tuple[int, int]
    shared: bool
    buffers: tuple[float, float]
    sharded: float
    """Bytes of this block's weight gradients once divided (0: they are not)."""


class _Rank:
    def __init__(self, folder: StageFolder, run: Run, workspace: float, descending: bool) -> None:
        self.folder, self.run, self.workspace = folder, run, workspace
        self.basis = Basis(sizes_of(run))
        self.memory = CachingAllocator(expandable=run.expandable, descending=descending)
        folder.segs = folder.segments()
        self.work: Buffers = buffers(folder)
        self.kinds: dict[tuple[Block, str, bool], _Kind] = {}
        self.grads: list[Chunk] = []
        self.states: list[Chunk] = []
        self.until_step: list[Chunk] = []
        self.until_backward: list[Chunk] = []
        base = states(folder.blocks(), folder.plan, folder.par.zero)
        made = self.number(base.gradients)
        self.state_ratio = self.number(base.optimizer) / made if made else 0.0
        self.step_ratio = self.number(step_workspace(folder)) / made if made else 0.0
        self.base = base

    def number(self, form: Lin) -> float:
        return float(evaluate(form.by_monomial(), self.basis))

    # -- programs -------------------------------------------------------------------------------------------

    def kind(self, block: Block, mode: str, flows: bool) -> _Kind:
        key = (block, mode, flows)
        if key in self.kinds:
            return self.kinds[key]
        folder = self.folder
        e = folder.emitter(block, input_grad=flows)
        out = e.emit()
        first: Trace = []
        second: Trace = []
        layer_pass(
            e.tape, out, mode, folder.recipe.recompute, folder.style, accumulate=folder.transient, traces=(first, second)
        )  # fmt: skip
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
        sharded = self.number(states([(block, 1.0)], folder.plan, folder.par.zero).gradients) if folder.par.zero >= 2 else 0.0
        whole = (self.number(self.work.forward(block)), self.number(self.work.backward(block)))
        self.kinds[key] = _Kind(forward, backward, (ahead.count, back.count), not second, whole, sharded)
        return self.kinds[key]

    def layers(self) -> Iterator[_Kind]:
        """Every layer of the rank in forward order."""
        folder = self.folder
        for stack in folder.arch.stacks:
            main = stack is folder.arch.main
            if not main and not folder.stage.first:
                continue
            flows = not (main and folder.stage.first) or folder.block_trains(folder.arch.embed)
            chunks = folder.stage.chunks if main else (range(stack.layers),)
            for c, chunk in enumerate(chunks):
                for i, layer in enumerate(chunk):
                    mode = folder.mode(i, len(chunk)) if main else "none"
                    yield self.kind(stack.blocks[stack.pattern[layer]], mode, flows or c > 0 or mode == "full")
                    flows = flows or folder.block_trains(stack.blocks[stack.pattern[layer]])

    # -- replay ---------------------------------------------------------------------------------------------

    def replay(self) -> Replay:
        memory = self.memory
        self.load()
        loaded = memory.allocated
        for _ in range(STEPS):
            memory.peak = memory.allocated
            self.step()
        return Replay(float(memory.reserved), float(memory.peak), float(loaded))

    def make(self, form: Lin | float, into: list[Chunk]) -> None:
        size = form if isinstance(form, float) else self.number(form)
        if size >= 1:
            into.append(self.memory.malloc(size))

    def load(self) -> None:
        """Parameters in module order; master weights and persistent gradients; communication buffers."""
        folder, plan, kept = self.folder, self.folder.plan, list[Chunk]()
        quantized = [
            (op, w) for block in self.modules() for op in block.ops for w in op.weights()
            if plan.quantized(op) and w.role in ("matrix", "head")
        ]  # fmt: skip
        if folder.par.zero >= 3:
            for block in self.modules():
                for part in states([(block, 1.0)], plan, folder.par.zero).weights.items():
                    self.make(Lin([part]), kept)
        elif "params" not in folder.recipe.offload:
            if quantized and folder.style.quantized_stream:
                self.load_quantized(kept)
            for block in self.modules():
                for op in block.ops:
                    for w in op.weights():
                        if not (quantized and folder.style.quantized_stream):
                            self.make(Lin.of("weights", LOCAL[w.shard], w.elements * plan.param_unit(op, w)), kept)
            for block in self.modules():
                for op in block.ops:
                    pair = plan.adapter(op) if isinstance(op, (Linear, Head)) else None
                    if pair is not None:
                        wide = pair.unit / max(1e-9, plan.adapter_gradient_unit)
                        self.make(pair.grad_a * wide, kept)
                        self.make(pair.grad_b * wide, kept)
        self.make(self.base.master, kept)
        if folder.accumulates:
            self.make(self.base.gradients, kept)
        self.make(self.work.resident, kept)

    def load_quantized(self, kept: list[Chunk]) -> None:
        """transformers loads half-precision sources, quantises them on the device and casts the rest to its format.

        ``caching_allocator_warmup`` reserves the model's size first (transformers ``modeling_utils.py``).
        """
        plan, rest, matrices = self.folder.plan, [], []
        for block in self.modules():
            for op in block.ops:
                for w in op.weights():
                    target = matrices if plan.quantized(op) and w.role in ("matrix", "head") else rest
                    target.append((w.elements, plan.param_unit(op, w), plan.scale_unit(op, w)))
        memory = self.memory
        memory.free(memory.malloc(sum(n * 0.5 for n, _, _ in matrices) + sum(n * 2.0 for n, _, _ in rest)))
        half = [memory.malloc(n * 2.0) for n, _, _ in rest[:1]]
        for i in range(0, len(matrices), LOADER_THREADS):
            group = matrices[i : i + LOADER_THREADS]
            sources = [memory.malloc(n * 2.0) for n, _, _ in group]
            for source, (n, wide, scale) in zip(sources, group, strict=True):
                self.make(n * (wide - scale), kept)
                self.make(n * scale, kept)
                self.make(64.0, kept)  # the code table, fp32 x 16
                memory.free(source)
        half += [memory.malloc(n * 2.0) for n, _, _ in rest[1:]]
        for chunk, (n, wide, _) in zip(half, rest, strict=True):
            if wide == 2.0:
                kept.append(chunk)
            else:
                self.make(n * wide, kept)
                memory.free(chunk)

    def modules(self) -> Iterator[Block]:
        """Every block of the rank, repeated layers one by one."""
        for block, count in self.folder.blocks():
            for _ in range(round(count)):
                yield block

    def step(self) -> None:
        folder, memory = self.folder, self.memory
        if folder.fresh:
            release(memory, self.grads)
        release(memory, self.until_step)
        layers = list(self.layers())
        running: list[tuple[_Kind, list[Any], list[Any]]] = []
        current: Chunk | None = None
        if folder.stage.first:
            e = folder.emitter(folder.arch.embed, input_grad=folder.block_trains(folder.arch.embed))
            trace: Trace = []
            out = e.emit()
            e.tape.run(out, trace=trace, accumulate=folder.transient)
            slots = Slots(e.tape, out)
            one, two = split(trace)
            embed, embed_slots = (program(one, slots, self.number), program(two, slots, self.number)), slots.count
            env: list[Any] = [None] * embed_slots
            embed[0].play(memory, env)
            current = env[OUT]
            first_env = env
        if current is None:
            current = memory.malloc(max(512.0, self.number(folder.emitter(folder.arch.main.blocks[0]).tape.x.size)))  # type: ignore[union-attr]
        self.make(folder.step_tensors(), self.until_backward)
        for i, kind in enumerate(layers):
            env = [None] * kind.slots[0]
            env[X] = current
            gather = memory.malloc(kind.buffers[0], 1) if kind.buffers[0] else None
            kind.forward.play(memory, env)
            if gather is not None:
                memory.free(gather)
            if i == 0 and not self.states:
                self.keep_workspace()
            running.append((kind, env, env if kind.shared else [None] * kind.slots[1]))
            current = env[OUT]
        if folder.stage.last:
            gradient = self.head(current)
        else:
            memory.free(current)
            gradient = memory.malloc(max(512, current.size))
        leaf = folder.leaf_embeddings and folder.style.outputs_in_step
        for i, (kind, env, back) in enumerate(reversed(running)):
            back[X], back[GOUT] = env[X], gradient
            if leaf and i == len(running) - 1:
                env[X].refs += 1
                self.until_step.append(env[X])
            gather = memory.malloc(kind.buffers[1], 1) if kind.buffers[1] else None
            kind.backward.play(memory, back)
            self.collect(kind.backward, back, kind.sharded)
            if gather is not None:
                memory.free(gather)
            gradient = back[kind.backward.grad_in] if kind.backward.grad_in >= 0 else None
        if folder.stage.first and embed[1].ops:
            first_env[GOUT] = gradient
            embed[1].play(memory, first_env)
            self.collect(embed[1], first_env, self.sharded(folder.arch.embed))
        elif gradient is not None:
            (self.until_step if leaf else self.until_backward).append(gradient)
        release(memory, self.until_backward)
        self.optimizer()

    def head(self, x: Chunk) -> Chunk | None:
        """Final norm, projection and loss with its backward; returns the gradient for the last layer."""
        folder, memory = self.folder, self.memory
        e = folder.emitter(folder.arch.head, loss=folder.arch.vocab is not None)
        out = e.emit()
        trace: Trace = []
        e.tape.run(out, trace=trace, accumulate=folder.transient)
        slots = Slots(e.tape, out)
        one, two = split(trace)
        forward, backward = program(one, slots, self.number), program(two, slots, self.number)
        env: list[Any] = [None] * slots.count
        env[X] = x
        forward.play(memory, env)
        if not self.states:
            self.keep_workspace()
        env[GOUT] = memory.malloc(512)  # gradient of the loss
        backward.play(memory, env)
        self.collect(backward, env, self.sharded(folder.arch.head))
        for node in e.tape.nodes:
            for t in node.outs:
                chunk = env[slots.numbers[t.storage]] if t.held and t.storage in slots.numbers else None
                if chunk is not None:
                    (self.until_step if folder.style.outputs_in_step else self.until_backward).append(chunk)
        return env[backward.grad_in] if backward.grad_in >= 0 else None

    def sharded(self, block: Block) -> float:
        zero = self.folder.par.zero
        return self.number(states([(block, 1.0)], self.folder.plan, zero).gradients) if zero >= 2 else 0.0

    def keep_workspace(self) -> None:
        self.memory.malloc(self.workspace)

    def collect(self, done: Program, env: list[Any], sharded: float) -> None:
        """Weight gradients that a pass left: kept, or divided and freed."""
        if sharded and done.weights:
            self.make(sharded, self.grads)
            release(self.memory, [env[slot] for slot in done.weights])
        else:
            self.grads += [env[slot] for slot in done.weights]

    def optimizer(self) -> None:
        """States at the first step; a foreach step's copies for a moment."""
        sizes = [float(c.size) for c in self.grads] or [self.number(self.base.gradients)]
        each = max(1, self.folder.plan.optimizer.states)
        if not self.states:
            for size in sizes:
                for _ in range(each):
                    self.make(size * self.state_ratio / each, self.states)
            self.states = self.states or [self.memory.malloc(512)]
        moment: list[Chunk] = []
        for size in sizes:
            self.make(size * self.step_ratio, moment)
        release(self.memory, moment)
