"""The memory fold: a model, a recipe and a parallelism become levels of memory as linear forms.

``fold`` does the shape-dependent work once and caches it; :mod:`foretell.cost.evaluate` then answers for
numbers.  A :class:`StageFold` holds, for one pipeline rank, every level that could be the peak (levels that
another level covers whatever the run's sizes are dropped).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from foretell.arch.architecture import Block
from foretell.cost.folder import StageFolder
from foretell.cost.linear import Lin, total
from foretell.cost.segments import Layer, StageFold, gradients, prune, saved, wgrad
from foretell.cost.sharding import buffers
from foretell.cost.states import in_backward, shard, states
from foretell.cost.tape import BlockMemory, Point

__all__ = ["StageFold", "StageFolder", "fold"]


def fold(folder: StageFolder) -> StageFold:
    """Every level of one pipeline rank."""
    return _Timeline(folder).fold()


@dataclass(frozen=True, slots=True)
class _Edge:
    """An embedding or head block, never checkpointed."""

    memory: BlockMemory
    logits: Lin = field(default_factory=Lin)
    """Logits that the training loop's variable holds on to."""
    unfreed: Lin = field(default_factory=Lin)
    """Tensors that the backward pass does not free (:class:`~foretell.cost.saved.Emitter`)."""
    replaced: int = -1
    """Node whose result replaces the previous micro-batch's logits."""


