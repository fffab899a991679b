"""Reduce measured training rows to the fields that the replay reads, and write what they reached of the peak.

    python scripts/reduce_training.py ROWS  # writes src/foretell/evidence/data/training.jsonl and mfu.json

``mfu.json`` is what the baseline of a constant share of the peak takes its medians from: generation and precision -> source ->
shares.  Rows that repeat another one (``drift``, ``replicate``) are shipped, but are no part of it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from typing import Any

from foretell.evidence.replay import read_rows, shipped
from foretell.evidence.training_replay import APART, score

KEPT: dict[str, tuple[str, ...]] = {
    "source": ("title", "ref", "date"),
    "model": ("name", "config"),
    "hardware": ("gpu", "gpus", "gpus_per_node", "fabric"),
    "software": ("framework", "name", "version", "date"),
    "measured": ("step_s", "tokens_per_s_per_gpu", "flop_convention", "derived"),
}
WHOLE = ("id", "training", "parallel", "split", "confidence", "assumed", "notes")


def main() -> int:
    """Write both files."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    rows = list(read_rows(sys.argv[1]))
    out = shipped("training")
    out.write_text("".join(json.dumps(reduced(row), separators=(",", ":")) + "\n" for row in rows), "utf-8")
    table = dict(sorted(shares(rows).items()))
    out.with_name("mfu.json").write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    print(f"{len(rows)} rows, {out.stat().st_size / 1e6:.2f} MB; shares of {', '.join(table)}")
    return 0


def reduced(row: dict[str, Any]) -> dict[str, Any]:
    """The fields that are read, and where they come from."""
    found = {key: row[key] for key in WHOLE if key in row}
    for part, names in KEPT.items():
        found[part] = {name: row[part][name] for name in names if name in row[part]}
    found["hardware"]["fabric"] = {key: value for key, value in row["hardware"].get("fabric", {}).items() if key != "text"}
    return found


def shares(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Shares of the peak: generation and precision -> source -> values, in ascending order."""
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found = score(row)
        if found.measured_mfu is not None and found.split not in APART:
            table[found.generation][found.source].append(round(found.measured_mfu, 4))
    return {name: {source: sorted(values) for source, values in sorted(by.items())} for name, by in table.items()}


if __name__ == "__main__":
    raise SystemExit(main())
