"""``replay``: measured rows of a file through the solvers, and the error report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretell.catalog.decode import unique
from foretell.cost.overheads import calibration
from foretell.errors import InputError
from foretell.evidence.exclusions import EXCLUDED
from foretell.evidence.memory_replay import score
from foretell.evidence.summary import Scored, grouped, summary

KINDS = ("memory",)
MAX_BYTES = 256 * 2**20
MAX_ROWS = 200_000


def replay(kind: str, path: str | Path, *, allocator: str = "replay") -> dict[str, Any]:
    """Replay every row of a JSON Lines file (``allocator``: see ``core.forecast.forecast``).

    Returns ``rows`` and ``summary`` as the contract has them, with ``by_source``, ``by_metric``, ``by_framework``
    and ``by_confidence``, what the shipped rows of each source see of constants fitted without it (``left_out``), the rows
    left out with their reasons, and the verdicts of boundary rows.
    """
    if kind not in KINDS:
        raise InputError("is not a kind of evidence that can be replayed", field="kind", value=kind, allowed=KINDS)
    scored = [_one(row, allocator) for row in read_rows(path)]
    if not scored:
        raise InputError("holds no rows", field="data", value=str(path), allowed="one measured run a line, as JSON")
    bars = [r for r in scored if r.metric not in ("unknown", "outcome")]
    apart = [r for r in scored if r.metric == "unknown"]
    return {
        "rows": [r.to_dict() for r in scored],
        "summary": summary(bars)
        | {
            "by_source": grouped(bars, lambda r: r.source),
            "by_metric": grouped(bars, lambda r: r.metric),
            "by_framework": grouped(bars, lambda r: r.framework),
            "by_confidence": grouped(bars, lambda r: f"{r.confidence} {r.metric}"),
            "unknown_counter": grouped(apart, lambda r: r.source),
            "reasons": _reasons(scored),
            **_verdicts(scored),
            "left_out": calibration().get("left_out", {}),
            "coverage_left_out_pct": calibration().get("coverage", {}).get("source_left_out_pct"),
        },
    }


def shipped(kind: str) -> Path:
    """The rows that the package ships (facts with their sources)."""
    return Path(__file__).with_name("data") / f"{kind}.jsonl"


def read_rows(path: str | Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON Lines file; a line that is not an object is an error that names its number."""
    file = Path(path)
    if not file.is_file():
        raise InputError("is not a file", field="data", value=str(path), hint="give a .jsonl file of measured rows")
    if file.stat().st_size > MAX_BYTES:
        raise InputError("is too large", field="data", value=str(path), allowed=f"at most {MAX_BYTES // 2**20} MiB")
    try:
        stream = file.open(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="data", value=str(path)) from error
    with stream as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            if number > MAX_ROWS:
                raise InputError("has too many rows", field="data", value=str(path), allowed=f"at most {MAX_ROWS}")
            try:
                row = json.loads(line, object_pairs_hook=unique)
            except (ValueError, RecursionError) as error:
                reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
                raise InputError(f"is not JSON: {reason}", field="row", where=f"{path}:{number}") from error
            if not isinstance(row, dict) or "id" not in row or "measured" not in row:
                raise InputError("is not a measured row (id, measured ...)", field="row", where=f"{path}:{number}")
            yield row


def _one(row: dict[str, Any], allocator: str) -> Scored:
    reason = EXCLUDED.get(str(row["id"]))
    found = score(row, allocator=allocator)
    if reason is None:
        return found
    return Scored(
        id=found.id,
        source=found.source,
        framework=found.framework,
        metric=found.metric,
        confidence=found.confidence,
        measured=found.measured,
        skipped=reason,
    )


def _reasons(scored: list[Scored]) -> dict[str, int]:
    out: dict[str, int] = {}
    for r in scored:
        if r.skipped:
            out[r.skipped] = out.get(r.skipped, 0) + 1
    return dict(sorted(out.items(), key=lambda item: -item[1]))


def _verdicts(scored: list[Scored]) -> dict[str, Any]:
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
