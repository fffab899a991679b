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
from foretell.cost.segments import Layer, Segment, StageFold, prune
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
        self.last = self.edge(f.arch.head, loss=f.arch.vocab is not None) if f.stage.last else None
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
        if f.arch.memory is not None:  # the encoder's output and, in the backward pass, its gradient
            out.add(f.emitter(f.arch.memory).emit().size, 2.0 * max(f.stage.in_flight))
        for segment in self.segments:
            out.add(segment.saved, segment.in_flight)
        out.add(f.step_tensors())
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
        if self.f.arch.memory is not None:
            whole.add(self.f.emitter(self.f.arch.memory).emit().size)
        return StageFold(self.f.stage, self.base, self.resident, kept, whole, self._pooled(kept))

    def layers(self) -> Iterator[tuple[int, Segment, Layer, Lin]]:
        """Each layer with its segment (and the segment's index), and all that is kept up to and including that segment:
        later segments of the same pass have not run yet (forward), or are done (backward)."""
        for j, segment in enumerate(self.segments):
            top = self.kept - total(s.saved for s in self.segments[j + 1 :] if s.chunk == segment.chunk)
            for layer in segment.layers:
                yield j, segment, layer, top

    def forward(self) -> Iterator[Point]:
        """Levels while layers run forward: the last of its kind that is still to keep anything."""
        for _, _, layer, top in self.layers():
            rest, work = top - layer.memory.saved, self.work.forward(layer.block)
            for p in layer.memory.forward:
                yield Point("forward", _at(layer, p), rest + p.size + work + self.old_logits + self.unfreed)

    def loss(self) -> Iterator[Point]:
        """Final norm, projection and loss in both directions."""
        if self.head is None or self.last is None:
            return
        # every prediction layer has a loss of its own, kept until the main one has run
        top = self.kept + self.head.saved * float(self.f.recipe.mtp_layers)
        for i, p in enumerate(self.head.forward + self.head.backward):
            logits = self.old_logits if i <= self.last.replaced else Lin()
            unfreed = self.unfreed if i < len(self.head.forward) else Lin()
            yield Point("loss", f"head.{p.operator}", top + p.size + self.work.head + (logits + unfreed))

    def backward(self) -> Iterator[Point]:
        """Levels while layers run backward: at the first layer of a segment, and at its last, where the gradients of the
        others have taken the place of what they had kept."""
        f = self.f
        for j, segment, layer, top in self.layers():
            rest, bottom = top - layer.memory.saved, top - segment.saved
            work = self.work.backward(layer.block)
            for p in layer.memory.backward:
                yield Point("backward", _at(layer, p), rest + p.size + work + self.gradients_after[j])
                if f.fresh or not f.transient:
                    own, of_all = layer.states.gradients, segment.gradients
                    if not f.fresh:
                        own, of_all = layer.memory.wgrad, segment.wgrad
                    others = self.gradients_after[j] + of_all - own
                    yield Point("backward", _at(layer, p), bottom + p.size + work + others)

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
