"""From a total to a verdict: which measured errors stand for a run, its interval, and whether it fits."""

from __future__ import annotations

from typing import Any

from foretell.arch.workload import Workload
from foretell.cost.overheads import Regime, interval, regime
from foretell.machine.hardware import HardwareNode
from foretell.recipe.resolve import Run

__all__ = ["fits_and_fails", "regime_of", "verdict_of"]


def regime_of(model: Workload, run: Run, device: HardwareNode, *, replayed: bool = False) -> Regime:
    """Return the errors of runs like this one; a model that was read with notes counts as one thing assumed.

    `replayed`: reserved memory came from a replay of the allocations, where the profile has one.
    """
    linear = run.profile.replays and not replayed
    return regime(run.profile.name, "process", 2 if model.notes else 3, cuda_like=device.cuda_like, linear=linear)


def fits_and_fails(total: Any, spread: Regime, available: float, headroom: float) -> tuple[Any, Any]:
    """Whether a total (bytes, or an array) surely fits and surely does not; neither: uncertain.

    It fits when the total leaves the share `headroom` free and the interval's upper end is within what is available.
    """
    low, high = interval(total, spread)
    return (total + headroom * available <= available) & (high <= available), low > available


def verdict_of(fits: bool, fails: bool) -> str:
    """Return the verdict of one run.

    >>> verdict_of(True, False), verdict_of(False, True), verdict_of(False, False)
    ('fits', 'does_not_fit', 'uncertain')
    """
    return "fits" if fits else "does_not_fit" if fails else "uncertain"
