"""The memory fold: a model, a recipe and a parallelism become levels of memory as linear forms.

``fold`` does the shape-dependent work once and caches it; :mod:`foretell.cost.evaluate` then answers for
numbers.  A :class:`StageFold` holds, for one pipeline rank, every level that could be the peak (levels that
another level covers whatever the run's sizes are dropped).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretell.arch.architecture import Architecture, Block
from foretell.arch.operators import Embedding, Linear
from foretell.cost.linear import Lin, dominates
from foretell.cost.pipeline import Stage, stages
from foretell.cost.recompute import Pass, layer_pass
from foretell.cost.saved import Emitter
from foretell.cost.sharding import Buffers, buffers
from foretell.cost.states import StateTerms, shard, states
from foretell.cost.tape import BlockMemory, Point
from foretell.cost.weights import WeightPlan
from foretell.recipe.resolve import Run


@dataclass(frozen=True, slots=True)
class StageFold:
    """Levels of one pipeline rank.  ``base`` is resident between steps."""

    stage: Stage
    base: StateTerms
    resident: Lin
    """What is allocated between steps."""
    phases: dict[str, tuple[Point, ...]]
    """Every level by phase, dominated ones dropped: the timeline."""
    pooled: tuple[Point, ...] = ()
    """Levels of reserved memory where the run's streams have allocator pools of their own (else empty)."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Layers of a stage that are the same block checkpointed the same way."""

    block: Block
    count: float
    memory: Pass
    states: StateTerms


def fold_stage(arch: Architecture, plan: WeightPlan, run: Run, stage: Stage) -> StageFold:
    """Fold one pipeline stage."""
    return StageFolder(arch, plan, run, stage).fold()


