"""What must be known of a trace: what was assumed, what it cannot see, how its layers were had."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretell.cost.allocator import AllocatorSettings
from foretell.machine.hardware import HardwareNode
from foretell.trace.events import Recording
from foretell.units import GIB

__all__ = ["remarks"]

_SCALARS = "value of "


def remarks(recording: Recording, settings: AllocatorSettings, gpu: HardwareNode, convolutions: int = 0) -> list[str]:
    """Return the notes of an answer, the weightiest first; ``convolutions``: bytes that their workspaces may add to the peak."""
    about = recording.about
    return [
        *(str(note) for note in about.get("notes", [])),
        *_elsewhere(about, gpu),
        *_answers(about.get("policies", {})),
        *_unseen(about, convolutions),
        *_alone(recording),
        *_attention(about, gpu),
        *([f"repetition: {about['repetition']}"] if about.get("repetition") else []),
        *(f"allocator: {name} has no effect here" for name in (*settings.unmodelled, *settings.without_effect)),
    ]


def _answers(given: Mapping[str, Any]) -> list[str]:
    """Say what values the code asked for: a fake tensor has none, so the answer of an ordinary step was given."""
    scalars = sum(n for what, n in given.items() if str(what).startswith(_SCALARS))
    rest = [f"{what} ({n} times)" for what, n in given.items() if not str(what).startswith(_SCALARS)]
    if scalars:
        rest.append(
            f"the code asked {scalars} times for a tensor's value: it was given that of an ordinary step (finite, step 1)"
        )
    return rest


def _unseen(about: Mapping[str, Any], more: int) -> list[str]:
    unknown = about.get("unknown_workspaces", {})
    if not unknown:
        return []
    names = ", ".join(sorted(unknown))
    if not about.get("convolutions"):  # recorded before they were looked at, or a recurrent layer's
        return [f"workspaces of cuDNN are not known without it: {names} may take more, up to some GiB"]
    how = "patches of the whole batch, or Winograd's transforms; Fourier transforms would take more"
    note = f"workspaces of cuDNN are not known without it: {names} may add up to {more / GIB:.2f} GiB to the peak, which the "
    return [f"{note}intervals include ({how})"]


def _elsewhere(about: Mapping[str, Any], gpu: HardwareNode) -> list[str]:
    """Say that a recording was made for another GPU."""
    name = about.get("gpu")
    if not name or name == gpu.name:
        return []
    return [f"recorded for {name}: kernels and workspaces are that one's, memory and context those of {gpu.name}"]


def _alone(recording: Recording) -> list[str]:
    if recording.about.get("world", 1) == 1 or any(s.category == "collective" for s in recording.storages):
        return []
    return ["nothing of the model was sharded or gathered: only what the code itself does with its ranks is traced"]


def _attention(about: Mapping[str, Any], gpu: HardwareNode) -> list[str]:
    used = about.get("attention", {})
    return [f"attention kernels as torch chooses them on {gpu.name}: {', '.join(used)}"] if used else []
