"""DeepSpeed ZeRO's buffers (deepspeed/runtime/zero/stage3.py, stage_1_and_2.py, partitioned_param_coordinator.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, SHARDED, unit

if TYPE_CHECKING:
    from foretell.cost.memory import StageFolder
    from foretell.cost.sharding import Buffers

SUB_GROUP = 1_000_000_000
"""``sub_group_size``: a group of parameters closes once a rank's part of it has this many elements."""
MAX_LIVE = 1_000_000_000
"""``stage3_max_live_parameters``, ``stage3_max_reuse_distance``: elements of whole parameters kept at once."""


def reduce_bucket(folder: StageFolder) -> float:
    """Elements of one reduction bucket; without a number, what transformers fills in for ``auto``: hidden squared
    (transformers ``integrations/deepspeed.py`` ``trainer_config_finalize``; DeepSpeed's own default is 5e8)."""
    given = folder.recipe.reduce_bucket
    return float(given if given is not None else folder.arch.hidden**2)


def largest_sub_group(folder: StageFolder) -> float:
    """Elements of the largest optimizer sub-group on a rank, parameters taken in module order."""
    dp, largest, current = float(folder.par.dp), 0.0, 0.0
    for count in _trained_tensors(folder):
        current += count / dp
        if current >= SUB_GROUP:
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

    * Two reduction buckets with overlapped communication (stage 3's default), one without.
    * Stage 3 keeps whole parameters until ``MAX_LIVE`` elements are live, and small ones for ever (not counted).
    * The step turns the gradients of one sub-group (stage 3) or of the whole partition (1, 2) into a flat copy and
      into fp32: 6 bytes an element with 2-byte gradients.  The fp32 ones go with the sub-group.
    """
    from foretell.cost.sharding import Buffers, gathered

    plan, zero = folder.plan, folder.par.zero
    compute, grad = unit(plan.formats.compute), unit(plan.formats.grad)
    bucket = Lin.of("communication_buffers", "1/1", reduce_bucket(folder) * grad)
    flat = grad + 4.0 if plan.formats.master is not None else grad
    offloaded = "optimizer" in folder.recipe.offload

    def nothing(_: Block) -> Lin:
        return Lin()

    if zero < 3:
        update = Lin()
        for block, n in folder.blocks():
            for key, count in plan.elements(block)[0].items():
                update.add(Lin.of("optimizer_workspace", SHARDED[key], n * count * flat))
        return Buffers(Lin(), nothing, lambda _: bucket, Lin(), step if offloaded else step + update)
    whole = total_elements(folder)
    live = min(whole, float(MAX_LIVE))

    def working(block: Block) -> Lin:
        own = gathered(folder, block, compute)
        rest = live - sum(w.elements for w in block.weights())
        return own + Lin.of("gathered_weights", "1/1", max(0.0, rest) * compute)

    def backward(block: Block) -> Lin:
        grads = Lin()
        for key, count in plan.elements(block)[0].items():
            grads.add(Lin.of("communication_buffers", LOCAL[key], count * grad))
        return working(block) + grads

    group = Lin.of("optimizer_workspace", "1/1", largest_sub_group(folder) * flat)
    head = working(folder.arch.head)
    return Buffers(bucket * 2.0, working, backward, head, step if offloaded else step + group)


def total_elements(folder: StageFolder) -> float:
    """Parameters of the stage."""
    return float(sum(n * block.parameters for block, n in folder.blocks()))
