"""``replay``: measured rows of a file through the solvers, and the error report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.catalog.decode import unique
from foretell.errors import InputError
from foretell.evidence.exclusions import EXCLUDED
from foretell.evidence.kinds import KINDS, Kind, kind_of
from foretell.evidence.summary import Scored, grouped, summary

__all__ = ["KINDS", "read_rows", "replay", "shipped"]

MAX_BYTES = 256 * 2**20
MAX_ROWS = 200_000


def replay(kind: str, path: str | Path, **options: str) -> dict[str, Any]:
    """Replay every row of a JSON Lines file; ``options`` are those of the kind's own ``score``.

    Returns ``rows`` and ``summary`` as the contract has them, with a summary for each group of the kind (``by_source`` ...),
    the rows left out with their reasons, and what else the kind reports: verdicts of boundary rows, what the shipped rows of
    each source see of constants fitted without it (``left_out``).
    """
    how = kind_of(kind)
    scored = [one for row in read_rows(path) for one in _all(row, how, options)]
    if not scored:
        raise InputError("holds no rows", field="data", value=str(path), allowed="one measured run a line, as JSON")
    bars = [r for r in scored if how.in_bars(r)]
    return {
        "rows": [r.to_dict() for r in scored],
        "summary": summary(bars)
        | {name: grouped(bars, key) for name, key in how.groups.items()}
        | {"reasons": _reasons(scored)}
        | how.extra(scored),
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


def _all(row: dict[str, Any], how: Kind, options: dict[str, str]) -> list[Scored]:
    found = how.score(row, **options)
    return [_one(row, found)] if isinstance(found, Scored) else [_one(row, one) for one in found]


def _one(row: dict[str, Any], found: Scored) -> Scored:
    reason = EXCLUDED.get(str(row["id"]))
    if reason is None:
        return found
    return replace(found, predicted=None, low=None, high=None, outcome=None, verdict=None, note="", skipped=reason)


def _reasons(scored: list[Scored]) -> dict[str, int]:
    out: dict[str, int] = {}
    for r in scored:
        if r.skipped:
            out[r.skipped] = out.get(r.skipped, 0) + 1
    return dict(sorted(out.items(), key=lambda item: -item[1]))
