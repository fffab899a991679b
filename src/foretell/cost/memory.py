"""The memory fold: a model, a recipe and a parallelism become levels of memory as linear forms.

``fold`` does the shape-dependent work once and caches it; :mod:`foretell.cost.evaluate` then answers for
numbers.  A :class:`StageFold` holds, for one pipeline rank, every level that could be the peak (levels that
another level covers whatever the run's sizes are dropped).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Embedding, Linear
from foretell.cost.linear import Lin, total
from foretell.cost.pipeline import Stage, stages
from foretell.cost.recompute import layer_pass
from foretell.cost.saved import CONDITION, Emitter, place_of
from foretell.cost.segments import Layer, Segment, StageFold, prune
from foretell.cost.sharding import Buffers, buffers, whole_gradient
from foretell.cost.states import StateTerms, in_backward, shard, states
from foretell.cost.stream import input_units
from foretell.cost.tape import BlockMemory, Point
from foretell.cost.weights import WeightPlan, unit
from foretell.errors import CombinationError
from foretell.recipe.resolve import Run


def fold_stage(arch: Architecture, plan: WeightPlan, run: Run, stage: Stage) -> StageFold:
    """Fold one pipeline stage."""
    return StageFolder(arch, plan, run, stage).fold()


class StageFolder:
    """Assembles the levels of one stage."""

    def __init__(self, arch: Architecture, plan: WeightPlan, run: Run, stage: Stage) -> None:
        self.arch, self.plan, self.run, self.stage = arch, plan, run, stage
        self.profile, self.par, self.recipe = run.profile, run.par, run.recipe
        self.style = run.style
        # the longest sample in the very first micro-batch: gradients do not exist yet
        later = self.recipe.grad_accum > 1 and self.recipe.lengths == "equal"
        whole_buffer = run.sharding == "deepspeed" and self.par.zero == 3  # grad_partitions_flat_buffer, made once
        self.accumulates = run.profile.gradients == "buffer" or later or whole_buffer or plan.optimizer.one_block
        self.unreduced = run.profile.no_sync and self.recipe.grad_accum > 1 and run.sharding == "fsdp1" and self.par.zero == 3
        """Micro-batches leave whole gradients behind: reduction waits for the last one."""
        self.fresh = not self.accumulates
        self.transient = in_backward(plan) or (self.accumulates and not run.profile.autograd_gradients)
        """A weight gradient is freed as soon as it has been accumulated."""
        self.units: dict[Block, float] = {}
        if self.style.autocast:
            self.units = input_units(arch, self.unit_after, self.style.residual)
        self._made: dict[tuple[Block, str, bool], Layer] = {}
        self.head_carried: tuple[Lin, Lin, int] = (Lin(), Lin(), -1)
        """Previous micro-batch: logits, tensors the backward pass did not free, node that replaces the logits."""

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
                # towers are checkpointed with the trunk (transformers ``GradientCheckpointingLayer``), single blocks are not
                full = self.recipe.recompute.mode == "full" and stack.layers > 1
                modes = [self.mode(i, stack.layers) if full else "none" for i in range(stack.layers)]
                out.append(self.segment(stack, range(stack.layers), modes, 0))
        if stage.last and self.recipe.mtp_layers:
            # a checkpoint's prediction layer carries copies of the token table and the head; training shares them
            if not self.arch.unused:
                raise CombinationError("needs a model with prediction layers", field="mtp_layers", value=self.recipe.mtp_layers)
            one = self.arch.unused[0]
            own = replace(one, ops=tuple(op for op in one.ops if getattr(op, "role", "") != "embedding"))
            more = Stack("prediction", (own,), (0,) * self.recipe.mtp_layers)
            out.append(self.segment(more, range(more.layers), ["none"] * more.layers, len(stage.chunks) - 1))
        return out

    def segment(self, stack: Stack, layers: Sequence[int], modes: Sequence[str], chunk: int) -> Segment:
        """Layers of one run, equal ones together."""
        groups: dict[tuple[int, str, bool], int] = {}
        flows = not (stack is self.arch.main and self.stage.first) or self.block_trains(self.arch.embed)
        for layer, mode in zip(layers, modes, strict=True):
            # checkpointed layers need an input with a gradient: frameworks then make the embedding's output need one
            key = (stack.pattern[layer], mode, flows or chunk > 0 or mode == "full")
            groups[key] = groups.get(key, 0) + 1
            flows = flows or self.block_trains(stack.blocks[stack.pattern[layer]])
        made = tuple(self.layer(stack.blocks[i], mode, float(n), flow) for (i, mode, flow), n in groups.items())
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

    def block_trains(self, block: Block) -> bool:
        """Whether anything in a block trains, so that what comes after it needs gradients."""
        return any(self.plan.trains(op) or self.plan.targeted(op) or self.plan.scaled(op) for op in block.ops)

    def layer(self, block: Block, mode: str, count: float, flows: bool = True) -> Layer:
        """``flows``: the layer's input needs a gradient."""
        key = (block, mode, flows)
        if key in self._made:
            return replace(self._made[key], count=count)
        e = self.emitter(block, input_grad=flows)
        out = e.emit()
        memory = layer_pass(e.tape, out, mode, self.recipe.recompute, self.style, accumulate=self.transient)
        if self.style.sac_abs and mode == "selective" and self.recipe.fp8_recipe == "rowwise":
            whole = Lin()
            for op in block.ops:
                if isinstance(op, Linear):
                    whole.add(Lin.of("activations", "1/tp" if op.split else "1/1", op.parameters * self.style.compute))
            memory = replace(memory, saved=memory.saved + whole)
        if "activations" in self.recipe.offload:  # two layers' are on their way to or from the host
            memory = replace(memory, saved=memory.saved * min(1.0, 2.0 / max(1, self.arch.layers)))
        memory = replace(memory, forward=prune(memory.forward), backward=prune(memory.backward))
        own = states([(block, 1.0)], self.plan, self.par.zero)
        if self.unreduced:
            own = replace(
                own, gradients=whole_gradient(self.plan, block, unit(self.plan.formats.compute), "gradients", flat=True)
            )
        self._made[key] = Layer(block, count, memory, own, total(e.unfreed.values()), Lin() if memory.keeps else e.copies)
        return self._made[key]

    def emitter(self, block: Block, *, input_grad: bool = True, loss: bool = False) -> Emitter:
        """An emitter for ``block``, which knows the encoder's rows if it reads its output."""
        encoder = self.arch.memory if block.reads_memory else None
        place = place_of(encoder) if encoder is not None else CONDITION if block.reads_memory else None
        stream = self.units.get(block, 0.0)
        return Emitter(block, self.style, self.plan, input_grad=input_grad, loss=loss, unit=stream, memory=place)

    def unit_after(self, block: Block, before: float) -> float:
        """Bytes per element of a block's output."""
        e = self.emitter(block)
        return replace(e, unit=before).emit().unit

    def edge(self, block: Block, *, loss: bool) -> BlockMemory:
        """Embedding or head block, never checkpointed."""
        e = self.emitter(block, loss=loss, input_grad=block is not self.arch.embed or self.block_trains(block))
        if self.style.edge_norm:
            e.style = replace(self.style, norm=self.style.edge_norm)
        out = e.emit()
        held = [(i, t) for i, node in enumerate(e.tape.nodes) for t in node.outs if t.held]
        if loss and held:
            self.head_carried = total(t.size for _, t in held), total(e.unfreed.values()), held[0][0]
        return e.tape.run(out, accumulate=self.transient)

    @property
    def tied_sum(self) -> bool:
        """The tied table's gradient waits for its second part, while the whole backward pass runs."""
        return self.arch.tied and self.recipe.adapter is None and not self.accumulates

    def carried(self) -> tuple[Lin, Lin]:
        """What is left of the previous micro-batch while the next forward pass runs: logits, unfreed tensors."""
        if not self.style.logits_carried or self.recipe.lengths != "equal":
            return Lin(), Lin()
        logits, unfreed, _ = self.head_carried
        for segment in self.segs:
            for layer in segment.layers:
                if layer.memory.keeps:
                    unfreed = unfreed + layer.unfreed * layer.count
        return logits, unfreed

    def cached(self) -> Lin:
        """Weight copies of checkpointed layers, in autocast's cache until the forward pass has ended."""
        return total(layer.cached * layer.count for segment in self.segs for layer in segment.layers)

    @property
    def leaf_embeddings(self) -> bool:
        """Frozen embeddings whose output is made to require gradients (``enable_input_require_grads``): PEFT does so for
        checkpointed models, ``prepare_model_for_kbit_training`` for quantised ones."""
        if self.recipe.adapter is None or self.arch.family == "diffusion" or self.block_trains(self.arch.embed):
            return False
        return self.recipe.recompute.mode == "full" or self.recipe.quantization is not None

    def step_tensors(self) -> Lin:
        """Tensors of the whole model that live through forward and backward: mask and rotary tables of composite code."""
        out = Lin()
        if self.style.mask and self.style.scores == "composite":
            out.add(Lin.of("mask", "TT/1", self.style.mask))
        if self.style.rope == "composite" and self.arch.head_dim:
            out.add(Lin.of("mask", "S/1", 2.0 * self.arch.head_dim * self.style.residual))
        return out

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
        if self.unreduced:
            base = replace(base, gradients=total(s.gradients for s in self.segs))
        work = buffers(self)
        old_logits, unfreed = self.carried()
        unfreed = unfreed + self.cached()
        resident = base.resident() + work.resident
        if self.accumulates:
            resident = resident + base.gradients
        phases: dict[str, list[Point]] = {"forward": [], "loss": [], "backward": [], "optimizer": []}
        kept_all = resident + work.passes
        if embed is not None:
            kept_all.add(embed.saved, self.stage.in_flight[0])
        encoder = self.arch.memory
        if encoder is not None:  # the encoder's output and, in the backward pass, its gradient
            kept_all.add(self.emitter(encoder).emit().size, 2.0 * max(self.stage.in_flight))
        for segment in self.segs:
            kept_all.add(segment.saved, segment.in_flight)
        tables, held = self.step_tensors(), head.held if head is not None else Lin()
        kept_all.add(tables)
        grads_after = [form + held for form in self._gradients_after(head, work.late)]
        for j, segment in enumerate(self.segs):
            # later segments of the same pass have not run yet (forward), or are done (backward)
            top = kept_all - total(s.saved for s in self.segs[j + 1 :] if s.chunk == segment.chunk)
            bottom = top - segment.saved
            for layer in segment.layers:
                rest = top - layer.memory.saved
                ws_f, ws_b = work.forward(layer.block), work.backward(layer.block)
                for p in layer.memory.forward:
                    phases["forward"].append(Point("forward", _at(layer, p), rest + p.size + ws_f + old_logits + unfreed))
                for p in layer.memory.backward:
                    phases["backward"].append(Point("backward", _at(layer, p), rest + p.size + ws_b + grads_after[j]))
                    if self.fresh or not self.transient:
                        own, all_own = layer.states.gradients, segment.gradients
                        if not self.fresh:
                            own, all_own = layer.memory.wgrad, segment.wgrad
                        early = grads_after[j] + all_own - own
                        phases["backward"].append(Point("backward", _at(layer, p), bottom + p.size + ws_b + early))
        if head is not None:
            # every prediction layer has a loss of its own, kept until the main one has run
            top = kept_all + head.saved * float(self.recipe.mtp_layers)
            for i, p in enumerate(head.forward + head.backward):
                old = (old_logits if i <= self.head_carried[2] else Lin()) + (unfreed if i < len(head.forward) else Lin())
                phases["loss"].append(Point("loss", f"head.{p.operator}", top + p.size + work.head + old))
        if embed is not None and (self.fresh or not self.transient):
            everything = resident + work.passes + base.gradients + work.late + held
            if head is not None and self.tied_sum and in_backward(self.plan):
                everything = everything + head.wgrad
            if not self.fresh:  # other micro-batches are still in flight
                passing = total(s.saved for s in self.segs if s.chunk == 0) + embed.saved
                everything = kept_all - passing + grads_after[0] + self.segs[0].wgrad + embed.wgrad
            for p in embed.backward:
                done = Lin() if self.tied_sum or in_backward(self.plan) else embed.wgrad
                phases["backward"].append(Point("backward", f"embed.{p.operator}", everything + p.size - done + work.head))
        step = resident + (Lin() if self.accumulates else base.gradients) + work.optimizer
        if self.style.outputs_in_step:
            step.add(held)
            if self.leaf_embeddings and embed is not None:
                step.add(embed.output, 2.0)
        phases["optimizer"].append(Point("optimizer", "step", step))
        kept = {name: prune(points) for name, points in phases.items() if points}
        whole = total([s.saved for s in self.segs] + [m.saved for m in (embed, head) if m is not None])
        if encoder is not None:
            whole.add(self.emitter(encoder).emit().size)
        return StageFold(self.stage, base, resident, kept, whole, self._pooled(kept, base, work))

    def _pooled(self, phases: dict[str, tuple[Point, ...]], base: StateTerms, work: Buffers) -> tuple[Point, ...]:
        """Reserved memory as the sum of stream pools: the compute stream's peak, gathers, and reduced gradients."""
        if not work.pools:
            return ()
        one_stream = self.run.sharding == "simplefsdp"
        extra = work.pools if one_stream else work.pools + base.gradients
        out = []
        for points in phases.values():
            for p in points:
                size = p.size
                if not one_stream:  # sharded gradients live in the reduction stream's pool, all of them
                    size = Lin({k: v for k, v in size.items() if k[0] != "gradients" or "z" not in k[1]})
                out.append(Point(p.phase, p.operator, size + extra))
        return prune(out)

    def _gradients_after(self, head: BlockMemory | None, late: Lin) -> list[Lin]:
        """Gradients that exist when the backward pass reaches each segment (fresh gradients only)."""
        out: list[Lin] = []
        made = Lin(late)
        waits = not self.transient or (self.tied_sum and in_backward(self.plan))
        if head is not None and waits and not late and "grads" not in self.recipe.offload:
            made.add(shard(head.wgrad, self.par.zero) if self.fresh else head.wgrad)
        for segment in reversed(self.segs):
            out.append(Lin(made))
            if not self.transient:
                made.add(segment.gradients if self.fresh else segment.wgrad)
        return out[::-1]


def _at(layer: Layer, point: Point) -> str:
    return f"{layer.block.name}.{point.operator}"


def _is_token_table(op: object) -> bool:
    return isinstance(op, Embedding) and op.vocab


__all__ = ["Buffers", "StageFold", "fold_stage", "stages"]
