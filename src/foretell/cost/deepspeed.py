"""DeepSpeed ZeRO's buffers (deepspeed/runtime/zero/stage3.py, stage_1_and_2.py, partitioned_param_coordinator.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.cost.buffers import Buffers, fused_update, gathered, nothing, trained_bytes
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, unit

if TYPE_CHECKING:
    from foretell.cost.folder import StageFolder

SUB_GROUP = 1_000_000_000
"""``sub_group_size``: a group of parameters closes once a rank's part of it has this many elements."""
MAX_LIVE = 1_000_000_000
"""``stage3_max_live_parameters``, ``stage3_max_reuse_distance``: elements of whole parameters kept at once."""
REDUCE_BUCKET = 500_000_000
"""``reduce_bucket_size``, elements (runtime/zero/config.py).  transformers' ``auto`` is hidden squared instead
(``integrations/deepspeed.py`` ``trainer_config_finalize``)."""


def reduce_bucket(folder: StageFolder) -> float:
    """Elements of one reduction bucket; none where no ZeRO optimizer reduces (LOMO: OpenLMLab/LOMO src/lomo.py)."""
    if folder.plan.optimizer.in_backward:
        return 0.0
    given = folder.recipe.reduce_bucket
    return float(given if given is not None else REDUCE_BUCKET)


def largest_sub_group(folder: StageFolder) -> float:
    """Elements of the largest optimizer sub-group on a rank, parameters taken in module order."""
    dp, largest, current = float(folder.par.dp), 0.0, 0.0
    limit = folder.recipe.sub_group or SUB_GROUP
    for count in _trained_tensors(folder):
        current += count / dp
        if current >= limit:
            largest, current = max(largest, current), 0.0
    return max(largest, current)


def _trained_tensors(folder: StageFolder) -> Iterator[float]:
    plan = folder.plan
    for block, n in folder.blocks():
        for _ in range(round(n)):
            for op in block.ops:
                if plan.trains(op):
                    yield from (float(w.elements) for w in op.weights())
                yield from plan.added(op).values()


def zero_buffers(folder: StageFolder, step: Lin) -> Buffers:
    """Buffers of ZeRO 1, 2 and 3.

    * Stage 3 keeps one bucket, and reduce-scatters a second, interleaved copy of it (runtime/comm/coalesced_collectives.py).
      Stages 1 and 2 make two in every backward pass: published configurations overlap communication.
    * Stage 3 keeps whole parameters until ``MAX_LIVE`` elements are live, and small ones for ever (not counted); on one
      rank its partition is the parameter itself (``NoGatherHandle``).
    * The step turns the gradients of one sub-group (stage 3) or of the whole partition (1, 2) into a flat copy and
      into fp32: 6 bytes an element with 2-byte gradients.  The fp32 ones go with the sub-group.
    * ZeRO-Offload of stages 1 and 2 stages gradients in a tensor of the largest parameter's size.
    """
    plan, zero = folder.plan, folder.par.zero
    compute, grad = unit(plan.formats.compute), unit(plan.formats.grad)
    bucket = Lin.of("communication_buffers", "1/1", reduce_bucket(folder) * grad)
    flat = grad + 4.0 if plan.formats.master is not None else grad
    offloaded = "optimizer" in folder.recipe.offload

    if zero < 3:
        update = trained_bytes(folder, flat, "optimizer_workspace", sharded=True)
        staged = max(_trained_tensors(folder), default=0.0) if offloaded else 0.0
        resident = Lin.of("communication_buffers", "1/1", staged * compute)
        return Buffers(resident, nothing, lambda _: bucket * 2.0, Lin(), step if offloaded else step + update)
    live = min(total_elements(folder), float(folder.recipe.live_parameters or MAX_LIVE))

    def working(block: Block) -> Lin:
        if folder.par.dp == 1:
            return Lin()
        sizes = [float(w.elements) for w in block.weights()] or [0.0]
        own, at_once = sum(sizes), max(live, *sizes)
        more = Lin.of("gathered_weights", "1/1", max(0.0, live - own) * compute)
        return gathered(folder, block, compute) * min(1.0, at_once / max(own, 1.0)) + more

    def backward(block: Block) -> Lin:
        grads = Lin()
        for key, count in plan.elements(block)[0].items():
            grads.add(Lin.of("communication_buffers", LOCAL[key], count * grad))
        return working(block) + (fused_update(folder, block) if plan.optimizer.in_backward else bucket + grads)

    group = Lin.of("optimizer_workspace", "1/1", largest_sub_group(folder) * flat)
    if offloaded or plan.optimizer.in_backward:
        group = Lin()
    head = working(folder.arch.head) + fused_update(folder, folder.arch.head)
    return Buffers(bucket, working, backward, head, step + group)


def total_elements(folder: StageFolder) -> float:
    """Parameters of the stage."""
    return float(sum(n * block.parameters for block, n in folder.blocks()))
