"""The levels of every pipeline rank, and the rank that needs most."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.arch.architecture import Architecture
from foretell.cost.levels import levels as levels_of
from foretell.cost.overheads import Overheads, overheads
from foretell.cost.training_memory import StageMemory, training_memory
from foretell.machine.hardware import HardwareNode
from foretell.recipe.resolve import Run

__all__ = ["Levels", "StageLevels", "levels"]


@dataclass(frozen=True, slots=True)
class StageLevels:
    """The levels of one pipeline rank, bytes."""

    memory: StageMemory
    allocated: float
    reserved: float
    total: float
    """Of the process: reserved, context, communicators."""
    workspace: float
    """Library workspaces inside the allocated bytes, which the fold's terms do not hold."""


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of every rank; `peak` is the rank that needs most."""

    stages: tuple[StageLevels, ...]
    peak: StageLevels
    above: Overheads
    replayed: bool = False
    """Reserved memory came from a replay of the allocations."""

    def above_terms(self) -> dict[str, float]:
        """Return the terms of the peak that the fold does not hold; those that are zero are left out."""
        terms = {
            "library_workspaces": self.peak.workspace,
            "allocator_slack": self.peak.reserved - self.peak.allocated,
            "cuda_context": self.above.context,
            "nccl": self.above.nccl,
        }
        return {name: size for name, size in terms.items() if size}


def levels(arch: Architecture, run: Run, hardware: HardwareNode, *, replay: bool = False, slack_scale: float = 1.0) -> Levels:
    """Return the levels of a run on a device (`replay`, `slack_scale`: see `cost.levels`)."""
    made = []
    memories = training_memory(arch, run)
    replay = replay and run.profile.replays and hardware.cuda_like and all(m.pooled is None for m in memories)
    for memory in memories:
        found = levels_of(arch, run, memory, hardware, replay=replay, slack_scale=slack_scale)
        made.append(StageLevels(memory, found.allocated, found.reserved, found.process, found.workspace))
    return Levels(tuple(made), max(made, key=lambda s: s.total), overheads(run, hardware), replay)
