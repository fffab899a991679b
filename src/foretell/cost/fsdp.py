"""FSDP and ZeRO-3 as PyTorch runs them: the unit in use and the one being prefetched are whole, so are new gradients.

FSDP2 (pytorch ``torch/distributed/fsdp/_fully_shard``): ``_fsdp_collectives.foreach_all_gather`` allocates under its
own stream, ``foreach_reduce`` reads an fp32 copy of the gradients on the compute stream and writes the shards on a
third one.  The allocator keeps a pool per stream, so the pools add up in *reserved* memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.cost.buffers import Buffers, gathered, whole_gradient
from foretell.cost.linear import Lin
from foretell.cost.weights import unit

if TYPE_CHECKING:
    from foretell.cost.folder import StageFolder


def gathering(folder: StageFolder, step: Lin) -> Buffers:
    """Buffers of a run whose parameters are sharded; ``step`` is the optimizer's workspace."""
    compute, reduce = unit(folder.plan.formats.compute), unit(folder.plan.formats.grad)
    fsdp1 = folder.run.sharding == "fsdp1"

    def forward(block: Block) -> Lin:
        return gathered(folder, block, compute) * 2.0

    def backward(block: Block) -> Lin:
        whole = _whole_gradients(folder, block, reduce, "communication_buffers")
        out = gathered(folder, block, compute) * 2.0 + whole
        if fsdp1:
            # the pieces that are put together: zeros for frozen weights (pytorch FunctionsManual.cpp
            # split_with_sizes_backward), beside the trained ones that autograd made
            out = out + (whole - whole_gradient(folder.plan, block, reduce, "communication_buffers", flat=False))
        return out

    late = Lin()
    if folder.style.fsdp_units == "root":
        for block in _root_unit(folder):
            late.add(_whole_gradients(folder, block, compute, "gradients"))
    passes = _not_resharded(folder, compute)
    if folder.par.pp > 1 and folder.profile.gradients != "buffer":  # whole until the last micro-batch, in reduce format
        for block, n in folder.blocks():
            passes.add(_whole_gradients(folder, block, reduce, "gradients"), n)
    return Buffers(Lin(), forward, backward, _head_unit(folder, compute), step, late, _pools(folder, compute), passes)


def _whole_gradients(folder: StageFolder, block: Block, wide: float, category: str) -> Lin:
    """Gradients of a unit before they are divided, ``wide`` bytes an element."""
    flat = folder.run.sharding == "fsdp1" and not folder.profile.adapter_units
    return whole_gradient(folder.plan, block, wide, category, flat=flat)


def _layers(folder: StageFolder) -> list[tuple[Block, float]]:
    """The stage's layers in order, each with how many of its kind there are."""
    return [(layer.block, layer.count) for segment in folder.segments for layer in segment.layers]


def _own_units(folder: StageFolder) -> bool:
    """Embedding and head are units like any layer (tied ones share a table, so they cannot be)."""
    return folder.style.fsdp_units == "layers" and not folder.arch.tied


def _root_unit(folder: StageFolder) -> list[Block]:
    """Blocks outside the layers that stay whole from the forward to the end of the backward pass."""
    if _own_units(folder):
        return []
    out = [folder.arch.head] if folder.stage.last else []
    if folder.stage.first and (folder.style.fsdp_units == "root" or folder.arch.tied):
        out.append(folder.arch.embed)
    return out


def _head_unit(folder: StageFolder, compute: float) -> Lin:
    """A head that is a unit of its own is gathered when it runs, beside the last layer."""
    out = Lin()
    layers = _layers(folder)
    if _own_units(folder) and folder.stage.last and layers:
        out.add(gathered(folder, folder.arch.head, compute))
        out.add(gathered(folder, layers[-1][0], compute))
    return out


def _not_resharded(folder: StageFolder, compute: float) -> Lin:
    """Units that stay whole between forward and backward: the root, and what ``reshard`` leaves whole."""
    out = Lin()
    for block in _root_unit(folder):
        out.add(gathered(folder, block, compute))
    layers = _layers(folder)
    if folder.par.reshard == "never":
        for block, n in layers:
            out.add(gathered(folder, block, compute), n)
    elif folder.style.keeps_last_block and folder.par.reshard == "default" and layers:
        out.add(gathered(folder, layers[-1][0], compute))
    return out


def _pools(folder: StageFolder, compute: float) -> Lin:
    """What stands beside the compute stream's pool in reserved memory."""
    if folder.run.sharding == "simplefsdp":  # one stream: only the hole
        return allocator_hole(folder)
    layers = [block for block, _ in _layers(folder)]
    return _gather_pool(folder, layers, compute) if folder.run.sharding == "fsdp2" and layers else Lin()


def _gather_pool(folder: StageFolder, layers: list[Block], wide: float) -> Lin:
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
    if vocab is None or not folder.stage.last or style.chunk_tokens or style.loss == "fused-linear":  # no tensor of logits
        return out
    compiled = style.loss == "compiled"
    per = {"eager": 2.0, "hf": 2.0, "loss-parallel": 2.0, "chunked": 0.25 if style.chunked_head else 0.0}.get(style.loss, 0.0)
    if style.logits_held == "compute":  # nothing is freed that the fp32 tensors could not use
        per = 0.0
    if not folder.run.expandable and folder.recipe.adapter is None:  # an adapter's states are too small to split them
        per += 4.0 if compiled else 6.0
    out.add(Lin.of("allocator_slack", "T/tp", vocab * per))
    return out
