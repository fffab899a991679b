"""A step's arithmetic by its named conventions, and steps whose kernels run at one stated share of the peak."""

from __future__ import annotations

from dataclasses import dataclass, replace

from foretell.cost.arrays import Value, maximum
from foretell.cost.pass_time import Pass, Passes
from foretell.cost.roofline import Roofs
from foretell.cost.software import Software
from foretell.cost.stage_time import StageCost
from foretell.cost.step_time import StepTime
from foretell.cost.training_time import Priced
from foretell.recipe.resolve import Run

__all__ = ["StepFlops", "flat", "overlapping", "step_flops", "step_roofs"]


@dataclass(frozen=True, slots=True)
class StepFlops:
    """FLOP of one step of the whole job."""

    model: Value
    """Forward once and backward twice, causal attention counted once: ``6N + 6Lds`` a token (arXiv 2204.02311, appendix B)."""
    executed: Value
    """All that runs, recomputation included."""
    full: Value
    """The model's with masked pairs counted too (``6N + 12Lds``)."""
    moved: Value
    """Bytes of device memory that kernels read and write, on one device in the mean."""


def step_flops(priced: Priced, run: Run) -> StepFlops:
    """Return the arithmetic of a step; each pipeline rank's passes are one replica's share of ``tp x cp`` ranks."""
    ranks = run.par.world / run.par.pp * run.recipe.grad_accum
    model: Value = 0.0
    executed: Value = 0.0
    masked: Value = 0.0
    moved: Value = 0.0
    for cost in priced.costs:
        for chunk in cost.chunks:
            forward = chunk.forward.flops
            back = chunk.backward.flops + chunk.weights.flops
            executed = executed + forward + chunk.again.flops + back
            # attention's backward pass computes its scores again, which no convention counts
            model = model + forward + back - 0.5 * chunk.forward.core_flops - 3.0 * chunk.forward.unseen_flops
            masked = masked + chunk.forward.masked_flops
            moved = moved + chunk.forward.moved + chunk.again.moved + chunk.backward.moved + chunk.weights.moved
    here = run.recipe.grad_accum / run.par.pp
    return StepFlops(ranks * model, ranks * executed, ranks * (model + 3.0 * masked), here * moved)


def step_roofs(priced: Priced, run: Run, time: StepTime, share: float | None) -> Roofs:
    """Return what one device does in a step between its exchanges, the optimizer's step included.

    ``share``: of the peak, with all of the bandwidth; None takes those that kernels reach.
    """
    flops, world, device, e = step_flops(priced, run), run.par.world, priced.device, priced.efficiency
    own = time.slowest
    passes = run.recipe.grad_accum * (own.matmul + own.experts + own.attention + own.stream + own.host)
    return Roofs(
        flops=flops.executed / world,
        model_flops=flops.model / world,
        moved=flops.moved + time.optimizer * device.bandwidth * e.memory,
        spent=passes + time.optimizer + time.fixed,
        peak=device.low_peak,
        share=e.matmul if share is None else share,
        bandwidth=device.bandwidth,
        memory_share=e.memory if share is None else 1.0,
    )


def flat(priced: Priced, share: Value) -> Priced:
    """Replace every pass by its FLOP over a share of the peak, or its bytes over the bandwidth where they take longer.

    Each launch adds the least that a kernel takes.  FLOP are the convention's: the scores that attention's backward pass
    computes again are left out.
    """
    rate, bandwidth = priced.device.low_peak * share, priced.device.bandwidth

    def one(p: Pass, extra: Value = 0.0) -> Pass:
        flops = p.flops - extra
        spent = maximum(flops / rate, p.moved / bandwidth) + p.launches * priced.efficiency.floor
        none = dict.fromkeys(("low", "experts", "attention", "stream", "launches", "core_flops"), 0.0)
        return replace(p, matmul=spent, flops=flops, **none)

    made: dict[int, Passes] = {}

    def all_of(c: Passes) -> Passes:
        if id(c) not in made:
            made[id(c)] = replace(
                c,
                forward=one(c.forward),
                again=one(c.again),
                backward=one(c.backward, 0.5 * c.forward.core_flops),
                weights=one(c.weights),
            )
        return made[id(c)]

    costs = tuple(StageCost(tuple(all_of(c) for c in cost.chunks), cost.reduction, cost.layers) for cost in priced.costs)
    return replace(priced, costs=costs, flat=True)


def overlapping(soft: Software, hide: Value, *, flat: bool) -> Software:
    """Return software that waits for every exchange where nothing is to be hidden (``hide`` 0).

    With a ``flat`` share of the peak, compute hides the states on their way one second for a second, and nothing else.
    """
    wait = {"tp_hidden": 0.0, "cp_hidden": 0.0, "ep_hidden": 0.0, "interference": 0.0}
    if hide == 0:
        return replace(soft, **wait, dp_hidden=0.0, p2p=1.0)
    return replace(soft, **wait, dp_hidden=1.0) if flat else soft
