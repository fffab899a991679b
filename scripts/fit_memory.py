"""Fit what is fitted of the memory answers, and write ``catalog/data/calibration/memory.json``.

    python scripts/fit_memory.py            # fit, write, print the figures
    python scripts/fit_memory.py --dry      # print only

Two things are fitted on the shipped rows (``evidence/data/memory.jsonl``), nothing per row:

* ``slack``: reserved and unused bytes, as a fraction of what is not resident between steps, where the fold does not
  derive reserved memory from the allocator itself;
* ``regimes``: quantiles of ln(measured / predicted), by level and confidence, and by framework where it has enough rows.
  Every source weighs the same inside a regime, so that one long table does not decide.

The figure to look at is the coverage of intervals made without the source that they are tried on.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foretell.cost.overheads import calibration, regime_names
from foretell.cost.training_memory import training_memory, worst
from foretell.cost.workspace import library_workspace
from foretell.evidence.memory_replay import source_of
from foretell.evidence.memory_rows import read_row
from foretell.evidence.replay import read_rows, replay, shipped
from foretell.evidence.summary import Scored
from foretell.machine import load_hardware
from foretell.recipe.profiles import PROFILES

OUT = Path(__file__).parents[1] / "src/foretell/catalog/data/calibration/memory.json"
POINTS = (0.01, 0.025, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.975, 0.99)
LEVEL = {"active": "allocated", "allocated-static": "allocated", "breakdown-sum": "allocated", "reserved-sampled": "reserved"}
ENOUGH = 12
"""Rows from which a framework has a regime of its own."""
UNMEASURED = 0.03
"""Added on either side where no process of the framework was measured: its context and NCCL buffers are priors."""
FLOOR = 0.012
"""No interval is narrower than this on either side: rows repeat to about 1 % between software builds of one date."""


def residuals(allocator: str) -> list[tuple[Scored, float]]:
    """Every scored row with ln(measured / predicted)."""
    out = []
    for row in replay("memory", shipped("memory"), allocator=allocator)["rows"]:
        if row["error_pct"] is None or row["metric"] in ("unknown", "outcome"):
            continue
        names = ("id", "source", "framework", "metric", "confidence", "measured", "predicted")
        out.append((Scored(**{k: row[k] for k in names}), -math.log1p(row["error_pct"] / 100)))
    return out


def weighted_quantiles(values: Sequence[tuple[float, float]], points: Iterable[float]) -> list[float]:
    """Quantiles of (value, weight) pairs, linear between the middles of the weights."""
    ordered = sorted(values)
    whole = sum(w for _, w in ordered)
    middles, passed = [], 0.0
    for value, weight in ordered:
        middles.append(((passed + weight / 2) / whole, value))
        passed += weight
    out = []
    for p in points:
        if p <= middles[0][0]:
            out.append(middles[0][1])
            continue
        if p >= middles[-1][0]:
            out.append(middles[-1][1])
            continue
        i = next(i for i, (q, _) in enumerate(middles) if q >= p)
        (q0, v0), (q1, v1) = middles[i - 1], middles[i]
        out.append(v0 + (v1 - v0) * (p - q0) / (q1 - q0 or 1.0))
    return out


def spread(rows: Sequence[tuple[Scored, float]], more: float = 0.0) -> dict[str, Any]:
    """One regime: quantiles with every source of equal weight, floors applied, monotone; ``more`` on either side."""
    count: dict[str, int] = defaultdict(int)
    for s, _ in rows:
        count[s.source] += 1
    pairs = [(r, 1.0 / math.sqrt(count[s.source])) for s, r in rows]
    found = weighted_quantiles(pairs, POINTS)
    middle = found[POINTS.index(0.50)]
    widened = []
    for p, value in zip(POINTS, found, strict=True):
        floor = FLOOR * abs(p - 0.5) / 0.45
        value += more * (p - 0.5) / 0.45
        widened.append(round(min(value, middle - floor) if p < 0.5 else max(value, middle + floor) if p > 0.5 else value, 5))
    return {
        "p": list(POINTS), "log_error": widened, "rows": len(rows), "basis": "fit",
        "sources": sorted(count),
    }  # fmt: skip


def regimes(rows: Sequence[tuple[Scored, float]], suffix: str = "") -> dict[str, Any]:
    """Every regime that has rows (``suffix`` marks levels that came from the linear slack)."""
    groups: dict[str, list[tuple[Scored, float]]] = defaultdict(list)
    for s, r in rows:
        level = LEVEL.get(s.metric, s.metric) + suffix
        groups[f"{level}/{s.confidence}"].append((s, r))
        groups[level].append((s, r))
        groups[f"{s.framework}/{level}/{s.confidence}"].append((s, r))
        # what a process takes above allocated memory, where no run of the kind was measured
        if not level.startswith("allocated") and not suffix:
            groups["process-elsewhere"].append((s, r))
            groups[f"process-elsewhere/{s.confidence}"].append((s, r))
    return {name: spread(members, UNMEASURED if name.startswith("process-elsewhere") else 0.0) for name, members in sorted(groups.items()) if name.count("/") < 2 or len(members) >= ENOUGH}


def pooled_fraction() -> dict[str, Any]:
    """Reserved bytes that the stream pools do not explain, over what is not resident between steps: the median of the
    rows of highest confidence, sources of equal weight."""
    found: list[tuple[float, str, str]] = []
    for row in read_rows(shipped("memory")):
        if row["measured"].get("metric") != "reserved" or row["confidence"] != 3 or row["software"]["framework"] != "torchtitan":
            continue
        ready = read_row(row)
        hardware = load_hardware(row["hardware"]["gpu"])
        stage = worst(training_memory(ready.arch, ready.run)) if ready.stage is None else (
            training_memory(ready.arch, ready.run)[ready.stage]
        )  # fmt: skip
        if stage.pooled is not None:
            workspace = library_workspace(ready.arch, ready.run, hardware.compute_capability)
            rest = row["measured"]["gib"] * 2**30 - stage.pooled - workspace
            found.append((rest / (stage.pooled - stage.states), source_of(row), row["id"]))
    count: dict[str, int] = defaultdict(int)
    for _, source, _ in found:
        count[source] += 1
    value = weighted_quantiles([(x, 1 / count[source]) for x, source, _ in found], [0.5])[0]
    return {"fraction": round(value, 4), "basis": "fit", "rows": [row for *_, row in found]}


def inside(r: float, regime: dict[str, Any]) -> bool:
    """Whether a residual lies between the 5 % and 95 % quantiles."""
    return bool(regime["log_error"][POINTS.index(0.05)] <= r <= regime["log_error"][POINTS.index(0.95)])


def name_of(s: Scored, table: dict[str, Any]) -> str:
    """The regime that a row is given (as ``overheads.regime`` looks it up)."""
    level = LEVEL.get(s.metric, s.metric)
    return next(n for n in regime_names(s.framework, level, s.confidence) if n in table)


def coverage(rows: Sequence[tuple[Scored, float]]) -> tuple[float, float]:
    """Coverage with every row, and of each source without it."""
    table = regimes(rows)
    seen = [inside(r, table[name_of(s, table)]) for s, r in rows]
    unseen = []
    for source in sorted({s.source for s, _ in rows}):
        others = regimes([(s, r) for s, r in rows if s.source != source])
        for s, r in rows:
            if s.source == source:
                try:
                    unseen.append(inside(r, others[name_of(s, others)]))
                except StopIteration:  # no other source has this level: nothing to test against
                    continue
    return 100 * sum(seen) / len(seen), 100 * sum(unseen) / len(unseen)


def main() -> None:
    """Fit and write."""
    data = calibration()
    data["slack"]["pooled"] = pooled_fraction()
    print(f"slack beyond the stream pools: {100 * data['slack']['pooled']['fraction']:.2f} % of what is not resident")
    rows = residuals("replay")
    can = {p.name for p in PROFILES.values() if p.replays}
    linear = [(s, r) for s, r in residuals("linear") if s.framework in can and LEVEL.get(s.metric, s.metric) != "allocated"]
    kept = {k: v for k, v in data["regimes"].items() if v.get("basis") == "prior" and k in ("default", "not-cuda")}
    data["regimes"] = kept | regimes(rows) | regimes(linear, "-linear")
    with_all, without = coverage(rows)
    data["coverage"] = {"all_sources_pct": round(with_all, 1), "source_left_out_pct": round(without, 1)}
    print(f"90 % intervals cover {with_all:.1f} % of {len(rows)} rows; {without:.1f} % of rows whose source was left out")
    for name, found in data["regimes"].items():
        if found["basis"] == "fit":
            low, high = (100 * math.expm1(found["log_error"][POINTS.index(p)]) for p in (0.05, 0.95))
            print(f"  {name:35s} {found['rows']:4d} rows  {low:+6.1f} % .. {high:+6.1f} %")
    if "--dry" not in sys.argv:
        OUT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
