"""A picture of a traced run: memory by category over the run's allocation events, its phases, its peak.

Sizes are GiB (2^30 bytes).  Needs matplotlib (the extra ``plot``), which is imported only here and only when it draws.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from foretell.errors import ExtraError, InputError
from foretell.report._trace_style import Scene
from foretell.trace.events import Recording
from foretell.trace.levels import category_levels, owners, phase_at, stretches, thin
from foretell.trace.replay import Replay

__all__ = ["SUFFIXES", "draw"]

SUFFIXES: Final = (".png", ".svg")
_POINTS: Final = 6000
"""Events drawn at most: about four for each pixel of the picture's width."""


def draw(
    recording: Recording,
    replay: Replay,
    path: str | os.PathLike[str],
    *,
    capacity: float | None = None,
    title: str | None = None,
) -> None:
    """Draw a replayed recording into ``path``, a ``.png`` or ``.svg``.

    ``capacity``: bytes of the device, a dashed line; by default what the replay was given.  ``title``: what was run, above
    the picture; by default what the recording says about itself.

    Raises:
        InputError: another suffix, a file that cannot be written, a recording that allocates nothing, or a capacity that is none.
        ExtraError: matplotlib is not installed.

    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError("must end in one of these", field="path", value=str(path), allowed=SUFFIXES)
    peak = replay.peak_allocated.event
    if peak is None or not replay.peak_reserved.bytes:
        raise InputError("allocates nothing that could be drawn", field="recording")
    if capacity is not None and not (capacity >= 1 and math.isfinite(capacity)):
        raise InputError("must be at least 1 byte", field="capacity", value=capacity)
    try:
        from foretell.report import _trace_figure as figure  # noqa: PLC0415  # 0.4 s, and an extra
    except ImportError as error:
        raise ExtraError.missing("plot", "a picture of a trace") from error
    at = thin([replay.allocated, replay.reserved], _POINTS)
    scene = Scene(
        title=_about(recording, len(replay.allocated)) if title is None else title,
        events=len(replay.allocated),
        at=at,
        levels=category_levels(recording, replay.block, at),
        reserved=replay.reserved[at],
        phases=tuple(stretches(recording, len(replay.allocated))),
        peak=peak,
        peak_phase=phase_at(recording, peak),
        peak_allocated=replay.peak_allocated.bytes,
        peak_reserved=replay.peak_reserved.bytes,
        owner=next(iter(owners(recording, replay.block, peak)), None),
        capacity=replay.capacity if capacity is None else capacity,
        tried=None if replay.oom is None else replay.oom.tried,
    )
    made = figure.TraceFigure(scene)
    try:
        made.save(target)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", field="path", value=str(path)) from error


def _about(recording: Recording, events: int) -> str:
    """Say what was traced, as far as the recording knows."""
    about = recording.about
    parts = [str(about[key]) for key in ("title", "model", "source") if about.get(key)][:1]
    parts += [f"{name} {about[key]}" for key, name in (("torch", "torch"), ("device", "device")) if about.get(key)]
    return " \N{MIDDLE DOT} ".join([*parts, f"{events:,} allocation event{'' if events == 1 else 's'}"])
