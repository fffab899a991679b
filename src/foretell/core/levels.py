"""From allocated memory to what a process takes: the levels of every pipeline rank, and the worst one."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.arch.architecture import Architecture
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


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of every rank; `peak` is the rank that needs most."""

    stages: tuple[StageLevels, ...]
    peak: StageLevels
    above: Overheads


def levels(arch: Architecture, run: Run, hardware: HardwareNode) -> Levels:
    """Return the levels of a run on a device."""
    above = overheads(run, hardware)
    made = []
    for memory in training_memory(arch, run):
        allocated = memory.peak.bytes
        pooled = memory.pooled is not None
        base = memory.pooled if memory.pooled is not None else allocated
        reserved = max(allocated, above.reserved(base, memory.states, pooled=pooled))
        if not above.cuda_like:
            reserved = allocated
        made.append(StageLevels(memory, allocated, reserved, reserved + above.outside))
    return Levels(tuple(made), max(made, key=lambda s: s.total), above)
