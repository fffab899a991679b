"""The levels of one rank's memory, always told apart: allocated, reserved, process."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.arch.architecture import Architecture
from foretell.cost.overheads import Overheads, overheads
from foretell.cost.reserved import reserved as reserved_by_replay
from foretell.cost.training_memory import StageMemory
from foretell.cost.workspace import library_workspace
from foretell.machine.hardware import HardwareNode
from foretell.recipe.resolve import Run


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes of one rank at its peak."""

    allocated: float
    """``torch.cuda.max_memory_allocated``: live tensors, and library workspaces inside the allocator."""
    reserved: float
    """``max_memory_reserved``: what the caching allocator holds."""
    process: float
    """What nvidia-smi shows for the process: reserved, CUDA context, communicators."""
    static: float
    """Allocated between steps."""
    parts: float
    """Allocated without workspaces: the sum of the parts that authors list."""
    workspace: float
    slack: float
    outside: float


def levels(
    arch: Architecture,
    run: Run,
    stage: StageMemory,
    hardware: HardwareNode | None,
    *,
    replay: bool = False,
    slack_scale: float = 1.0,
) -> Levels:
    """Levels above the folded peak of a pipeline rank (``hardware=None``: no device known, workspace of old GPUs).

    ``replay``: reserved memory by replaying the rank's allocations (tens of milliseconds) where the profile can;
    else from the slack fraction, times ``slack_scale`` (what a replay of a similar run said of it).
    """
    capability = hardware.compute_capability if hardware is not None else None
    workspace = library_workspace(arch, run, capability)
    over = overheads(run, hardware) if hardware is not None else Overheads(0.1, 0, 0, 0, cuda_like=True)
    if not over.cuda_like:
        workspace = 0.0
    allocated = stage.peak.bytes + workspace
    if stage.pooled is not None and over.cuda_like:
        reserved = stage.pooled + workspace + over.pooled_fraction * max(0.0, stage.pooled - stage.states)
    elif replay and run.profile.replays and over.cuda_like:
        seen = reserved_by_replay(arch, run, stage.stage, workspace=workspace / 2)
        reserved = allocated + max(0.0, seen.reserved - seen.allocated)
    else:
        reserved = allocated + slack_scale * (over.slack_fraction * max(0.0, stage.peak.bytes - stage.states) + over.slack_floor)
    outside = over.outside
    return Levels(
        allocated,
        reserved,
        reserved + outside,
        stage.states + workspace,
        stage.peak.bytes,
        workspace,
        reserved - allocated,
        outside,
    )
