"""Buffers that data parallelism needs: gathered units, reduction buckets, optimizer-step workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, SHARDED, unit

if TYPE_CHECKING:
    from foretell.cost.memory import StageFolder

Working = Callable[[Block], Lin]


@dataclass(frozen=True, slots=True)
class Buffers:
    """``resident`` all along; ``forward``/``backward`` while a given block runs; ``head``, ``optimizer`` there."""

    resident: Lin
    forward: Working
    backward: Working
    head: Lin
    optimizer: Lin


def _nothing(_: Block) -> Lin:
    return Lin()


def gathered(folder: StageFolder, block: Block, wide: float, category: str = "gathered_weights") -> Lin:
    """Bytes of a block's parameters brought together from the data-parallel group, ``wide`` bytes an element."""
    quant = folder.recipe.quantization
    out = Lin()
    for op in block.ops:
        for w in op.weights():
            per = folder.plan.param_unit(op, w) if quant is not None and w.role == "matrix" else wide
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
    """Transient bytes of an optimizer step: a foreach step makes one more copy of the second moment."""
    opt, recipe = folder.plan.optimizer, folder.recipe
    impl = recipe.optimizer_impl or folder.profile.optimizer_impl
    if impl != "foreach" or "optimizer" in recipe.offload or opt.in_backward or recipe.optimizer_in_backward:
        return Lin()
    wide = unit(recipe.adapter.dtype) if recipe.adapter is not None else unit(folder.plan.formats.optim)
    return trained_bytes(folder, wide * opt.foreach_temp, "optimizer_workspace")


def buffers(folder: StageFolder) -> Buffers:
    """The buffers of the run's sharding."""
    par = folder.par
    kind = folder.run.sharding
    step = step_workspace(folder)
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
            wide = unit(folder.recipe.adapter.dtype) if folder.recipe.adapter else unit(folder.plan.formats.grad)
            for key, count in elements.items():
                resident.add(Lin.of("communication_buffers", LOCAL[key], n * count * wide))
    return Buffers(resident, _nothing, _nothing, Lin(), step)


def _gathering(folder: StageFolder, kind: str, step: Lin) -> Buffers:
    """ZeRO-3 and FSDP: the unit in use and the one being prefetched are whole, so are the unit's new gradients."""
    compute = unit(folder.plan.formats.compute)
    reduce = unit(folder.plan.formats.grad)

    def forward(block: Block) -> Lin:
        return gathered(folder, block, compute) * 2.0

    def backward(block: Block) -> Lin:
        grads = Lin()
        elements, _, _ = folder.plan.elements(block)
        for key, count in elements.items():
            grads.add(Lin.of("communication_buffers", LOCAL[key], count * reduce))
        return gathered(folder, block, compute) * 2.0 + grads

    root = Lin()
    if folder.stage.first:
        root.add(gathered(folder, folder.arch.embed, compute))
    if folder.stage.last:
        root.add(gathered(folder, folder.arch.head, compute))
    return Buffers(root, forward, backward, Lin(), step)
