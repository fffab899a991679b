"""Which recomputation a run had that does not say."""

from __future__ import annotations

import functools
from typing import Final

from foretell.arch.architecture import Architecture
from foretell.core._validate import checked_run
from foretell.core.levels import levels
from foretell.cost.overheads import available_bytes
from foretell.errors import ForetellError
from foretell.machine.hardware import HardwareNode
from foretell.recipe.parallelism import Parallelism
from foretell.recipe.training import Recompute, TrainingRecipe

__all__ = ["unstated_recompute"]

_SELECTIVE: Final = "2022-05"
"""Since when Megatron-LM can compute less than whole layers again (arXiv 2205.05198); before, large runs computed all."""
_BEYOND: Final = 2.5
"""Memory over the device's from which a run must have computed its layers again.

Runs that state that they recompute nothing are forecast at up to 2.5 times: what they offload is not stated either.
"""


def unstated_recompute(
    arch: Architecture, hardware: HardwareNode, recipe: TrainingRecipe, par: Parallelism, convention: str | None
) -> tuple[Recompute, str]:
    """Return how a run computes activations again, and what is said of it.

    ``convention``: how the source counts FLOP; one that counts recomputed ones recomputes everything.
    """
    full = Recompute("full")
    if convention == "hardware-with-recompute":
        return full, "recompute not stated: full, since the source's FLOP count it"
    if not hardware.cuda_like:
        return full, "recompute not stated: full, the default of JAX trainers for such models"
    if recipe.framework == "megatron-deepspeed" or (recipe.framework == "megatron-core" and "" < recipe.date < _SELECTIVE):
        return full, "recompute not stated: full, as large runs of this software had it"
    if _need(arch, hardware, recipe, par) > _BEYOND:
        return full, "recompute not stated: full, since nothing else can fit"
    return Recompute(), "recompute not stated: none"


@functools.lru_cache(maxsize=256)
def _need(arch: Architecture, hardware: HardwareNode, recipe: TrainingRecipe, par: Parallelism) -> float:
    """Memory of a run that recomputes nothing over its device's."""
    try:
        run, _ = checked_run(arch, recipe, par)
        return levels(arch, run, hardware).peak.total / available_bytes(hardware)
    except ForetellError:
        return 0.0  # what is wrong with the run is said where it is priced
