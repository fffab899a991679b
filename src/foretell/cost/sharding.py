"""Buffers that data parallelism needs: gathered units, reduction buckets, optimizer-step workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.arch.operators import Experts, Head, Linear
from foretell.cost.deepspeed import zero_buffers
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, SHARDED, WeightPlan, unit

if TYPE_CHECKING:
    from foretell.cost.memory import StageFolder

Working = Callable[[Block], Lin]


@dataclass(frozen=True, slots=True)
class Buffers:
    """``resident`` all along, ``passes`` while a micro-batch runs; ``forward``/``backward`` while a given block runs; ``head``, ``optimizer`` there."""

    resident: Lin
    forward: Working
    backward: Working
    head: Lin
    optimizer: Lin
    late: Lin = field(default_factory=Lin)
    """Whole gradients of the root unit, reduced only when the backward pass has ended."""
    pools: Lin = field(default_factory=Lin)
    """What other streams' allocator pools reserve beyond the compute stream's peak."""
    passes: Lin = field(default_factory=Lin)
    """Held from the forward to the end of the backward pass: units that are not resharded between them."""


def _nothing(_: Block) -> Lin:
    return Lin()


def gathered(folder: StageFolder, block: Block, wide: float, category: str = "gathered_weights") -> Lin:
    """Bytes of a block's parameters brought together from the data-parallel group, ``wide`` bytes an element."""
    quant = folder.recipe.quantization
    out = Lin()
    for op in block.ops:
        for w in op.weights():
            quantized = quant is not None and w.role == "matrix"
            if folder.style.fp8_gather and isinstance(op, Linear) and w.role == "matrix":
                out.add(Lin.of(category, LOCAL[w.shard], w.elements * 1.0))
                continue
            per = folder.plan.param_unit(op, w) - folder.plan.scale_unit(op, w) if quantized else wide
            out.add(Lin.of(category, LOCAL[w.shard], w.elements * per))
    return out


def trained_bytes(folder: StageFolder, wide: float, category: str) -> Lin:
    """Bytes of the trained elements of the stage as sharded for the optimizer, ``wide`` bytes an element."""
    out = Lin()
    zero = folder.par.zero
    for block, n in folder.blocks():
        elements, _, _ = folder.plan.elements(block)
        for key, count in elements.items():
            out.add(Lin.of(category, (SHARDED if zero >= 1 else LOCAL)[key], n * count * wide))
    return out


def step_workspace(folder: StageFolder) -> Lin:
    """Transient bytes of an optimizer step: a foreach step makes one more copy of the second moment.

    With ``step_gather`` (nanotron ``optim/zero.py`` ``_all_gather_params``: ``all_gather_coalesced``) updated shards are
    flattened and gathered into whole flat buffers before they are copied back.
    """
    opt, recipe = folder.plan.optimizer, folder.recipe
    if folder.profile.step_gather and folder.par.zero == 1 and folder.par.dp > 1:
        wide = unit(folder.plan.formats.param)
        out = Lin()
        for block, n in folder.blocks():
            for key, count in folder.plan.elements(block)[0].items():
                out.add(Lin.of("optimizer_workspace", LOCAL[key], n * count * wide))
                out.add(Lin.of("optimizer_workspace", SHARDED[key], n * count * wide))
        return out
    impl = recipe.optimizer_impl or folder.profile.optimizer_impl
    if impl != "foreach" or "optimizer" in recipe.offload or opt.in_backward or recipe.optimizer_in_backward:
        return Lin()
    wide = unit(recipe.adapter.dtype) if recipe.adapter is not None else unit(folder.plan.formats.optim)
    return trained_bytes(folder, wide * opt.foreach_temp, "optimizer_workspace")


def fused_update(folder: StageFolder, block: Block) -> Lin:
    """An update fused into the backward pass converts a gradient, and this rank's part of its parameter, to fp32 while the
    next gradient is made (OpenLMLab/LOMO src/lomo.py ``fuse_update``, ``fuse_update_zero3``)."""
    opt = folder.plan.optimizer
    if not opt.in_backward or opt.master:
        return Lin()
    largest = max((float(w.elements) for op in block.ops if folder.plan.trains(op) for w in op.weights()), default=0.0)
    whole = Lin.of("optimizer_workspace", "1/1", largest * 4.0)
    return whole + Lin.of("optimizer_workspace", "1/z" if folder.par.zero >= 3 else "1/1", largest * 4.0)


