"""Seconds, arithmetic and traffic of each operator of a run's main layer: its roofline (Williams et al. 2009, CACM 52(4)).

The rows are the kernels that the pass is made of, with the software's corrections, so that their seconds sum to the layer's
share of the step's ledger: nothing is priced a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foretell.arch.architecture import Architecture
from foretell.cost.pass_time import Pass, Pricer
from foretell.cost.software import Software
from foretell.cost.stage_time import recomputed, stage_works
from foretell.cost.step_time import device_parts
from foretell.cost.training_time import Priced
from foretell.cost.works import BlockWorks, Product
from foretell.recipe.resolve import Run

__all__ = ["OperatorTime", "Operators", "operator_times"]


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator of one layer and micro-batch on one rank, forward and backward together unless a name says otherwise."""

    name: str
    forward_s: float
    backward_s: float
    """Gradients of inputs and weights, and what is computed again before them."""
    flops: float
    """FLOP that run, recomputation included."""
    moved_bytes: float
    """Bytes read and written, each operand once."""
    ridge: float
    """FLOP per byte above which arithmetic is the limit, in the operator's format."""
    launch_s: float
    """Host seconds of launching its kernels."""
    floor_s: float
    """Device seconds that its kernels take however small they are."""
    again: bool
    """It runs once more before its backward pass."""

    @property
    def total_s(self) -> float:
        """Device seconds of a layer's operator, both passes."""
        return self.forward_s + self.backward_s

    @property
    def intensity(self) -> float | None:
        """FLOP per byte; None where nothing is moved."""
        return self.flops / self.moved_bytes if self.moved_bytes else None

    @property
    def bound(self) -> str:
        """compute, memory, or launch: the kernels are too short, for the host or for the device, to be either."""
        if self.launch_s > self.total_s or self.floor_s > 0.5 * self.total_s:
            return "launch"
        return "compute" if (self.intensity or 0.0) >= self.ridge else "memory"


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of the layer that takes most of a micro-batch."""

    layers: int
    """Such layers in the whole model."""
    recompute: str
    """How it is checkpointed: none, selective, full."""
    rows: tuple[OperatorTime, ...]
    ridge: float
    """FLOP per byte of the device in the run's format, of its datasheet."""


def operator_times(arch: Architecture, run: Run, priced: Priced) -> Operators | None:
    """Return the operators of the main layer, in the order that they run; None where kernels were not priced by their shape."""
    pricer = priced.pricer
    if pricer is None or priced.flat:
        return None
    counts: dict[tuple[int, str], tuple[int, BlockWorks]] = {}
    for stage in stage_works(arch, run):
        for chunk in stage.chunks:
            for count, mode, works in chunk:
                if mode in ("embed", "head", "mtp"):
                    continue
                key = (id(works), mode)
                counts[key] = (counts.get(key, (0, works))[0] + count, works)
    soft = priced.software(run)
    best: tuple[float, Operators] | None = None
    for (_, mode), (count, works) in counts.items():
        rows = _rows(works, recomputed(run, mode), pricer, soft)
        spent = count * sum(row.total_s for row in rows)
        if best is None or spent > best[0]:
            best = spent, Operators(count, mode, rows, _ridge(pricer, low=bool(pricer.low)))
    return None if best is None else best[1]


def _rows(works: BlockWorks, again: Callable[[str], bool], pricer: Pricer, soft: Software) -> tuple[OperatorTime, ...]:
    """Return what runs of a block, views left out; kernels of one name (sums of gradients) are one row."""
    found: dict[tuple[str, bool, bool], tuple[Pass, Pass]] = {}
    for node, work in zip(works.nodes, works.kernels, strict=True):
        forward, back, weights = pricer.kernel(work)
        repeated = again(node)
        behind = back + weights + (forward if repeated else Pass())
        low = bool(pricer.low) and isinstance(work, Product) and work.low
        one, two = found.get((work.name, low, repeated), (Pass(), Pass()))
        found[work.name, low, repeated] = one + forward, two + behind
    return tuple(
        OperatorTime(
            name=name,
            forward_s=float(device_parts(forward, soft).total),
            backward_s=float(device_parts(behind, soft).total),
            flops=float(forward.flops + behind.flops),
            moved_bytes=float(forward.moved + behind.moved),
            ridge=_ridge(pricer, low=low),
            launch_s=float((forward.launches + behind.launches) * soft.launch),
            floor_s=float((forward.launches + behind.launches) * pricer.efficiency.floor),
            again=repeated,
        )
        for (name, low, repeated), (forward, behind) in found.items()
        if forward.launches + behind.launches
    )


def _ridge(pricer: Pricer, *, low: bool) -> float:
    """Peak over memory bandwidth."""
    return float((pricer.device.low_peak if low else pricer.device.peak) / pricer.device.bandwidth)
