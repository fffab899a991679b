"""Buffers of a run, by how its data parallelism shards the states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretell.cost.buffers import Buffers, fused_update, nothing, step_workspace, trained_bytes
from foretell.cost.deepspeed import zero_buffers
from foretell.cost.fsdp import gathering
from foretell.cost.linear import Lin
from foretell.cost.megatron import megatron_resident
from foretell.cost.weights import unit

if TYPE_CHECKING:
    from foretell.cost.folder import StageFolder


def buffers(folder: StageFolder) -> Buffers:
    """The buffers of the run's sharding."""
    step = step_workspace(folder)
    if folder.run.sharding == "deepspeed" and folder.par.zero >= 1:
        return zero_buffers(folder, step)
    if folder.par.zero >= 3:
        return gathering(folder, step)
    resident = _reduction(folder)
    if folder.profile.megatron:
        resident.add(megatron_resident(folder))
    if folder.profile.pipe_buffers and folder.par.pp > 1:
        resident.add(_pipe_buffers(folder))
    if folder.style.gather_buffers and folder.style.sequence_parallel:
        wide = 2.0 * folder.arch.hidden * unit(folder.plan.formats.compute)
        resident.add(Lin.of("communication_buffers", "T/1", wide))
    return Buffers(resident, nothing, lambda block: fused_update(folder, block), fused_update(folder, folder.arch.head), step)


def _reduction(folder: StageFolder) -> Lin:
    """Buffers that gradients are reduced in: a share of them that the user states, or the buckets of
    DistributedDataParallel."""
    par, recipe, formats = folder.par, folder.recipe, folder.plan.formats
    fraction = recipe.communication_buffer_fraction
    if fraction is not None:
        return trained_bytes(folder, unit(formats.grad) * fraction, "communication_buffers", sharded=par.zero >= 2)
    if folder.run.sharding != "ddp" or par.dp == 1 or not folder.profile.ddp_bucket:
        return Lin()
    # buckets hold what autograd makes, not what accumulates
    made = formats.wgrad if folder.profile.gradients == "buffer" else formats.grad
    wide = unit(recipe.adapter.dtype) if recipe.adapter else unit(made)
    return trained_bytes(folder, wide, "communication_buffers", sharded=False)


def _pipe_buffers(folder: StageFolder) -> Lin:
    """DeepSpeed's pipeline engine: outputs of the micro-batches under way, a received gradient, a received input
    (deepspeed/runtime/pipe/engine.py ``pipe_buffers``)."""
    row = Lin.of("communication_buffers", "T/sp", folder.arch.hidden * unit(folder.plan.formats.compute))
    sends, receives = not folder.stage.last, not folder.stage.first
    return row * (sends * (max(2.0, *folder.stage.in_flight) + 1.0) + receives)