class _Timeline:
    """One training step of a stage, phase by phase."""

    def __init__(self, folder: StageFolder) -> None:
        f = self.f = folder
        self.segments = f.segments
        self.base = states(f.blocks(), f.plan, f.par.zero)
        self.embed = self.edge(f.arch.embed, loss=False).memory if f.stage.first else None
        self.last = self.edge(f.arch.head, loss=f.has_loss) if f.stage.last else None
        self.head = self.last.memory if self.last is not None else None
        self.held = self.head.held if self.head is not None else Lin()
        """What the caller's code holds until the step: the model's output."""
        if f.unreduced:
            self.base = replace(self.base, gradients=total(s.gradients for s in self.segments))
        self.work = buffers(f)
        self.old_logits, unfreed = self.carried()
        self.unfreed = unfreed + self.cached()
        self.resident = self.base.resident() + self.work.resident
        if f.accumulates:
            self.resident = self.resident + self.base.gradients
        self.kept = self.everything_kept()
        self.towers = len(f.arch.stacks) - 1 if f.stage.first else 0
        """Segments before the trunk."""
        self.memory = f.memory * float(max(f.stage.in_flight))
        """The encoder's output, there while the trunk runs; in the backward pass with its gradient."""
        self.gradients_after = [form + self.held for form in self._gradients_after()]

    def edge(self, block: Block, *, loss: bool) -> _Edge:
        """Run an embedding or head block."""
        f = self.f
        e = f.emitter(block, loss=loss, input_grad=block is not f.arch.embed or f.block_trains(block))
        if f.style.edge_norm:
            e.style = replace(f.style, norm=f.style.edge_norm)
        out = e.emit()
        memory = e.tape.run(out, accumulate=f.transient)
        held = [(i, t) for i, node in enumerate(e.tape.nodes) for t in node.outs if t.held]
        if not loss or not held:
            return _Edge(memory)
        return _Edge(memory, total(t.size for _, t in held), total(e.unfreed.values()), held[0][0])

    # -- what is there whatever runs ------------------------------------------------------------------------

    @property
    def tied_sum(self) -> bool:
        """The tied table's gradient waits for its second part, while the whole backward pass runs."""
        return self.f.arch.tied and self.f.recipe.adapter is None and not self.f.accumulates

    def carried(self) -> tuple[Lin, Lin]:
        """What is left of the previous micro-batch while the next forward pass runs: logits, unfreed tensors."""
        if not self.f.style.logits_carried or self.f.recipe.lengths != "equal":
            return Lin(), Lin()
        logits, unfreed = (self.last.logits, self.last.unfreed) if self.last is not None else (Lin(), Lin())
        for segment in self.segments:
            for layer in segment.layers:
                if layer.memory.keeps:
                    unfreed = unfreed + layer.unfreed * layer.count
        return logits, unfreed

    def cached(self) -> Lin:
        """Weight copies of checkpointed layers, in autocast's cache until the forward pass has ended."""
        return total(layer.cached * layer.count for segment in self.segments for layer in segment.layers)

    def everything_kept(self) -> Lin:
        """All that is allocated when every forward pass in flight has run."""
        f = self.f
        out = self.resident + self.work.passes
        if self.embed is not None:
            out.add(self.embed.saved, f.stage.in_flight[0])
        for segment in self.segments:
            out.add(segment.saved, segment.in_flight)
        out.add(f.step_tensors())
        out.add(f.last_output)
        return out

    def _gradients_after(self) -> list[Lin]:
        """Gradients that exist when the backward pass reaches each segment (fresh gradients only)."""
        f, out = self.f, list[Lin]()
        made = Lin(self.work.late)
        waits = not f.transient or (self.tied_sum and in_backward(f.plan))
        if self.head is not None and waits and not self.work.late and "grads" not in f.recipe.offload:
            made.add(shard(self.head.wgrad, f.par.zero) if f.fresh else self.head.wgrad)
        for segment in reversed(self.segments):
            out.append(Lin(made))
            if not f.transient:
                made.add(segment.gradients if f.fresh else segment.wgrad)
        return out[::-1]

    # -- phases ---------------------------------------------------------------------------------------------

    def fold(self) -> StageFold:
        """Put the phases together."""
        phases = {
            "forward": list(self.forward()),
            "loss": list(self.loss()),
            "backward": [*self.backward(), *self.embedding_backward()],
            "optimizer": [Point("optimizer", "step", self.step())],
        }
        kept = {name: prune(points) for name, points in phases.items() if points}
        whole = total([s.saved for s in self.segments] + [m.saved for m in (self.embed, self.head) if m is not None])
        if not self.f.style.autocast:  # else what reads it keeps copies
            whole.add(self.f.memory)
        whole.add(self.f.step_tensors() + self.f.last_output)
        return StageFold(self.f.stage, self.base, self.resident, kept, whole, self._pooled(kept))

    def layers(self) -> Iterator[tuple[int, Layer, Lin, tuple[Layer, ...]]]:
        """The last layer of its kind in a segment, and the first: the segment's index, all that other layers keep then, and
        the layers of the segment that stand behind it.

        Later layers of the same pass have not run yet (forward), or are done (backward).
        """
        for j, segment in enumerate(self.segments):
            top = self.kept - total(s.saved for s in self.segments[j + 1 :] if s.chunk == segment.chunk)
            for layer in segment.layers:
                for later in segment.ends(layer):
                    yield j, layer, top - saved(later) - layer.memory.saved, later

    def forward(self) -> Iterator[Point]:
        """Levels while layers run forward."""
        given = self.f.given() if self.f.recipe.recompute.mode != "full" else Lin()
        given.add(self.f.embedded)
        for j, layer, rest, _ in self.layers():
            work = self.work.forward(layer.block) + given
            if j >= self.towers:
                work = work + self.memory
            for p in layer.memory.forward:
                yield Point("forward", _at(layer, p), rest + p.size + work + self.old_logits + self.unfreed)

    def loss(self) -> Iterator[Point]:
        """Final norm, projection and loss in both directions."""
        if self.head is None or self.last is None:
            return
        # every prediction layer has a loss of its own, kept until the main one has run
        top = self.kept + self.memory + self.head.saved * float(self.f.recipe.mtp_layers)
        for i, p in enumerate(self.head.forward + self.head.backward):
            logits = self.old_logits if i <= self.last.replaced else Lin()
            unfreed = self.unfreed if i < len(self.head.forward) else Lin()
            yield Point("loss", f"head.{p.operator}", top + p.size + self.work.head + (logits + unfreed))

    def backward(self) -> Iterator[Point]:
        """Levels while layers run backward, where the gradients of later ones have taken the place of what they had kept."""
        f = self.f
        for j, layer, rest, later in self.layers():
            work = self.work.backward(layer.block) + self.gradients_after[j]
            if not f.transient:
                work = work + (gradients(later) if f.fresh else wgrad(later))
            if j >= self.towers:
                work = work + self.memory * 2.0
            for p in layer.memory.backward:
                yield Point("backward", _at(layer, p), rest + p.size + work)

    def embedding_backward(self) -> Iterator[Point]:
        """Levels while the embedding runs backward, beside the gradients of everything else."""
        f, embed = self.f, self.embed
        if embed is None or not (f.fresh or not f.transient):
            return
        there = self.resident + self.work.passes + self.base.gradients + self.work.late + self.held
        if self.head is not None and self.tied_sum and in_backward(f.plan):
            there = there + self.head.wgrad
        if not f.fresh:  # other micro-batches are still in flight
            passing = total(s.saved for s in self.segments if s.chunk == 0) + embed.saved
            there = self.kept - passing + self.gradients_after[0] + self.segments[0].wgrad + embed.wgrad
        done = Lin() if self.tied_sum or in_backward(f.plan) else embed.wgrad
        for p in embed.backward:
            yield Point("backward", f"embed.{p.operator}", there + p.size - done + self.work.head)

    def step(self) -> Lin:
        """What is allocated while the optimizer steps."""
        f = self.f
        out = self.resident + (Lin() if f.accumulates else self.base.gradients) + self.work.optimizer
        if f.style.outputs_in_step:
            out.add(self.held)
            if f.leaf_embeddings and self.embed is not None:
                out.add(self.embed.output, 2.0)
        return out

    def _pooled(self, phases: dict[str, tuple[Point, ...]]) -> tuple[Point, ...]:
        """Reserved memory as the sum of stream pools: the compute stream's peak, gathers, and reduced gradients."""
        pools = self.work.pools
        if not pools:
            return ()
        one_stream = self.f.run.sharding == "simplefsdp"
        extra = pools if one_stream else pools + self.base.gradients
        out = []
        for points in phases.values():
            for p in points:
                size = p.size
                if not one_stream:  # sharded gradients live in the reduction stream's pool, all of them
                    size = Lin({k: v for k, v in size.items() if k[0] != "gradients" or "z" not in k[1]})
                out.append(Point(p.phase, p.operator, size + extra))
        return prune(out)


def _at(layer: Layer, point: Point) -> str:
    return f"{layer.block.name}.{point.operator}"
