"""From a recording to an answer: levels with their intervals, the peak and who holds it, and whether it fits a GPU."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from itertools import pairwise
from typing import Any

from foretell.core._verdict import fits_and_fails, verdict_of
from foretell.cost.allocator import AllocatorSettings
from foretell.cost.overheads import Regime, available_bytes, communicator_bytes, context_bytes, interval, p_oom
from foretell.machine.hardware import HardwareNode
from foretell.trace.events import CATEGORIES, Recording
from foretell.trace.levels import category_levels, owners, phase_at, stretches
from foretell.trace.replay import Replay, replay, required_capacity

__all__ = ["OWNERS", "answer", "convolutions", "spread"]

OWNERS = 12
"""Owners of the peak that an answer names."""
SEARCHED = 400_000
"""Events up to which the least memory is searched for; beyond, what is reserved stands for it."""
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
COMPILED = "torch.compile"
"""How the policies' counts begin where code was compiled."""


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the calibration file of traces."""
    text = resources.files("foretell.catalog").joinpath("data/calibration/trace.json").read_text("utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def spread(level: str) -> Regime:
    """Return ln(measured / traced) of the published runs that were traced, for ``allocated``, ``reserved`` or ``process``."""
    found = calibration()["levels"][level]
    return Regime(f"trace/{level}", tuple(found["p"]), tuple(found["log_error"]), int(found["rows"]))


def answer(
    recording: Recording,
    gpu: HardwareNode,
    settings: AllocatorSettings | None = None,
    *,
    headroom: float = 0.1,
) -> tuple[dict[str, Any], Replay]:
    """Return the answer for a GPU as plain data (bytes), and the replay on it without a limit.

    ``headroom``: share of the available memory to keep free.
    """
    settings = settings or AllocatorSettings()
    total = gpu.memory_bytes
    played = replay(recording, settings, total=total)
    outside = context_bytes(gpu) + (communicator_bytes(1) if recording.about.get("world", 1) > 1 else 0.0)
    available = available_bytes(gpu)
    reserved, allocated = played.peak_reserved.bytes, played.peak_allocated.bytes
    tight = reserved + outside > (1 - headroom) * available
    search = tight and len(recording.order) <= SEARCHED
    needed = required_capacity(recording, settings, total=total) if search else reserved
    sure = spread(_compiled("process", recording))
    whole = round(reserved + outside)
    least = None if needed is None else round(needed + outside)
    more = convolutions(recording, played)
    low, high = round(interval(whole, sure)[0]), round(interval(whole + more, sure)[1])
    usual = spread(_compiled("allocated", recording))
    fits, _ = fits_and_fails(whole, sure, available, headroom)
    fails = least is None or fits_and_fails(least, sure, available, headroom)[1]  # also by giving cached memory back
    verdict = verdict_of(fits, fails)
    limited = None
    if verdict != "fits" and whole > available:
        limited = replay(recording, settings, capacity=max(0, round(available - outside)), total=total)
    oom = limited.oom if limited is not None else None
    return {
        "verdict": verdict,
        "fits": verdict == "fits",
        "p_oom": p_oom(whole, available, sure),
        "total_bytes": whole,
        "interval_bytes": [low, high],
        "least_bytes": least,
        "available_bytes": available,
        "headroom_bytes": round(headroom * available),
        "allocated_bytes": allocated,
        "allocated_interval_bytes": [round(interval(allocated, usual)[0]), round(interval(allocated + more, usual)[1])],
        "convolution_bytes": more,
        "active_bytes": played.peak_active.bytes,
        "requested_bytes": int(played.requested.max(initial=0)),
        "reserved_bytes": reserved,
        "outside_bytes": round(outside),
        "fragmentation_bytes": played.fragmentation.unused,
        "largest_free_bytes": played.fragmentation.largest_free,
        "retries": 0 if limited is None else limited.retries,
        "peak": _peak(recording, played),
        "breakdown": _breakdown(recording, played),
        "owners": _owners(recording, played),
        "phases": _phases(played),
        "timeline": _timeline(played),
        "oom": None if oom is None else {"message": oom.message(context=round(outside)), **_place(recording, oom.index)},
        "events": len(recording.order),
        "traced": {key: value for key, value in recording.about.items() if key != "notes"},
        "measured_rows": sure.rows,
    }, played


def convolutions(recording: Recording, played: Replay) -> int:
    """Return how many bytes the workspaces of convolutions may add to the peak, whichever algorithms cuDNN chooses.

    The intervals reach so much further; what fits does not depend on it, because torch tries another algorithm where a
    workspace does not fit (pytorch ``aten/src/ATen/native/cudnn/Conv_v8.cpp``).
    """
    known = recording.about.get("convolutions") or {}
    if "peak_bytes" in known:
        return max(0, int(known["peak_bytes"]) - int(played.requested.max(initial=0)))
    return int(known.get("largest_bytes", 0))


def _compiled(level: str, recording: Recording) -> str:
    return "compiled" if any(str(k).startswith(COMPILED) for k in recording.about.get("policies", {})) else level


def _place(recording: Recording, index: int) -> dict[str, Any]:
    storage = recording.storages[index]
    phase = recording.phases[storage.phase]
    return {
        "phase": phase.name,
        "step": phase.step,
        "micro_step": phase.micro,
        "operator": storage.op,
        "module": storage.module,
        "line": storage.line,
        "asked_bytes": storage.bytes,
    }


def _peak(recording: Recording, played: Replay) -> dict[str, Any] | None:
    """Return the moment of the highest allocated memory, and what was asked for then."""
    at = played.peak_allocated.event
    if at is None:
        return None
    entry = recording.order[at]
    phase = phase_at(recording, at)
    found = _place(recording, entry if entry >= 0 else ~entry)
    return {"event": at, **found, "phase": phase.name, "step": phase.step, "micro_step": phase.micro}


def _breakdown(recording: Recording, played: Replay) -> dict[str, int]:
    """Return the bytes of each category at the peak, in blocks."""
    at = played.peak_allocated.event
    if at is None:
        return {}
    levels = category_levels(recording, played.block, [at])[:, 0]  # type: ignore[arg-type]
    return {name: int(size) for name, size in zip(CATEGORIES, levels.tolist(), strict=True) if size}


def _owners(recording: Recording, played: Replay) -> list[dict[str, Any]]:
    """Return who holds most at the peak; equal layers count as one, with ``*`` for their number."""
    at = played.peak_allocated.event
    if at is None:
        return []
    sums: dict[tuple[str, str, str], list[int]] = {}
    for owner in owners(recording, played.block, at):
        where = _NUMBER.sub("*", owner.module) or owner.line or owner.op
        entry = sums.setdefault((owner.category, where, owner.line if owner.module else ""), [0, 0])
        entry[0] += owner.bytes
        entry[1] += owner.count
    ranked = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return [
        {"bytes": size, "count": count, "category": category, "place": where, "line": line}
        for (category, where, line), (size, count) in ranked[:OWNERS]
    ]


def _phases(played: Replay) -> list[dict[str, Any]]:
    return [
        {
            "phase": p.phase.name,
            "step": p.phase.step,
            "micro_step": p.phase.micro,
            "allocated_bytes": p.allocated,
            "reserved_bytes": p.reserved,
        }
        for p in played.phases
    ]


POINTS = 160
"""Stretches of the timeline that an answer holds."""


def _timeline(played: Replay) -> dict[str, Any]:
    """Return the highest allocated and reserved bytes of equal stretches of the run, and where its phases begin."""
    count = len(played.allocated)
    if not count:
        return {"allocated_bytes": [], "reserved_bytes": [], "phases": []}
    points = min(POINTS, count)
    edges = [count * i // points for i in range(points + 1)]
    pairs = list(pairwise(edges))
    return {
        "allocated_bytes": [int(played.allocated[a:b].max()) for a, b in pairs],
        "reserved_bytes": [int(played.reserved[a:b].max()) for a, b in pairs],
        "phases": [
            {
                "phase": phase.name,
                "step": phase.step,
                "micro_step": phase.micro,
                "begins": phase.start / count,
                "ends": end / count,
            }
            for phase, end in stretches(played.recording, count)
        ],
    }