class StageFolder:
    """Assembles the levels of one stage."""

    def __init__(self, arch: Architecture, plan: WeightPlan, run: Run, stage: Stage) -> None:
        self.arch, self.plan, self.run, self.stage = arch, plan, run, stage
        self.profile, self.par, self.recipe = run.profile, run.par, run.recipe
        self.style = run.style
        self.accumulates = run.profile.gradients == "buffer" or self.recipe.grad_accum > 1
        self.fresh = not self.accumulates

    # -- parts ----------------------------------------------------------------------------------------------

    def segments(self) -> list[list[_Layer]]:
        """Runs of layers in forward order (a tower, then the trunk); the layers inside a run are interchangeable."""
        out: list[list[_Layer]] = []
        for stack in self.arch.stacks:
            is_main = stack is self.arch.main
            if not is_main and not self.stage.first:
                continue
            indices = self.stage.layers if is_main else range(stack.layers)
            groups: dict[tuple[int, str], int] = {}
            for position, layer in enumerate(indices):
                key = (stack.pattern[layer], self.mode(position, len(indices)) if is_main else "none")
                groups[key] = groups.get(key, 0) + 1
            out.append([self.layer(stack.blocks[i], mode, float(n)) for (i, mode), n in groups.items()])
        return out

    def mode(self, position: int, layers: int) -> str:
        """How one layer is checkpointed."""
        r = self.recipe.recompute
        if r.mode == "none":
            return "none"
        if r.mode == "full":
            if r.scope == "block" and r.layers is not None:
                per_chunk = layers / self.stage.chunks
                return "full" if position % per_chunk < r.layers else "none"
            return "full"
        if r.scope == "layer":
            return "full" if (position + 1) % (r.layers or 2) == 0 else "none"
        return "opaque" if position < round(self.style.sac_opaque * layers) else "selective"

    def layer(self, block: Block, mode: str, count: float) -> _Layer:
        trains = any(self.plan.trains(op) or self.plan.targeted(op) for op in block.ops)
        e = Emitter(block, self.style, self.plan, input_grad=trains or self.recipe.adapter is not None)
        out = e.emit()
        memory = layer_pass(e.tape, out, mode, self.recipe.recompute, self.style, accumulate=self.accumulates)
        if self.style.sac_abs and mode == "selective" and self.recipe.fp8_recipe == "rowwise":
            whole = Lin()
            for op in block.ops:
                if isinstance(op, Linear):
                    whole.add(Lin.of("activations", "1/tp" if op.split else "1/1", op.parameters * self.style.compute))
            memory = replace(memory, saved=memory.saved + whole)
        return _Layer(block, count, memory, states([(block, 1.0)], self.plan, self.par.zero))

    def edge(self, block: Block, *, loss: bool) -> BlockMemory:
        """Embedding or head block, never checkpointed."""
        e = Emitter(block, self.style, self.plan, loss=loss)
        return e.tape.run(e.emit(), accumulate=self.accumulates)

    # -- whole stage ----------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[tuple[Block, float]]:
        if self.stage.first:
            yield self.arch.embed, 1.0
        for segment in self.segs:
            for layer in segment:
                yield layer.block, layer.count
        if self.stage.last:
            yield self.arch.head, 1.0
            if self.arch.tied and not self.stage.first:
                yield replace(self.arch.embed, ops=tuple(o for o in self.arch.embed.ops if _is_token_table(o))), 1.0

    def fold(self) -> StageFold:
        self.segs = self.segments()
        base = states(self.blocks(), self.plan, self.par.zero)
        embed = self.edge(self.arch.embed, loss=False) if self.stage.first else None
        head = self.edge(self.arch.head, loss=self.arch.vocab is not None) if self.stage.last else None
        work = buffers(self)
        resident = base.resident() + work.resident
        if self.accumulates:
            resident = resident + base.gradients
        phases: dict[str, list[Point]] = {"forward": [], "loss": [], "backward": [], "optimizer": []}
        saved_all = Lin()
        for segment in self.segs:
            for layer in segment:
                saved_all.add(layer.memory.saved, layer.count)
        edge_saved = Lin()
        if embed is not None:
            edge_saved.add(embed.saved)
        chunk = 1.0 / self.stage.chunks
        before = resident + (saved_all + edge_saved) * max(0.0, self.stage.in_flight - chunk)
        grads_after = self._gradients_after(head, work.late)
        cumulative = Lin(edge_saved)
        for j, segment in enumerate(self.segs):
            part = Lin()
            for layer in segment:
                part.add(layer.memory.saved, layer.count)
            cumulative.add(part, chunk)
            for layer in segment:
                rest = before + cumulative - layer.memory.saved
                first = before + edge_saved
                ws_f, ws_b = work.forward(layer.block), work.backward(layer.block)
                for p in layer.memory.forward:
                    phases["forward"].append(Point("forward", _at(layer, p), rest + p.size + ws_f))
                for p in layer.memory.backward:
                    late = grads_after[j]
                    phases["backward"].append(Point("backward", _at(layer, p), rest + p.size + ws_b + late))
                    if self.fresh:
                        own = layer.states.gradients
                        early = grads_after[j] + _segment_gradients(segment) - own
                        phases["backward"].append(Point("backward", _at(layer, p), first + p.size + ws_b + early))
        if head is not None:
            top = before + cumulative
            for p in head.forward + head.backward:
                phases["loss"].append(Point("loss", f"head.{p.operator}", top + p.size + work.head))
        if embed is not None and self.fresh:
            everything = before + base.gradients + work.late
            for p in embed.backward:
                phases["backward"].append(
                    Point("backward", f"embed.{p.operator}", everything + p.size - embed.wgrad + work.head)
                )
        step = resident + (Lin() if self.accumulates else base.gradients) + work.optimizer
        phases["optimizer"].append(Point("optimizer", "step", step))
        kept = {name: _prune(points) for name, points in phases.items() if points}
        return StageFold(self.stage, base, resident, kept, self._pooled(kept, base, work))

    def _pooled(self, phases: dict[str, tuple[Point, ...]], base: StateTerms, work: Buffers) -> tuple[Point, ...]:
        """Reserved memory as the sum of stream pools: the compute stream's peak, gathers, and reduced gradients."""
        if not work.pools:
            return ()
        extra = work.pools + base.gradients
        out = []
        for points in phases.values():
            for p in points:
                size = Lin({k: v for k, v in p.size.items() if k[0] != "gradients" or "z" not in k[1]})
                out.append(Point(p.phase, p.operator, size + extra))
        return _prune(out)

    def _gradients_after(self, head: BlockMemory | None, late: Lin) -> list[Lin]:
        """Gradients that exist when the backward pass reaches each segment (fresh gradients only)."""
        out: list[Lin] = []
        total = Lin(late)
        if head is not None and self.fresh and not late:
            total.add(shard(head.wgrad, self.par.zero))
        for segment in reversed(self.segs):
            out.append(Lin(total))
            if self.fresh:
                total.add(_segment_gradients(segment))
        return out[::-1]


def _segment_gradients(segment: list[_Layer]) -> Lin:
    out = Lin()
    for layer in segment:
        out.add(layer.states.gradients, layer.count)
    return out


def _at(layer: _Layer, point: Point) -> str:
    return f"{layer.block.name}.{point.operator}"


def _is_token_table(op: object) -> bool:
    return isinstance(op, Embedding) and op.vocab


def _prune(points: list[Point]) -> tuple[Point, ...]:
    """Drop the levels that another level covers."""
    kept: list[tuple[Point, dict[str, float]]] = []
    for p in points:
        size = p.flat
        if any(dominates(other, size) for _, other in kept):
            continue
        kept = [(q, other) for q, other in kept if not dominates(size, other)]
        kept.append((p, size))
    return tuple(p for p, _ in kept)


__all__ = ["Buffers", "StageFold", "fold_stage", "stages"]
