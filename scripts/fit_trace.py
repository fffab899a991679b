"""Write the intervals of traces, and the table of docs/trace.md, from the published runs that were traced.

    python scripts/fit_trace.py           # write
    python scripts/fit_trace.py --check   # exit 1 when the files do not say what the rows say

The rows stand in ``src/foretell/evidence/data/traced.jsonl``: what was measured, what the first trace said, what the last one
says, and what was changed in between: the ``engine`` (which then holds for every run) or the ``run`` (the code version or a
setting that the first trace had otherwise).  An interval comes from the last traces where the engine alone was changed, and from
the first ones everywhere else.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "src/foretell/evidence/data/traced.jsonl"
CALIBRATION = ROOT / "src/foretell/catalog/data/calibration/trace.json"
PAGE = ROOT / "docs/trace.md"
MARK = re.compile(r"(<!-- traced -->\n).*?(<!-- /traced -->)", re.DOTALL)
P = (0.05, 0.25, 0.5, 0.75, 0.95)
OUTSIDE = 0.03
"""By how much (ln) the interval of a process is wider than that of reserved memory: the CUDA context is known so well."""
MOST = 8
"""Runs that one source counts for at most: its runs resemble each other."""
COMPILED = [-0.237, -0.103, -0.039]
"""ln(measured / traced) of three published runs that were compiled (torchtune-12, thunder-1, torchtune-13): a prior."""
LEVEL = {"allocated": "allocated", "active": "allocated", "reserved": "reserved"}
NAMES = {"allocated": "allocated or active", "reserved": "reserved"}
LONG = ("fitcheck-t4",)
"""Sources whose runs have names too long for a table."""
WORTH_SAYING = 1.0
"""Per cent of error, or of change, from which on a run stands in the page's table."""

Row = dict[str, Any]


