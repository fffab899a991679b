"""The memory fold: a model, a recipe and a parallelism become levels of memory as linear forms.

``fold`` does the shape-dependent work once and caches it; :mod:`foretell.cost.evaluate` then answers for
numbers.  A :class:`StageFold` holds, for one pipeline rank, every level that could be the peak (levels that
another level covers whatever the run's sizes are dropped).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Embedding, Linear
from foretell.cost.linear import Lin, dominates, total
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


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers that run after one another, interchangeable as far as memory goes."""

    layers: tuple[_Layer, ...]
    chunk: int
    in_flight: float

    @property
    def saved(self) -> Lin:
        """Activations that one micro-batch leaves here."""
        out = Lin()
        for layer in self.layers:
            out.add(layer.memory.saved, layer.count)
        return out

    @property
    def gradients(self) -> Lin:
        out = Lin()
        for layer in self.layers:
            out.add(layer.states.gradients, layer.count)
        return out


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
        self._made: dict[tuple[Block, str], _Layer] = {}

    # -- parts ----------------------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """Runs of layers in forward order: towers, then the trunk chunk by chunk, then prediction layers."""
        stage, out = self.stage, []
        for stack in self.arch.stacks:
            if stack is self.arch.main:
                for c, chunk in enumerate(stage.chunks):
                    modes = [self.mode(i, len(chunk)) for i in range(len(chunk))]
                    out.append(self.segment(stack, chunk, modes, c))
            elif stage.first:
                out.append(self.segment(stack, range(stack.layers), ["none"] * stack.layers, 0))
        if stage.last and self.recipe.mtp_layers:
            more = Stack("prediction", self.arch.unused[:1], (0,) * self.recipe.mtp_layers)
            out.append(self.segment(more, range(more.layers), ["none"] * more.layers, len(stage.chunks) - 1))
        return out

    def segment(self, stack: Stack, layers: Sequence[int], modes: Sequence[str], chunk: int) -> Segment:
        """Layers of one run, equal ones together."""
        groups: dict[tuple[int, str], int] = {}
        for layer, mode in zip(layers, modes, strict=True):
            key = (stack.pattern[layer], mode)
            groups[key] = groups.get(key, 0) + 1
        made = tuple(self.layer(stack.blocks[i], mode, float(n)) for (i, mode), n in groups.items())
        return Segment(made, chunk, self.stage.in_flight[chunk])

    def mode(self, position: int, layers: int) -> str:
        """How one layer is checkpointed."""
        r = self.recipe.recompute
        if r.mode == "none":
            return "none"
        if r.mode == "full":
            return "none" if r.scope == "block" and r.layers is not None and position >= r.layers else "full"
        if r.scope == "layer":
            return "full" if (position + 1) % (r.layers or 2) == 0 else "none"
        return "opaque" if position < round(self.style.sac_opaque * layers) else "selective"

    def layer(self, block: Block, mode: str, count: float) -> _Layer:
        key = (block, mode)
        if key in self._made:
            return replace(self._made[key], count=count)
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
        self._made[key] = _Layer(block, count, memory, states([(block, 1.0)], self.plan, self.par.zero))
        return self._made[key]

    def edge(self, block: Block, *, loss: bool) -> BlockMemory:
        """Embedding or head block, never checkpointed."""
        e = Emitter(block, self.style, self.plan, loss=loss)
        return e.tape.run(e.emit(), accumulate=self.accumulates)

    # -- whole stage ----------------------------------------------------------------------------------------

    def blocks(self) -> Iterator[tuple[Block, float]]:
        if self.stage.first:
            yield self.arch.embed, 1.0
        for segment in self.segs:
            for layer in segment.layers:
                yield layer.block, layer.count
        if self.stage.last:
            yield self.arch.head, 1.0
            if (self.arch.tied or self.recipe.mtp_layers) and not self.stage.first:
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
        kept_all = Lin(resident)
        if embed is not None:
            kept_all.add(embed.saved, self.stage.in_flight[0])
        for segment in self.segs:
            kept_all.add(segment.saved, segment.in_flight)
        grads_after = self._gradients_after(head, work.late)
        for j, segment in enumerate(self.segs):
            # later segments of the same pass have not run yet (forward), or are done (backward)
            top = kept_all - total(s.saved for s in self.segs[j + 1 :] if s.chunk == segment.chunk)
            bottom = top - segment.saved
            for layer in segment.layers:
                rest = top - layer.memory.saved
                ws_f, ws_b = work.forward(layer.block), work.backward(layer.block)
                for p in layer.memory.forward:
                    phases["forward"].append(Point("forward", _at(layer, p), rest + p.size + ws_f))
                for p in layer.memory.backward:
                    phases["backward"].append(Point("backward", _at(layer, p), rest + p.size + ws_b + grads_after[j]))
                    if self.fresh:
                        early = grads_after[j] + segment.gradients - layer.states.gradients
                        phases["backward"].append(Point("backward", _at(layer, p), bottom + p.size + ws_b + early))
        if head is not None:
            # every prediction layer has a loss of its own, kept until the main one has run
            top = kept_all + head.saved * float(self.recipe.mtp_layers)
            for p in head.forward + head.backward:
                phases["loss"].append(Point("loss", f"head.{p.operator}", top + p.size + work.head))
        if embed is not None and self.fresh:
            everything = resident + base.gradients + work.late
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
        made = Lin(late)
        if head is not None and self.fresh and not late:
            made.add(shard(head.wgrad, self.par.zero))
        for segment in reversed(self.segs):
            out.append(Lin(made))
            if self.fresh:
                made.add(segment.gradients)
        return out[::-1]


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
