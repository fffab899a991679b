"""Replay of memory rows: each measured value beside the level that it should be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foretell.core._validate import checked_parallelism, checked_recipe
from foretell.core._verdict import fits_and_fails, verdict_of
from foretell.cost.levels import Levels, levels
from foretell.cost.overheads import available_bytes, calibration, interval, regime
from foretell.cost.training_memory import listed_parts, training_memory, worst
from foretell.errors import ForetellError
from foretell.evidence.kinds import Kind
from foretell.evidence.memory_rows import MemoryRow, read_row
from foretell.evidence.row_run import Skip, framework_of
from foretell.evidence.row_shape import fault_of
from foretell.evidence.summary import Scored, grouped
from foretell.machine import HardwareNode, load_hardware
from foretell.units import GIB

_LEVEL = {
    "allocated": "allocated",
    "active": "allocated",
    "allocated-static": "static",
    "breakdown-sum": "parts",
    "reserved": "reserved",
    "reserved-sampled": "reserved",
    "process": "process",
    "unknown": "nearer",
}


def score(row: Mapping[str, Any], *, allocator: str = "replay") -> Scored:
    """Predict one row; a row that cannot be predicted says why (``allocator``: see ``core.forecast``)."""
    if fault := fault_of(row):
        return _unread(row, fault)
    measured = row["measured"]
    outcome = measured.get("outcome")
    common = {
        "id": row["id"],
        "source": source_of(row),
        "framework": _framework(row),
        "confidence": int(row["confidence"]),
        "metric": measured.get("metric") or "outcome",
        "measured": measured["gib"] * GIB if "gib" in measured else None,
        "outcome": outcome,
        "note": _assumed(row),
    }
    try:
        ready = _read(row)
        hardware = load_hardware(row["hardware"]["gpu"]) if row["hardware"].get("gpu") else None
        replay = allocator == "replay"
        all_levels = predict(ready, hardware, replay=replay)
    except Skip as reason:
        return Scored(**common, skipped=str(reason))
    except ForetellError as error:
        return Scored(**common, skipped=f"not-modelled: {error}")
    return _scored(common, ready, all_levels, hardware, linear=ready.run.profile.replays and not replay)


def _assumed(row: Mapping[str, Any]) -> str:
    """What the row's collector had to assume and noted, in words: the first place to look where a prediction is far off."""
    found = [
        f"{a['field']}: {a['why']}" for a in row.get("assumed") or () if isinstance(a, Mapping) and {"field", "why"} <= a.keys()
    ]
    if isinstance(row.get("notes"), str):
        found.append(f"notes: {row['notes'].partition(' [')[0]}")
    return "".join(letter for letter in "; ".join(found)[:500] if letter.isprintable())


def _unread(row: Mapping[str, Any], fault: str) -> Scored:
    """What is said of a row whose shape is wrong."""
    return Scored(
        id=str(row.get("id"))[:200],
        source="unread",
        framework="unread",
        confidence=0,
        metric="unread",
        measured=None,
        outcome=None,
        skipped=f"underspecified: {fault}",
    )


def _read(row: Mapping[str, Any]) -> MemoryRow:
    """Read a row; one whose values do not go together is left out, with what went wrong."""
    try:
        ready = read_row(row)
        checked_recipe(ready.run.recipe)
        checked_parallelism(ready.run.par)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ForetellError):
            raise
        what = f"{type(error).__name__}: {str(error)[:80]}"
        raise Skip(f"underspecified: the row cannot be read ({what})") from error
    return ready


def predict(ready: MemoryRow, hardware: HardwareNode | None, *, replay: bool = True) -> Levels:
    """All levels of the rank that was measured."""
    stage_memory = training_memory(ready.arch, ready.run)
    stage = worst(stage_memory) if ready.stage is None else stage_memory[ready.stage]
    return levels(ready.arch, ready.run, stage, hardware, replay=replay)


def _scored(common: dict[str, Any], ready: MemoryRow, found: Levels, hardware: HardwareNode | None, *, linear: bool) -> Scored:
    level = _LEVEL.get(common["metric"], "process")
    measured = common["measured"]
    name = ready.run.profile.name
    if level == "nearer":
        near = min(("allocated", "reserved"), key=lambda k: abs(getattr(found, k) - (measured or 0.0)))
        point, level = getattr(found, near), near
    elif level == "static":
        point, level = found.static, "allocated"
    elif level == "parts":
        point, level = listed_parts(ready.arch, ready.run, ready.stage or 0), "allocated"
    else:
        point = getattr(found, level)
    spread = regime(name, level, common["confidence"], linear=linear)
    low, high = interval(point, spread)
    verdict = None
    if common["outcome"] and hardware is not None:
        process = regime(name, "process", common["confidence"], linear=linear)
        verdict = verdict_of(*fits_and_fails(found.process, process, available_bytes(hardware), headroom=0.0))  # what happened
    return Scored(**common, predicted=point, low=low, high=high, verdict=verdict)


def source_of(row: Mapping[str, Any]) -> str:
    """A short name of a row's source: the part of its id that the rows of one source share."""
    head = str(row["id"]).split("-")
    return "-".join(head[:2]) if head[0] in ("titan", "litgpt", "peft") and len(head) > 2 else head[0]


def _framework(row: Mapping[str, Any]) -> str:
    try:
        return framework_of(row)
    except Skip:
        return str(row["software"]["framework"])


def _verdicts(scored: Sequence[Scored]) -> dict[str, Any]:
    """Boundary rows: a run that was seen to fit or to fail for want of memory."""
    rows = [r for r in scored if r.outcome and r.verdict]
    if not rows:
        return {"verdicts": 0}
    right = [r for r in rows if r.verdict == ("fits" if r.outcome == "fits" else "does_not_fit")]
    return {
        "verdicts": len(rows),
        "verdict_accuracy_pct": round(100 * len(right) / len(rows), 2),
        "false_fits": sum(r.outcome == "oom" and r.verdict == "fits" for r in rows),
        "uncertain": sum(r.verdict == "uncertain" for r in rows),
    }


def _extra(scored: Sequence[Scored]) -> dict[str, Any]:
    """Rows whose counter is not stated, verdicts, and what sources see of constants that were fitted without them."""
    return {
        "unknown_counter": grouped([r for r in scored if r.metric == "unknown"], lambda r: r.source),
        **_verdicts(scored),
        "left_out": calibration().get("left_out", {}),
        "coverage_left_out_pct": calibration().get("coverage", {}).get("source_left_out_pct"),
    }


KIND = Kind(
    score=score,
    groups={
        "by_source": lambda r: r.source,
        "by_metric": lambda r: r.metric,
        "by_framework": lambda r: r.framework,
        "by_confidence": lambda r: f"{r.confidence} {r.metric}",
    },
    in_bars=lambda r: r.metric not in ("unknown", "outcome"),
    extra=_extra,
)