def buffers(folder: StageFolder) -> Buffers:
    """The buffers of the run's sharding."""
    par = folder.par
    kind = folder.run.sharding
    step = step_workspace(folder)
    if kind == "deepspeed" and par.zero >= 1:
        return zero_buffers(folder, step)
    if par.zero >= 3:
        return _gathering(folder, kind, step)
    resident = Lin()
    fraction = folder.recipe.communication_buffer_fraction
    if fraction is not None:
        wide = unit(folder.plan.formats.grad) * fraction
        for block, n in folder.blocks():
            elements, _, _ = folder.plan.elements(block)
            for key, count in elements.items():
                resident.add(Lin.of("communication_buffers", (SHARDED if par.zero >= 2 else LOCAL)[key], n * count * wide))
    elif kind == "ddp" and par.dp > 1 and folder.profile.ddp_bucket:
        for block, n in folder.blocks():
            elements, _, _ = folder.plan.elements(block)
            # buckets hold what autograd makes, not what accumulates
            kind_of = folder.plan.formats.wgrad if folder.profile.gradients == "buffer" else folder.plan.formats.grad
            wide = unit(folder.recipe.adapter.dtype) if folder.recipe.adapter else unit(kind_of)
            for key, count in elements.items():
                resident.add(Lin.of("communication_buffers", LOCAL[key], n * count * wide))
    if folder.profile.megatron:
        resident.add(megatron_resident(folder))
    if folder.profile.pipe_buffers and par.pp > 1:
        row = Lin.of("communication_buffers", "T/sp", folder.arch.hidden * unit(folder.plan.formats.compute))
        sends, receives = not folder.stage.last, not folder.stage.first
        resident.add(row, sends * (max(2.0, max(folder.stage.in_flight)) + 1.0) + receives)
    if folder.style.gather_buffers and folder.style.sequence_parallel:
        wide = 2.0 * folder.arch.hidden * unit(folder.plan.formats.compute)
        resident.add(Lin.of("communication_buffers", "T/1", wide))
    return Buffers(resident, _nothing, lambda block: fused_update(folder, block), fused_update(folder, folder.arch.head), step)


_FUSED_COLUMNS = ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"})


def megatron_resident(folder: StageFolder) -> Lin:
    """What Megatron-Core with Transformer Engine keeps allocated beside states and activations.

    * One dummy weight gradient per distinct weight shape, kept for ever, when gradient accumulation is fused into
      the matmul (TransformerEngine ``pytorch/module/base.py`` ``get_dummy_wgrad``; Megatron-LM
      ``core/tensor_parallel/layers.py`` for the output layer).
    * The global buffer that gathers the head's input under sequence parallelism (``layers.py`` ``mpu`` buffer).
    * On later stages the received input of the running micro-batch (``schedules.py``).
    """
    out = Lin()
    hidden = float(folder.arch.hidden)
    wide = unit(folder.plan.formats.compute)
    if folder.style.main_grad_fusion:
        shapes: set[tuple[str, int, int]] = set()
        for block, _ in folder.blocks():
            for op in fused_matmuls(block):
                shapes.add(op)
        for shard, rows, columns in shapes:
            out.add(Lin.of("weight_gradient_scratch", LOCAL[shard], rows * columns * wide))
    if folder.style.sequence_parallel and folder.stage.last:
        out.add(Lin.of("communication_buffers", "T/1", hidden * wide))
    if folder.stage.index > 0 or len(folder.stage.chunks) > 1:
        out.add(Lin.of("communication_buffers", "T/sp", hidden * wide))
    return out


def fused_matmuls(block: Block) -> list[tuple[str, int, int]]:
    """(shard, rows, columns) of every matmul of a block as Megatron runs them: q, k, v and gate, up in one each."""
    out: list[tuple[str, int, int]] = []
    merged: dict[tuple[int, tuple[str, ...]], list[int]] = {}
    for op in block.ops:
        if isinstance(op, Linear):
            leaf = op.name.removeprefix("shared_")
            group = next((i for i, names in enumerate(_FUSED_COLUMNS) if leaf in names), None)
            if group is not None:
                merged.setdefault((group, (*op.ins, op.name.removesuffix(leaf))), [0, op.d_in])[0] += op.d_out
            else:
                out.append(("tp" if op.split else "1", op.d_out, op.d_in))
        elif isinstance(op, Experts):
            # grouped matmuls: one buffer per shape of a single expert, divided by expert-tp, not by ep
            out += [("etp", op.ffn * (2 if op.gated else 1), op.dim), ("etp", op.dim, op.ffn)]
        elif isinstance(op, Head):
            out.append(("tp", op.rows, op.dim))
    out += [("tp", rows, columns) for rows, columns in merged.values()]
    return out


def _fsdp2_pools(folder: StageFolder, layers: list[Block], wide: float) -> Lin:
    """The gather stream's pool: two consecutive units whole and the second one's shard as a copy; and the hole."""
    ends = [b for b, here in ((folder.arch.embed, folder.stage.first), (folder.arch.head, folder.stage.last)) if here]
    biggest = max(layers, key=lambda b: b.parameters)
    units = [[biggest], [biggest], ends] if folder.style.fsdp_units == "root" else [[biggest], [biggest], *([b] for b in ends)]
    units.sort(key=lambda unit: -sum(b.parameters for b in unit))
    out = allocator_hole(folder)
    for rank, blocks in enumerate(units[:2]):
        for block in blocks:
            whole = gathered(folder, block, wide, "communication_buffers")
            out.add(whole)
            if rank:
                out.add({(c, {"1/1": "1/z", "1/tp": "1/z.tp", "1/ep": "1/ze"}[m]): v for (c, m), v in whole.items()})
    return out


