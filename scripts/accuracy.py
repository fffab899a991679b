"""Replay the shipped rows and write what was found into README.md and docs/accuracy.md.

    python scripts/accuracy.py           # write
    python scripts/accuracy.py --check   # exit 1 when the files do not say what the replay says

The tables stand between ``<!-- accuracy -->`` and ``<!-- /accuracy -->``; nobody types them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from foretell.evidence.replay import replay, shipped

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"(<!-- accuracy -->\n).*?(<!-- /accuracy -->)", re.DOTALL)
LEVELS = {"allocated": "allocated", "active": "allocated", "reserved": "reserved", "process": "process"}


def main() -> int:
    """Write or check both files."""
    report = replay("memory", shipped("memory"))
    pages = {ROOT / "README.md": short(report), ROOT / "docs/accuracy.md": short(report) + "\n" + long(report)}
    stale = []
    for path, text in pages.items():
        old = path.read_text("utf-8")
        if not MARK.search(old):
            print(f"{path.name}: no accuracy marks")
            return 1
        new = MARK.sub(lambda m, text=text: m.group(1) + text + m.group(2), old)
        if new != old:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    if "--check" in sys.argv and stale:
        print("out of date, run `python scripts/accuracy.py`:", ", ".join(stale))
        return 1
    return 0


def short(report: dict[str, Any]) -> str:
    """By level and confidence."""
    rows = [
        "| what was measured | confidence of the row | rows | MAPE | p90 | bias | inside the 90 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, s in report["summary"]["by_confidence"].items():
        confidence, metric = key.split(" ", 1)
        if s["n"]:
            rows.append(
                f"| {metric} | {confidence} | {s['n']} | {number(s['mape_pct'])} | {number(s['p90_ape_pct'])} | "
                f"{number(s['bias_pct'], sign=True)} | {s['coverage_pct']:.0f} % |"
            )
    total = report["summary"]
    all_rows = len(report["rows"])
    skipped = sum(1 for r in report["rows"] if r["skipped"])
    rows.append("")
    rows.append(
        f"{all_rows} measured values of {len(total['by_source'])} sources, {skipped} left out with a reason; "
        f'{total["verdicts"]} boundary runs, {total.get("false_fits", 0)} false "fits".'
    )
    return "\n".join(rows) + "\n"


def long(report: dict[str, Any]) -> str:
    """By source, and what was left out."""
    rows = ["| source | rows | left out | MAPE | p90 | bias | inside |", "|---|---|---|---|---|---|---|"]
    for source, s in report["summary"]["by_source"].items():
        if s["n"]:
            rows.append(
                f"| {source} | {s['n']} | {s['skipped']} | {number(s['mape_pct'])} | {number(s['p90_ape_pct'])} | "
                f"{number(s['bias_pct'], sign=True)} | {s['coverage_pct']:.0f} % |"
            )
    rows += ["", "Rows whose counter is not stated, scored against the nearer of allocated and reserved:", ""]
    rows += ["| source | rows | MAPE | bias |", "|---|---|---|---|"]
    for source, s in report["summary"]["unknown_counter"].items():
        if s["n"]:
            rows.append(f"| {source} | {s['n']} | {number(s['mape_pct'])} | {number(s['bias_pct'], sign=True)} |")
    rows += ["", "Left out:", ""]
    rows += [f"- {n} x {reason}" for reason, n in report["summary"]["reasons"].items()]
    return "\n".join(rows) + "\n"


def number(value: float, *, sign: bool = False) -> str:
    """One decimal and a per cent sign."""
    return f"{value:+.1f} %" if sign else f"{value:.1f} %"


if __name__ == "__main__":
    raise SystemExit(main())
