"""From a reading of somebody's files and the answer to it to the `result` of `check`: plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from foretell.readers import Edit, Origin, Reading, Unmodelled

__all__ = ["edit_of", "judged", "speed_of", "understood", "unmodelled"]

_ON_MEMORY: Final = {
    "fits": ("memory", "both", "unknown", "more-memory", "more"),
    "does_not_fit": ("memory", "both", "unknown", "less-memory", "less"),
}
"""Verdict -> effects of what is not modelled that can overturn it."""
_DOUBT: Final = ("key", "said", "effect", "why", "share")
_ON_SPEED: Final = ("speed", "both", "more", "less", "unknown")
_ELSEWHERE: Final = (
    "model", "parameters", "layers", "gpu", "memory", "suggestions", "run", "assumed", "operators", "tokens", "steps", "hours",
    "days", "days_interval", "gpu_hours", "gpu_hours_interval", "measured_step_s", "anchor", "runs",
)  # fmt: skip
"""Keys of `train`'s result that stand elsewhere, or that no file asks for."""


def judged(
    verdict: str, doubts: Sequence[Unmodelled], interval: tuple[float, float] | None = None, available: float = 0.0
) -> tuple[str, list[str], list[str]]:
    """Return a verdict with what is not modelled taken into account, the reasons that make it uncertain, and those of memory.

    What can only add memory leaves "does_not_fit", what can only save memory leaves "fits"; so does what changes less than
    what is missing or left (``interval``: bytes of the run).  An option of the files that changes the speed makes the answer to
    a run that fits uncertain as well; what the framework does by itself is listed.
    """
    over = [doubt for doubt in doubts if doubt.effect in _ON_MEMORY.get(verdict, ())]
    if interval is not None and over and all(doubt.share is not None for doubt in over):
        moved = sum(doubt.share or 0.0 for doubt in over)
        if (verdict == "fits" and interval[1] * (1 + moved) <= available) or (
            verdict == "does_not_fit" and interval[0] * (1 - moved) > available
        ):
            over = []
    also = [doubt for doubt in doubts if verdict == "fits" and doubt.effect in _ON_SPEED and doubt.origin.path]
    return ("uncertain" if over or also else verdict), _reasons([*over, *(d for d in also if d not in over)]), _reasons(over)


def _reasons(doubts: Sequence[Unmodelled]) -> list[str]:
    return list(dict.fromkeys(f"{doubt.key}: {doubt.why}" for doubt in doubts))


def understood(reading: Reading, extra: Mapping[str, Any], model: str, gone: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return every value that was read or taken, with where it stood; not what ``gone`` names, which no longer holds."""
    rows = [_row("model", model, reading.model_origin, "")] if reading.model is not None and "model" not in extra else []
    rows += [_row(s.name, s.option, s.origin, s.said) for s in reading.settings.values() if s.name not in (*extra, *gone)]
    return rows + [_row(name, value, None, "given with the question") for name, value in extra.items()]


def _row(name: str, value: Any, origin: Origin | None, said: str) -> dict[str, Any]:  # whatever an option holds
    return {"name": name, "value": value, "said": said, **_place(origin)}


def _place(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {"path": None, "line": None, "key": None, "why": None}
    return {"path": origin.path or None, "line": origin.line or None, "key": origin.key or None, "why": origin.why or None}


def unmodelled(rows: Iterable[Unmodelled]) -> list[dict[str, Any]]:
    """Return what was seen and is not modelled."""
    return [_place(row.origin) | {name: getattr(row, name) for name in _DOUBT} for row in rows]


def edit_of(edit: Edit) -> dict[str, Any]:
    """Return an edit as plain data."""
    return {"path": edit.path, "line": edit.line, "old": list(edit.old), "new": list(edit.new)}


def speed_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `train`'s result that `check` shows."""
    return {key: value for key, value in result.items() if key not in _ELSEWHERE}