def allocator_hole(folder: StageFolder) -> Lin:
    """Reserved memory that the loss leaves unused: the freed compute-format logits are smaller than the fp32 tensors
    that follow (with expandable segments); without, the first step's blocks have been split by optimizer states and
    about two fp32 logits tensors must be reserved anew (measured 1.1 to 3.1)."""
    vocab, style = folder.arch.vocab, folder.style
    out = Lin()
    if folder.par.tp > 1 and folder.run.sharding != "simplefsdp":  # gathered inputs wait for the collective's stream
        out.add(Lin.of("allocator_slack", "T/1", 2.0 * folder.arch.hidden * style.compute))
    if vocab is None or not folder.stage.last:
        return out
    compiled = style.loss == "compiled"
    per = {"eager": 2.0, "hf": 2.0, "loss-parallel": 2.0, "chunked": 0.25 if style.chunked_head else 0.0}.get(style.loss, 0.0)
    if style.logits_held == "compute":  # nothing is freed that the fp32 tensors could not use
        per = 0.0
    if not folder.run.expandable and folder.recipe.adapter is None:  # an adapter's states are too small to split them
        per += 4.0 if compiled else 6.0
    out.add(Lin.of("allocator_slack", "T/tp", vocab * per))
    return out


def whole_gradient(plan: WeightPlan, block: Block, wide: float, category: str, *, flat: bool) -> Lin:
    """Gradients of a unit before they are divided; of everything in it where the unit is one ``flat`` parameter and any
    of it trains (FSDP1, torch/distributed/fsdp/_flat_param.py)."""
    out = Lin()
    trained = plan.elements(block)[0]
    if flat and trained and plan.recipe.adapter is not None:
        for op in block.ops:
            if not plan.trains(op):
                for w in op.weights():
                    out.add(Lin.of(category, LOCAL[w.shard], w.elements * wide))
    for key, count in trained.items():
        out.add(Lin.of(category, LOCAL[key], count * wide))
    return out


def _gathering(folder: StageFolder, kind: str, step: Lin) -> Buffers:
    """ZeRO-3 and FSDP: the unit in use and the one being prefetched are whole, so are the unit's new gradients.

    FSDP2 (pytorch ``torch/distributed/fsdp/_fully_shard``): ``_fsdp_collectives.foreach_all_gather`` allocates under its
    own stream, ``foreach_reduce`` reads an fp32 copy of the gradients on the compute stream and writes the shards on a
    third one.  The allocator keeps a pool per stream, so the pools add up in *reserved* memory.
    """
    compute = unit(folder.plan.formats.compute)
    reduce = unit(folder.plan.formats.grad)
    style = folder.style
    micro_steps = folder.recipe.grad_accum > 1 or folder.par.pp > 1

    def whole_gradients(block: Block, wide: float, category: str) -> Lin:
        return whole_gradient(folder.plan, block, wide, category, flat=kind == "fsdp1" and not folder.profile.adapter_units)

    def forward(block: Block) -> Lin:
        return gathered(folder, block, compute) * 2.0

    def backward(block: Block) -> Lin:
        out = gathered(folder, block, compute) * 2.0 + whole_gradients(block, reduce, "communication_buffers")
        if kind == "fsdp1":
            # the pieces that are put together: zeros for frozen weights (pytorch FunctionsManual.cpp
            # split_with_sizes_backward), beside the trained ones that autograd made
            out = out + (whole_gradients(block, reduce, "communication_buffers") - whole_gradient(
                folder.plan, block, reduce, "communication_buffers", flat=False
            ))  # fmt: skip
        return out

    root = Lin()
    late = Lin()
    edges: list[Block] = []
    if folder.stage.last:
        edges.append(folder.arch.head)
    if folder.stage.first and (style.fsdp_units == "root" or folder.arch.tied):
        edges.append(folder.arch.embed)
    head = Lin()
    if style.fsdp_units == "layers" and not folder.arch.tied:  # units of their own: the head's is gathered when it runs
        if folder.stage.last and folder.segs:
            head.add(gathered(folder, folder.arch.head, compute))
            head.add(gathered(folder, folder.segs[-1].layers[-1].block, compute))
        edges = []
    for block in edges:
        root.add(gathered(folder, block, compute))
        if style.fsdp_units == "root":
            late.add(whole_gradients(block, compute, "gradients"))
    layers = [layer.block for segment in folder.segs for layer in segment.layers]
    if folder.par.reshard == "never":
        for segment in folder.segs:
            for layer in segment.layers:
                root.add(gathered(folder, layer.block, compute), layer.count)
    elif style.keeps_last_block and folder.par.reshard == "default" and layers:
        root.add(gathered(folder, layers[-1], compute))
    if folder.par.pp > 1 and micro_steps:  # gradients stay whole until the last micro-batch, in reduce format
        for block, n in folder.blocks():
            root.add(whole_gradients(block, reduce, "gradients"), n)
    pools = _fsdp2_pools(folder, layers, compute) if kind in ("fsdp2", "simplefsdp") and layers else Lin()
    if kind == "simplefsdp":  # one stream: only the hole
        pools = allocator_hole(folder)
    return Buffers(Lin(), forward, backward, head, step, late, pools, root)
