"""What one pipeline stage is made of: its runs of layers, each layer under its checkpointing mode, and the tensors that
live through a whole step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from foretell.arch.architecture import Architecture, Block, Stack
from foretell.arch.operators import Attention, Embedding, Head, Linear, Parameters
from foretell.cost.buffers import whole_gradient
from foretell.cost.linear import Lin, total
from foretell.cost.pipeline import Stage
from foretell.cost.recompute import layer_pass
from foretell.cost.rules_rope import tables
from foretell.cost.rules_scan import padding_mask
from foretell.cost.rules_scores import biases, eager, mask_unit
from foretell.cost.saved import CONDITION, Emitter, place_of
from foretell.cost.segments import Layer, Segment, prune
from foretell.cost.states import in_backward, states
from foretell.cost.stream import input_units
from foretell.cost.tape import Tape, Tensor
from foretell.cost.weights import WeightPlan, unit
from foretell.errors import CombinationError
from foretell.recipe.resolve import Run


def keeps(tape: Tape, tensor: Tensor | None) -> bool:
    """Whether any node of a tape keeps a tensor for its backward pass (nothing is kept of no tensor)."""
    return tensor is None or any(t.storage is tensor.storage for node in tape.nodes for t in node.saved)


Made = dict[tuple[Block, str, bool], Layer]
"""Layers by block, checkpointing mode and whether their input needs a gradient."""


class StageFolder:
    """The parts of one stage; ``made`` holds the layers that stages of one run share."""

    def __init__(self, arch: Architecture, plan: WeightPlan, run: Run, stage: Stage, made: Made) -> None:
        self.arch, self.plan, self.run, self.stage = arch, plan, run, stage
        self.profile, self.par, self.recipe = run.profile, run.par, run.recipe
        self.style = run.style
        # the longest sample in the very first micro-batch: gradients do not exist yet
        later = self.recipe.grad_accum > 1 and self.recipe.lengths == "equal"
        whole_buffer = run.sharding == "deepspeed" and self.par.zero == 3  # grad_partitions_flat_buffer, made once
        self.accumulates = run.profile.gradients == "buffer" or later or whole_buffer or plan.optimizer.one_block
        """Gradients persist: new ones are added to them."""
        self.fresh = not self.accumulates
        self.unreduced = run.profile.no_sync and self.recipe.grad_accum > 1 and run.sharding == "fsdp1" and self.par.zero == 3
        """Micro-batches leave whole gradients behind: reduction waits for the last one."""
        self.transient = in_backward(plan) or (self.accumulates and not run.profile.autograd_gradients)
        """A weight gradient is freed as soon as it has been accumulated."""
        self.units: dict[Block, float] = {}
        """Bytes per element of what each block reads, where autocast makes them differ."""
        if self.style.autocast:
            self.units = input_units(arch, self.unit_after, self.style.residual)
        self.made = made

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Runs of layers in forward order: towers, then the trunk chunk by chunk, then prediction layers."""
        out = [self.segment(*run) for run in self.runs()]
        if self.stage.last and self.recipe.mtp_layers:
            out.append(self._prediction())
        return tuple(out)

    def runs(self) -> Iterator[tuple[Stack, Sequence[int], Sequence[str], int]]:
        """Consecutive layers in forward order: their stack, which ones, how each is checkpointed, their chunk."""
        for stack in self.arch.stacks:
            if stack is self.arch.main:
                for c, chunk in enumerate(self.stage.chunks):
                    yield stack, chunk, [self.mode(i, len(chunk)) for i in range(len(chunk))], c
            elif self.stage.first:
                # towers are checkpointed with the trunk (transformers ``GradientCheckpointingLayer``), single blocks are not
                full = self.recipe.recompute.mode == "full" and stack.layers > 1
                modes = [self.mode(i, stack.layers) if full else "none" for i in range(stack.layers)]
                yield stack, range(stack.layers), modes, 0

    def _prediction(self) -> Segment:
        """Multi-token-prediction layers: a checkpoint's carries copies of the token table and the head, training shares them."""
        n = self.recipe.mtp_layers
        if not self.arch.unused:
            raise CombinationError("needs a model with prediction layers", field="mtp_layers", value=n)
        one = self.arch.unused[0]
        own = replace(one, ops=tuple(op for op in one.ops if getattr(op, "role", "") != "embedding"))
        more = Stack("prediction", (own,), (0,) * n)
        return self.segment(more, range(n), ["none"] * n, len(self.stage.chunks) - 1)

    def placed(self, stack: Stack, layers: Sequence[int], modes: Sequence[str], chunk: int) -> Iterator[tuple[Block, str, bool]]:
        """Each layer of a run: its block, how it is checkpointed, and whether its input needs a gradient."""
        flows = not (stack is self.arch.main and self.stage.first) or self.block_trains(self.arch.embed)
        for layer, asked in zip(layers, modes, strict=True):
            block = stack.blocks[stack.pattern[layer]]
            inside = block.checkpoints is not None and self.recipe.recompute.mode == "full"  # wherever the block stands
            mode = "full" if inside else asked
            # checkpointed layers need an input with a gradient: frameworks then make the embedding's output need one
            yield block, mode, flows or chunk > 0 or mode == "full"
            flows = flows or self.block_trains(block)

    def segment(self, stack: Stack, layers: Sequence[int], modes: Sequence[str], chunk: int) -> Segment:
        """Layers of one run, equal ones together."""
        placed = list(self.placed(stack, layers, modes, chunk))
        groups = Counter(placed)
        made = tuple(self.layer(block, mode, float(n), flow) for (block, mode, flow), n in groups.items())
        kinds = {key: i for i, key in enumerate(groups)}
        return Segment(made, chunk, self.stage.in_flight[chunk], tuple(kinds[key] for key in placed))

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
        if key in self.made:
            return replace(self.made[key], count=count)
        e = self.emitter(block, input_grad=flows)
        out = e.emit()
        memory = layer_pass(
            e.tape,
            out,
            mode,
            self.recipe.recompute,
            self.style,
            accumulate=self.transient,
            checkpoints=block.checkpoints,
        )
        if self.style.sac_abs and mode == "selective" and self.recipe.fp8_recipe == "rowwise":
            memory = replace(memory, saved=memory.saved + self._absolute(block))
        if "activations" in self.recipe.offload:  # two layers' are on their way to or from the host
            memory = replace(memory, saved=memory.saved * min(1.0, 2.0 / max(1, self.arch.layers)))
        memory = replace(memory, forward=prune(memory.forward), backward=prune(memory.backward))
        own = states([(block, 1.0)], self.plan, self.par.zero)
        if self.unreduced:
            whole = whole_gradient(self.plan, block, unit(self.plan.formats.compute), "gradients", flat=True)
            own = replace(own, gradients=whole)
        self.made[key] = Layer(block, count, memory, own, total(e.unfreed.values()), Lin() if memory.keeps else e.copies)
        return self.made[key]

    def _absolute(self, block: Block) -> Lin:
        """Absolute values of a block's float8 weights, which row-wise scaling makes and torchtitan's list keeps."""
        whole = Lin()
        for op in block.ops:
            if isinstance(op, Linear):
                whole.add(Lin.of("activations", "1/tp" if op.split else "1/1", op.parameters * self.style.compute))
        return whole

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

    @property
    def leaf_embeddings(self) -> bool:
        """Frozen embeddings whose output is made to require gradients (``enable_input_require_grads``): PEFT does so for
        checkpointed models, ``prepare_model_for_kbit_training`` for quantised ones."""
        if self.recipe.adapter is None or self.arch.family == "diffusion" or self.block_trains(self.arch.embed):
            return False
        return self.recipe.recompute.mode == "full" or self.recipe.quantization is not None

    def step_tensors(self) -> Lin:
        """Tensors of the whole model that live through forward and backward: rotary tables of composite code, and what every
        checkpointed layer is given beside its input."""
        full = self.recipe.recompute.mode == "full"
        out = tables(self.arch, self.style, own=full) if self.style.composite else Lin()
        mask = padding_mask(self.arch, self.style)
        if not full:
            return out + mask
        if self.arch.family == "decoder":  # positions, of the sequence or counted in each sample
            counted = any("token" in op.indices for op in self.arch.embed.ops if isinstance(op, Parameters))
            rows = "T" if counted else "S" if out else ""
            out.add(Lin.of("positions", f"{rows}/1", 8.0) if rows else Lin())
        out.add(self.given())
        return out + mask

    @property
    def has_loss(self) -> bool:
        """Whether the head ends in a cross entropy: over a vocabulary or, in transformers, over classes."""
        return self.arch.vocab is not None or (self.style.composite and isinstance(self.arch.head.ops[-1], Head))

    @property
    def last_output(self) -> Lin:
        """The last layer's output where that layer keeps it and the head does not (a CNN that ends in ReLU and pools)."""
        if not self.stage.last or self.recipe.recompute.mode == "full" or not self.arch.main.pattern:
            return Lin()
        layer, head = self.emitter(self.arch.main.blocks[self.arch.main.pattern[-1]]), self.emitter(self.arch.head)
        out = layer.emit()
        head.emit()
        return out.size if keeps(layer.tape, out) and not keeps(head.tape, head.tape.x) else Lin()

    @property
    def embedded(self) -> Lin:
        """The embeddings' output, which has a name in the model's code until all layers ran, where the first does not keep it."""
        if not (self.style.frames and self.stage.first) or self.recipe.recompute.mode == "full":
            return Lin()
        e = self.emitter(self.arch.stacks[0].blocks[0])
        e.emit()
        x = e.tape.x
        return Lin() if x is None or keeps(e.tape, x) else x.size

    @property
    def memory(self) -> Lin:
        """The encoder's output, which the layers' cross attentions read."""
        return self.emitter(self.arch.memory).emit().size if self.arch.memory is not None else Lin()

    def given(self) -> Lin:
        """Masks that composite code makes once for all layers with a window and once for all without: to add to scores, or
        (of 1 byte) for a fused kernel where a window binds; and biases by position."""
        style = self.style
        if style.scores != "composite":
            return Lin()
        out = total(biases(block, style) for stack in self.arch.stacks for block in stack.blocks)
        cores = [op for b in self.arch.main.blocks for op in b.ops if isinstance(op, Attention) and b.stream != "sample"]
        if any(eager(style, op) for op in cores):
            return out + Lin.of("mask", "TT/1", mask_unit(style) * len({bool(op.window) for op in cores}))
        made = any(op.masked or 0 < op.window < self.recipe.seq_len for op in cores)
        return out + Lin.of("mask", "TT/1", float(made))

    def blocks(self) -> Iterator[tuple[Block, float]]:
        """Every block on this rank, with how often it stands there; a tied table also where only the head uses it."""
        if self.stage.first:
            yield self.arch.embed, 1.0
        for segment in self.segments:
            for layer in segment.layers:
                yield layer.block, layer.count
        if self.stage.last:
            yield self.arch.head, 1.0
            if (self.arch.tied or self.recipe.mtp_layers) and not self.stage.first:
                tables = tuple(op for op in self.arch.embed.ops if isinstance(op, Embedding) and op.vocab)
                yield replace(self.arch.embed, ops=tables), 1.0
