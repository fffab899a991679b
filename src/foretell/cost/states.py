"""States: parameters, gradients, master weights and optimizer states of a pipeline stage, sharded as the run does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from foretell.arch.architecture import Block
from foretell.arch.operators import Operator
from foretell.cost.linear import Lin
from foretell.cost.weights import LOCAL, SHARDED, WeightPlan, unit
from foretell.recipe.optimizers import Optimizer

SHARDS_OF = {
    0: frozenset[str](),
    1: frozenset({"optimizer_state", "master_weights"}),
    2: frozenset({"optimizer_state", "master_weights", "gradients"}),
    3: frozenset({"optimizer_state", "master_weights", "gradients", "weights", "adapters"}),
}
"""What each ZeRO stage divides over data parallelism (Rajbhandari et al., arXiv 1910.02054, section 5)."""

_TO_SHARDED = {LOCAL[k]: SHARDED[k] for k in LOCAL}


@dataclass(frozen=True, slots=True)
class StateTerms:
    """Bytes of the states of a set of blocks, each a linear form in the sharding monomials."""

    weights: Lin
    gradients: Lin
    master: Lin
    optimizer: Lin
    trained: Mapping[str, float]
    """Trained elements by shard."""

    def resident(self) -> Lin:
        """What stays between steps, gradients left out."""
        return self.weights + self.master + self.optimizer


def shard(form: Lin, zero: int) -> Lin:
    """``form`` with every category that ZeRO stage ``zero`` divides moved to the sharded monomials."""
    divided = SHARDS_OF[zero]
    out = Lin()
    for (category, monomial), value in form.items():
        out.add({(category, _TO_SHARDED.get(monomial, monomial) if category in divided else monomial): value})
    return out


def states(blocks: Iterable[tuple[Block, float]], plan: WeightPlan, zero: int) -> StateTerms:
    """States of ``blocks`` (each with how often it stands on this rank) under ZeRO stage ``zero``."""
    formats, opt = plan.formats, plan.optimizer
    weights, gradients, optimizer = Lin(), Lin(), Lin()
    trained: dict[str, float] = {}
    blocks = list(blocks)
    one = -1
    if opt.one_block:
        one = max(range(len(blocks)), key=lambda i: sum(plan.elements(blocks[i][0])[0].values()))
    for i, (block, n) in enumerate(blocks):
        elements, _, stored = plan.elements(block)
        weights.add(stored, n)
        trains = float(i == one) if opt.one_block else n
        for key, count in elements.items():
            trained[key] = trained.get(key, 0.0) + trains * count
        if not opt.one_block and plan.recipe.adapter is None:
            gradients.add(_wide_gradients(block, plan), trains)
        optimizer.add(_optimizer_states(block, plan, opt), trains)
    master = Lin()
    keeps_master = formats.master is not None and formats.master != formats.param and opt.master
    adapter = plan.recipe.adapter
    for key, count in trained.items():
        wide = unit(adapter.dtype) if adapter is not None else 4.0 if opt.one_block else unit(formats.grad)
        gradients.add(Lin.of("gradients", LOCAL[key], count * wide))
        if (keeps_master or opt.one_block) and adapter is None:
            master.add(Lin.of("master_weights", LOCAL[key], count * (unit(formats.master) or 4.0)))
    offload = plan.recipe.offload
    if "optimizer" in offload:
        master, optimizer = Lin(), Lin()
    if "grads" in offload or in_backward(plan):
        gradients = Lin()
    if "params" in offload:
        weights = Lin({k: v for k, v in weights.items() if k[0] == "quantization_scales"})
    return StateTerms(shard(weights, zero), shard(gradients, zero), shard(master, zero), shard(optimizer, zero), trained)


def in_backward(plan: WeightPlan) -> bool:
    """Each parameter is updated as soon as its gradient is there, which is then freed."""
    return plan.optimizer.in_backward or plan.recipe.optimizer_in_backward


def _wide_gradients(block: Block, plan: WeightPlan) -> Lin:
    """What gradients of weights that are kept in fp32 have beyond those of the others."""
    size, out = unit(plan.formats.grad), Lin()
    for op in block.ops:
        for w in op.weights() if plan.trains(op) else ():
            out.add(Lin.of("gradients", LOCAL[w.shard], w.elements * (plan.at_least_wide(w, size) - size)))
    return out


def _optimizer_states(block: Block, plan: WeightPlan, opt: Optimizer) -> Lin:
    """Optimizer states of one block, tensor by tensor (factored and projected states depend on the shapes)."""
    out = Lin()
    if opt.paged:
        return out
    adapter = plan.recipe.adapter
    wide = unit(adapter.dtype) if adapter is not None else unit(plan.formats.optim)
    fraction = plan.recipe.trainable_fraction
    for op in block.ops:
        for shape, shard_key, role, each in _trained_shapes(op, plan, wide):
            elements = 1.0
            for d in shape:
                elements *= d
            size = _state_bytes(opt, shape, elements, role, each)
            out.add(Lin.of("optimizer_state", LOCAL[shard_key], size * fraction))
    return out


def _trained_shapes(op: Operator, plan: WeightPlan, wide: float) -> Iterable[tuple[tuple[int, ...], str, str, float]]:
    """Yield shape, shard, role and bytes per element of a state (``wide`` of most) of each tensor that trains."""
    if plan.trains(op):
        for w in op.weights():
            yield w.shape, w.shard, w.role, plan.at_least_wide(w, wide)
    extra = plan.scaled(op) or plan.rescaled(op)
    if extra:
        yield (int(extra),), next(iter(plan.added(op))), "vector", wide
    pair = plan.adapter(op) if plan.targeted(op) else None  # type: ignore[arg-type]
    if pair is not None:
        for key, count in pair.elements.items():
            yield (pair.rank, count // pair.rank), key, "matrix", wide


def _state_bytes(opt: Optimizer, shape: tuple[int, ...], elements: float, role: str, wide: float) -> float:
    """Bytes of the states of one tensor."""
    rows, columns = (shape[-2], shape[-1]) if len(shape) >= 2 else (0, 0)
    batch = elements / (rows * columns) if rows else 1.0
    if opt.matrix_only and role in ("vector", "embedding", "head"):
        return elements * 2 * wide  # AdamW for what is not a matrix
    per = opt.bits / 8 + 4.0 / opt.block if opt.bits and elements >= opt.min_elements else wide
    if opt.factored:
        return batch * (rows + columns) * 4.0 if rows else elements * 4.0
    if opt.name.startswith("galore"):
        small, large = sorted((rows, columns))
        r = min(opt.rank, small)
        return batch * (r * large * opt.states * per + r * small * wide)
    if opt.name in ("shampoo", "soap"):
        factors = 2 if opt.name == "shampoo" else 4
        return elements * opt.states * wide + batch * factors / 2 * (rows**2 + columns**2) * wide
    return elements * opt.states * per
