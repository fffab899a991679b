"""Buffers beside states and activations: what they are, and the pieces that every kind of data parallelism is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from foretell.arch.architecture import Block
from foretell.arch.operators import Linear
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, SHARDED, WeightPlan, unit

if TYPE_CHECKING:
    from foretell.cost.folder import StageFolder

Working = Callable[[Block], Lin]
"""Bytes that are there only while a given block runs."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of a stage's buffers, by when they are there."""

    resident: Lin
    """All along."""
    forward: Working
    backward: Working
    head: Lin
    """While the head runs, in either direction."""
    optimizer: Lin
    """During the optimizer step."""
    late: Lin = field(default_factory=Lin)
    """Whole gradients of the root unit, reduced only when the backward pass has ended."""
    pools: Lin = field(default_factory=Lin)
    """What other streams' allocator pools reserve beyond the compute stream's peak."""
    passes: Lin = field(default_factory=Lin)
    """Held from the forward to the end of the backward pass: units that are not resharded between them."""


def nothing(_: Block) -> Lin:
    """No buffer, whichever block runs."""
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


def trained_bytes(folder: StageFolder, wide: float, category: str, *, sharded: bool) -> Lin:
    """Bytes of the trained elements of the stage, ``wide`` bytes an element, whole or as this rank's part of them."""
    out, monomial = Lin(), SHARDED if sharded else LOCAL
    for block, n in folder.blocks():
        for key, count in folder.plan.elements(block)[0].items():
            out.add(Lin.of(category, monomial[key], n * count * wide))
    return out


def step_workspace(folder: StageFolder) -> Lin:
    """Transient bytes of an optimizer step: a foreach step makes one more copy of the second moment.

    With ``step_gather`` (nanotron ``optim/zero.py`` ``_all_gather_params``: ``all_gather_coalesced``) updated shards are
    flattened and gathered into whole flat buffers before they are copied back.
    """
    opt, recipe = folder.plan.optimizer, folder.recipe
    if folder.profile.step_gather and folder.par.zero == 1 and folder.par.dp > 1:
        wide = unit(folder.plan.formats.param)
        whole, part = (trained_bytes(folder, wide, "optimizer_workspace", sharded=sharded) for sharded in (False, True))
        return whole + part
    impl = recipe.optimizer_impl or folder.profile.optimizer_impl
    if impl != "foreach" or "optimizer" in recipe.offload or opt.in_backward or recipe.optimizer_in_backward:
        return Lin()
    wide = unit(recipe.adapter.dtype) if recipe.adapter is not None else unit(folder.plan.formats.optim)
    return trained_bytes(folder, wide * opt.foreach_temp, "optimizer_workspace", sharded=folder.par.zero >= 1)


def fused_update(folder: StageFolder, block: Block) -> Lin:
    """An update fused into the backward pass converts a gradient, and this rank's part of its parameter, to fp32 while the
    next gradient is made (OpenLMLab/LOMO src/lomo.py ``fuse_update``, ``fuse_update_zero3``)."""
    opt = folder.plan.optimizer
    if not opt.in_backward or opt.master:
        return Lin()
    largest = max((float(w.elements) for op in block.ops if folder.plan.trains(op) for w in op.weights()), default=0.0)
    whole = Lin.of("optimizer_workspace", "1/1", largest * 4.0)
    return whole + Lin.of("optimizer_workspace", "1/z" if folder.par.zero >= 3 else "1/1", largest * 4.0)


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
