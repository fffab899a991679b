"""The fit of what is fitted of the memory answers: slack beyond the stream pools, and how wide an interval is.

Nothing is fitted per row.  ``slack.pooled`` is one fraction; ``regimes`` are quantiles of ln(measured / predicted), by
level and confidence, and by framework where it has enough rows.  Every source weighs the square root of its rows, so that
one long table does not decide.  :func:`left_out` tries the constants on each source that was kept out of their fit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foretell.cost.overheads import regime_names
from foretell.cost.training_memory import training_memory, worst
from foretell.cost.workspace import library_workspace
from foretell.evidence.memory_replay import source_of
from foretell.evidence.memory_rows import read_row
from foretell.evidence.replay import read_rows, replay, shipped
from foretell.evidence.summary import Scored
from foretell.machine import load_hardware
from foretell.recipe.profiles import PROFILES

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
    for p, quantile in zip(POINTS, found, strict=True):
        floor = FLOOR * abs(p - 0.5) / 0.45
        value = quantile + more * (p - 0.5) / 0.45
        widened.append(round(min(value, middle - floor) if p < 0.5 else max(value, middle + floor) if p > 0.5 else value, 5))
    return {"p": list(POINTS), "log_error": widened, "rows": len(rows), "basis": "fit", "sources": sorted(count)}


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
    return {
        name: spread(members, UNMEASURED if name.startswith("process-elsewhere") else 0.0)
        for name, members in sorted(groups.items())
        if name.count("/") < 2 or len(members) >= ENOUGH
    }


@dataclass(frozen=True, slots=True)
class PooledRow:
    """A row of reserved memory that follows from stream pools: what the pools say, and what was measured; bytes."""

    id: str
    source: str
    measured: float
    pools: float
    """Pools and library workspace."""
    transient: float
    """What is not resident between steps."""

    def error(self, fraction: float) -> float:
        """Relative error with ``fraction`` of the transient bytes on top."""
        return (self.pools + fraction * self.transient) / self.measured - 1


def pooled_rows() -> list[PooledRow]:
    """Rows of highest confidence that the fraction beyond the pools is fitted on."""
    found = []
    for row in read_rows(shipped("memory")):
        if row["measured"].get("metric") != "reserved" or row["confidence"] != 3 or row["software"]["framework"] != "torchtitan":
            continue
        ready = read_row(row)
        hardware = load_hardware(row["hardware"]["gpu"])
        stages = training_memory(ready.arch, ready.run)
        stage = worst(stages) if ready.stage is None else stages[ready.stage]
        if stage.pooled is not None:
            workspace = library_workspace(ready.arch, ready.run, hardware.compute_capability)
            measured = row["measured"]["gib"] * 2.0**30
            rest = stage.pooled - stage.states
            found.append(PooledRow(row["id"], source_of(row), measured, stage.pooled + workspace, rest))
    return found


def pooled_fraction(rows: Sequence[PooledRow]) -> float:
    """Reserved bytes that the pools do not explain over transient ones: the median, sources of equal weight."""
    count: dict[str, int] = defaultdict(int)
    for r in rows:
        count[r.source] += 1
    return weighted_quantiles([((r.measured - r.pools) / r.transient, 1 / count[r.source]) for r in rows], [0.5])[0]


def left_out(rows: Sequence[tuple[Scored, float]], pooled: Sequence[PooledRow]) -> dict[str, dict[str, float]]:
    """Of each source, what its rows see of constants that were fitted without it: error (where a fitted constant
    decides it) and coverage of the interval, per cent."""
    out: dict[str, dict[str, float]] = {}
    for source in sorted({s.source for s, _ in rows}):
        table = regimes([(s, r) for s, r in rows if s.source != source])
        own = [(s, r) for s, r in rows if s.source == source and _known(s, table)]
        if own:
            hits = [inside(r, table[name_of(s, table)]) for s, r in own]
            out[source] = {"coverage_pct": round(100 * sum(hits) / len(hits), 1)}
    for source in sorted({r.source for r in pooled}):
        fraction = pooled_fraction([r for r in pooled if r.source != source])
        errors = [abs(r.error(fraction)) for r in pooled if r.source == source]
        out.setdefault(source, {})["reserved_mape_pct"] = round(100 * sum(errors) / len(errors), 2)
    return out


def _known(s: Scored, table: dict[str, Any]) -> bool:
    return any(n in table for n in regime_names(s.framework, LEVEL.get(s.metric, s.metric), s.confidence))


def inside(r: float, regime: dict[str, Any]) -> bool:
    """Whether a residual lies between the 5 % and 95 % quantiles."""
    return bool(regime["log_error"][POINTS.index(0.05)] <= r <= regime["log_error"][POINTS.index(0.95)])


def name_of(s: Scored, table: dict[str, Any]) -> str:
    """The regime that a row is given (as ``overheads.regime`` looks it up)."""
    level = LEVEL.get(s.metric, s.metric)
    return next(n for n in regime_names(s.framework, level, s.confidence) if n in table)


def fit(data: dict[str, Any]) -> dict[str, Any]:
    """The calibration with everything fitted anew; what is a prior stays."""
    pooled = pooled_rows()
    fraction = {"fraction": round(pooled_fraction(pooled), 4), "basis": "fit", "rows": [r.id for r in pooled]}
    data = data | {"slack": data["slack"] | {"pooled": fraction}}
    rows = residuals("replay")
    can = {p.name for p in PROFILES.values() if p.replays}
    linear = [(s, r) for s, r in residuals("linear") if s.framework in can and LEVEL.get(s.metric, s.metric) != "allocated"]
    kept = {k: v for k, v in data["regimes"].items() if v.get("basis") == "prior" and k in ("default", "not-cuda")}
    table = kept | regimes(rows) | regimes(linear, "-linear")
    hits = [inside(r, table[name_of(s, table)]) for s, r in rows]
    without = left_out(rows, pooled)
    counts = {source: sum(s.source == source for s, _ in rows) for source in without}
    unseen = sum(counts[s] * v["coverage_pct"] for s, v in without.items() if "coverage_pct" in v)
    total = sum(counts[s] for s, v in without.items() if "coverage_pct" in v)
    return data | {
        "regimes": table,
        "coverage": {"all_sources_pct": round(100 * sum(hits) / len(hits), 1), "source_left_out_pct": round(unseen / total, 1)},
        "left_out": without,
    }
