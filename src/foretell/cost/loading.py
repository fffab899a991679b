"""Loading a model: which parameters, states and buffers a rank allocates before its first step, and in what order."""

from __future__ import annotations

from collections.abc import Iterator

from foretell.arch.architecture import Block
from foretell.arch.operators import Head, Linear
from foretell.cost.allocator import CachingAllocator, Chunk
from foretell.cost.events import Number
from foretell.cost.folder import StageFolder
from foretell.cost.linear import Lin
from foretell.cost.states import states
from foretell.cost.weights import LOCAL

LOADER_THREADS = 4
"""Half-precision sources on the device at once while a 4-bit checkpoint is loaded (transformers ``core_model_loading.py``)."""


class Loader:
    """Allocates what stands before the first step."""

    def __init__(self, folder: StageFolder, memory: CachingAllocator, number: Number) -> None:
        """Load a rank into an allocator."""
        self.folder, self.memory, self.number = folder, memory, number

    def make(self, form: Lin | float, into: list[Chunk]) -> None:
        """Allocate and remember, unless there is nothing to allocate."""
        size = form if isinstance(form, float) else self.number(form)
        if size >= 1:
            into.append(self.memory.malloc(size))

    def load(self, resident: Lin) -> None:
        """Parameters in module order; master weights and persistent gradients; ``resident`` buffers."""
        folder, plan, kept = self.folder, self.folder.plan, list[Chunk]()
        base = states(folder.blocks(), plan, folder.par.zero)
        if folder.par.zero >= 3 or "params" in folder.recipe.offload:
            for block in self.modules():
                for part in states([(block, 1.0)], plan, folder.par.zero).weights.items():
                    self.make(Lin([part]), kept)
        else:
            if folder.recipe.quantization is not None and folder.style.quantized_stream:
                self.load_quantized(kept)
            else:
                self.load_weights(kept)
            self.load_adapters(kept)
        self.make(base.master, kept)
        if folder.accumulates:
            self.make(base.gradients, kept)
        self.make(resident, kept)

    def load_weights(self, kept: list[Chunk]) -> None:
        """Every parameter as it is stored."""
        for block in self.modules():
            for op in block.ops:
                for w in op.weights():
                    self.make(Lin.of("weights", LOCAL[w.shard], w.elements * self.folder.plan.param_unit(op, w)), kept)

    def load_adapters(self, kept: list[Chunk]) -> None:
        """Adapters, which have their gradients' format."""
        for block in self.modules():
            for op in block.ops:
                pair = self.folder.plan.adapter(op) if isinstance(op, (Linear, Head)) else None
                if pair is not None:
                    self.make(pair.grad_a, kept)
                    self.make(pair.grad_b, kept)

    def load_quantized(self, kept: list[Chunk]) -> None:
        """Half-precision sources are quantised on the device, then the rest is cast to its format.

        ``caching_allocator_warmup`` reserves the model's size first (transformers ``modeling_utils.py``).
        """
        plan = self.folder.plan
        rest: list[tuple[int, float, float]] = []
        matrices: list[tuple[int, float, float]] = []
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
