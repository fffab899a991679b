"""Reduce measured servers to the rows that may be shipped and the fields that the replay reads.

    python scripts/reduce_serving.py ROWS  # writes src/foretell/evidence/data/serving.jsonl

Tables whose licence is not stated are left out (single numbers of them are cited where they are used).  Of each source and kind
of load at most ``MOST`` rows are kept, evenly spread over the file, so that the package stays small.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

from foretell.evidence.replay import read_rows, shipped

MOST = 36
FREE = ("Apache-2.0", "MIT", "individual log lines")
KEPT: dict[str, tuple[str, ...]] = {
    "source": ("title", "ref", "date", "licence"),
    "model": ("name", "config"),
}
WHOLE = ("id", "hardware", "engine", "serving", "load", "measured", "confidence", "assumed", "notes")


def main() -> int:
    """Write the file."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    by: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in read_rows(sys.argv[1]):
        if str(row["source"].get("licence", "")).startswith(FREE):
            by[row["source"]["title"], row["load"]["kind"]].append(row)
    rows = [row for some in by.values() for row in spread(some)]
    out = shipped("serving")
    out.write_text("".join(json.dumps(reduced(row), separators=(",", ":")) + "\n" for row in rows), "utf-8")
    print(f"{len(rows)} rows of {len({source for source, _ in by})} sources, {out.stat().st_size / 1e6:.2f} MB")
    return 0


def spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most ``MOST`` rows, evenly spread."""
    step = max(1.0, len(rows) / MOST)
    return [rows[int(i * step)] for i in range(int(len(rows) / step))]


def reduced(row: dict[str, Any]) -> dict[str, Any]:
    """The fields that are read, and where they come from."""
    found = {key: row[key] for key in WHOLE if key in row}
    for part, names in KEPT.items():
        found[part] = {name: row[part][name] for name in names if name in row[part]}
    return found


if __name__ == "__main__":
    sys.exit(main())