def main() -> int:
    """Write or check both files."""
    rows = [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]
    stale = []
    for path, text in ((CALIBRATION, calibration(rows)), (PAGE, page(rows))):
        if path.read_text("utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(text, "utf-8")
    if "--check" in sys.argv and stale:
        print("out of date, run `python scripts/fit_trace.py`:", ", ".join(stale))
        return 1
    return 0


def of_level(rows: list[Row], level: str) -> list[Row]:
    """Return the rows of a level."""
    return [r for r in rows if LEVEL[r["metric"]] == level]


def counted(rows: list[Row]) -> list[Row]:
    """Return the rows that an interval comes from: not those whose trace is known to be of another run than the measured one."""
    return [r for r in rows if not r["not_the_run"]]


def error(row: Row) -> float:
    """Return ln(measured / traced) of the trace that counts."""
    return math.log(row["measured_bytes"] / row["last_bytes" if row["changed_in"] == "engine" else "first_bytes"])


def quantiles(rows: list[Row]) -> list[float]:
    """Return the quantiles at P of the rows' errors; no source weighs more than MOST rows."""
    per_source = Counter(r["source"] for r in rows)
    pairs = sorted((error(r), min(1.0, MOST / per_source[r["source"]])) for r in rows)
    total = sum(weight for _, weight in pairs)
    places, before = [], 0.0
    for value, weight in pairs:  # the middle of each row's share, on the scale of a sample from the same distribution
        places.append(((before + weight / 2 + 0.5) / (total + 1), value))
        before += weight
    out = [round(interpolated(p, places), 5) for p in P]
    for i in range(1, len(out)):
        out[i] = max(out[i], round(out[i - 1] + 1e-4, 5))
    return out


def interpolated(p: float, places: list[tuple[float, float]]) -> float:
    """Return the value at a place between those that are known, the first or last beyond them."""
    if p <= places[0][0]:
        return places[0][1]
    for (low, a), (high, b) in pairwise(places):
        if p <= high:
            return a + (b - a) * (p - low) / (high - low)
    return places[-1][1]


def calibration(rows: list[Row]) -> str:
    """Return the calibration file."""
    levels: dict[str, Any] = {}
    for level in NAMES:
        found = of_level(rows, level)
        levels[level] = {"p": list(P), "log_error": quantiles(counted(found)), "rows": len(counted(found))}
    reserved = levels["reserved"]["log_error"]
    wide = [round(e + OUTSIDE * (2 * i / (len(P) - 1) - 1), 5) for i, e in enumerate(reserved)]
    levels["process"] = {"p": list(P), "log_error": wide, "rows": levels["reserved"]["rows"]}
    low, middle, high = COMPILED
    widest = [min(low, wide[0]), (low + middle) / 2, middle, (middle + high) / 2, max(0.0, wide[-1])]
    levels["compiled"] = {"p": list(P), "log_error": [round(e, 5) for e in widest], "rows": 0}
    about = (
        "ln(measured / traced) of published runs that were traced; written by scripts/fit_trace.py from "
        "evidence/data/traced.jsonl. process: reserved, wider by 3 % for the context. compiled: a prior from three runs."
    )
    return (
        json.dumps({"about": about, "levels": levels, "fitted_on": [f"{r['id']} {r['metric']}" for r in counted(rows)]}, indent=1)
        + "\n"
    )


def page(rows: list[Row]) -> str:
    """Return docs/trace.md with its tables."""
    return MARK.sub(lambda m: m.group(1) + "\n".join(tables(rows)) + "\n" + m.group(2), PAGE.read_text("utf-8"))


def tables(rows: list[Row]) -> list[str]:
    """Return the lines of the tables."""
    out = ["| eager runs | runs | first trace: mean, median, worst error | last trace | in the 90 % interval of other sources |"]
    out.append("|---|---|---|---|---|")
    for level, name in NAMES.items():
        kept = of_level(rows, level)
        out.append(f"| **{name}** | {len(kept)} | {spread(kept, 'first')} | {spread(kept, 'last')} | {coverage(kept)} |")
        for source in dict.fromkeys(r["source"] for r in kept):
            own = [r for r in kept if r["source"] == source]
            out.append(f"| {source} | {len(own)} | {spread(own, 'first')} | {spread(own, 'last')} | |")
    out += [
        "",
        "Each run was traced with the code version that its source names. *First* is what the trace said before its result had",
        "been seen; below stand the runs that were more than 1 % off then, or are now. Three compiled runs, traced as written,",
        "came out 4 to 27 % high.",
        "",
        "| runs | measured | first | last | what was changed after the first result was seen, or is open |",
        "|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for r in rows:
        if max(abs(off(r, "first")), abs(off(r, "last"))) >= WORTH_SAYING:
            what = f"{r['changed_in']}: {r['changed']}" if r["changed"] else r["open"] or "-"
            many = r["source"] if r["source"] in LONG else r["id"]
            groups.setdefault((many, r["metric"], what), []).append(r)
    for (name, metric, what), kept in groups.items():
        runs = name if len(kept) == 1 else f"{name}, {len(kept)} runs"
        sizes = reach([r["measured_bytes"] / 2**30 for r in kept], ".2f")
        first, last = (reach([off(r, which) for r in kept], "+.1f") for which in ("first", "last"))
        out.append(f"| {runs} | {sizes} GiB {metric} | {first} % | {last} % | {what} |")
    return out


def reach(values: list[float], form: str) -> str:
    """Write one value, or the lowest and the highest."""
    low, high = (format(v, form) for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def off(row: Row, which: str) -> float:
    """Return a trace's error in per cent."""
    return 100 * float(row[f"{which}_bytes"] / row["measured_bytes"] - 1)


def spread(rows: list[Row], which: str) -> str:
    """Return mean, median and worst of the absolute errors."""
    found = [abs(off(r, which)) for r in rows]
    return f"{statistics.fmean(found):.2f}, {statistics.median(found):.2f}, {max(found):.1f} %"


def coverage(rows: list[Row]) -> str:
    """Return how many runs lie in the interval that the runs of the other sources give."""
    inside = 0
    for source in {r["source"] for r in rows}:
        made = quantiles(counted([r for r in rows if r["source"] != source]))
        inside += sum(made[0] <= error(r) <= made[-1] for r in rows if r["source"] == source)
    return f"{100 * inside / len(rows):.0f} %"


if __name__ == "__main__":
    sys.exit(main())
