"""Replay of served rows: each measured value beside its forecast, and what simpler answers say of it.

Means come from the closed form; percentiles, and everything of a load whose requests arrive at a rate, from a simulation of the
same deployment, with the source's number of requests where it is stated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foretell.core.serving_forecast import regime_of
from foretell.cost.serving_host import calibration, interval_of
from foretell.errors import ForetellError
from foretell.evidence.kinds import Kind
from foretell.evidence.reading import labels, read
from foretell.evidence.row_run import Skip
from foretell.evidence.row_shape import SERVING, fault_of
from foretell.evidence.serving_baselines import NOTES, naive, reference
from foretell.evidence.serving_checks import suspicious
from foretell.evidence.serving_predict import family, predicted, simulated
from foretell.evidence.serving_rows import METRICS, ServingRow, serving_row
from foretell.evidence.summary import Scored, grouped, summary

__all__ = ["KIND", "PLAYED", "ServingScored", "score"]

PLAYED: Final = ("ttft_p99_s", "itl_p99_s")
"""Metrics that only a simulation has."""


@dataclass(frozen=True, slots=True)
class ServingScored(Scored):
    """One measured value of a served row."""

    load: str = ""
    regime: str = ""
    """Whose residuals the interval was set from, but for what was never measured."""
    band: bool = False
    suspicious: str | None = None
    """Why the measurement cannot be what it says."""
    naive: float | None = None
    reference: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The contract's row, with the load and the simpler answers."""
        row = Scored.to_dict(self) | {"load": self.load, "naive": self.naive, "reference": self.reference}
        return row | ({"suspicious": self.suspicious} if self.suspicious else {})


def score(row: Mapping[str, Any]) -> list[ServingScored]:
    """Predict every measured value of a row; one that cannot be predicted says why."""
    if fault := fault_of(row, SERVING):
        return _skipped(row, f"underspecified: {fault}")
    try:
        ready = read(serving_row, row)
        return _scored(row, ready)
    except Skip as reason:
        return _skipped(row, str(reason))
    except ForetellError as error:
        return _skipped(row, f"not-modelled: {error}")


def _scored(row: Mapping[str, Any], ready: ServingRow) -> list[ServingScored]:
    values = _predictions(ready)
    capacity = ready.deployment.capacity
    simple = (naive(ready), reference(ready))
    odd = suspicious(ready)
    regime = {}
    if ready.demand is not None:
        regime["regime"] = regime_of(ready.deployment, ready.demand).removesuffix(" elsewhere")
    note = "; ".join((*ready.notes, *_said(row)))[:700]
    out = []
    for metric, measured in ready.measured.items():
        if measured == 0.0 and ready.feasible is False:
            continue
        common = (
            _common(row) | {"metric": metric, "measured": measured, "note": note, "suspicious": odd, "band": ready.band} | regime
        )
        point = values.get(metric)
        if point is None:
            why = "not-modelled: the deployment is said not to hold one request"
            out.append(
                ServingScored(**common, skipped=why if not capacity.feasible else f"not-modelled: {metric} of such a load")
            )
            continue
        low, high = _interval(ready, metric, point)
        out.append(
            ServingScored(
                **common, predicted=point, low=low, high=high, naive=simple[0].get(metric), reference=simple[1].get(metric)
            )
        )
    if ready.feasible is not None:
        out.append(_verdict(row, ready))
    return out


def _predictions(ready: ServingRow) -> dict[str, float]:
    """The closed form's means; from a simulation what depends on who arrived when."""
    values = predicted(ready)
    demand, measured = ready.demand, ready.measured
    if demand is None or not ready.deployment.capacity.feasible:
        return values
    queued = demand.kind == "closed" and "ttft_s" in measured
    if demand.kind == "open" or queued or any(name in measured for name in PLAYED):
        played = simulated(ready)
        if demand.kind == "open":
            return values | played
        names = (*PLAYED, "ttft_s") if queued else PLAYED
        values |= {name: played[name] for name in names if name in played}
    return values


def _interval(ready: ServingRow, metric: str, point: float) -> tuple[float, float]:
    capacity = ready.deployment.capacity
    if metric == "kv_tokens":
        least, most = capacity.interval
        return float(least), float(most)
    if metric == "kv_bytes":
        return point - capacity.spread, point + capacity.spread
    kind = family(metric) if metric not in PLAYED else metric.removesuffix("_s")
    assert ready.demand is not None  # noqa: S101  # only capacity rows have none, and they measure KV
    low, high = interval_of(regime_of(ready.deployment, ready.demand), kind)
    return point * low, point * high


def _verdict(row: Mapping[str, Any], ready: ServingRow) -> ServingScored:
    """Whether the deployment can start, said and measured."""
    common = _common(row) | {"metric": "feasible", "measured": None}
    said = "fits" if ready.deployment.capacity.feasible else "does_not_fit"
    return ServingScored(**common, outcome="fits" if ready.feasible else "oom", verdict=said)


def _said(row: Mapping[str, Any]) -> list[str]:
    """What the row's collector had to assume or noted, in words."""
    found = [str(entry) for entry in row.get("assumed") or ()]
    if row.get("notes"):
        found.append(f"notes: {row['notes']}")
    return ["".join(letter for letter in text if letter.isprintable()) for text in found]


def _skipped(row: Mapping[str, Any], reason: str) -> list[ServingScored]:
    measured = row.get("measured")
    names = [name for name in METRICS if isinstance(measured, Mapping) and name in measured] or ["unread"]
    band = "MLPerf" in str(row.get("source"))
    return [
        ServingScored(**_common(row), metric=name, measured=_plain(measured, name), skipped=reason, band=band) for name in names
    ]


def _plain(measured: object, name: str) -> float | None:
    value = measured.get(name) if isinstance(measured, Mapping) else None
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < sys.float_info.max
    return float(value) if plain and value else None


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    engine, load, source = row.get("engine"), row.get("load"), row.get("source")
    return labels(row) | {
        "source": str(source.get("title") if isinstance(source, Mapping) else None)[:100],
        "framework": str(engine.get("name") if isinstance(engine, Mapping) else None)[:100],
        "load": str(load.get("kind") if isinstance(load, Mapping) else None)[:20],
    }


def _extra(scored: Sequence[Scored]) -> dict[str, Any]:
    """Simpler answers on the same values, the rows reported apart, verdicts, and sources that a fit did not see."""
    rows = [r for r in scored if isinstance(r, ServingScored)]
    bars = [r for r in rows if not r.band and r.outcome is None]
    odd = sorted({f"{r.id}: {r.suspicious}" for r in bars if r.suspicious})
    verdicts = [r for r in rows if r.outcome is not None]
    out: dict[str, Any] = {
        "baselines": {name: {"basis": NOTES[name]} | _baseline(bars, name.split("_")[0]) for name in NOTES},
        "apart": {"mlperf": summary(r for r in rows if r.band)},
        "without_suspicious": {"rows": odd} | grouped([r for r in bars if not r.suspicious], _by_load),
        "left_out": calibration().get("left_out", {}),
    }
    if verdicts:
        right = [(r.outcome == "fits") == (r.verdict == "fits") for r in verdicts]
        out["verdict_accuracy_pct"] = round(100 * sum(right) / len(right), 1)
        out["false_fits"] = sum(r.outcome == "oom" and r.verdict == "fits" for r in verdicts)
    return out


def _by_load(r: Scored) -> str:
    return f"{getattr(r, 'load', '')} {r.metric}"


def _baseline(rows: Sequence[ServingScored], which: str) -> dict[str, Any]:
    guesses = [replace(r, predicted=guess, low=None, high=None) for r in rows if (guess := getattr(r, which)) is not None]
    groups: dict[str, Callable[[Scored], str]] = {"by_load": _by_load, "by_metric": lambda r: r.metric}
    drop = ("skipped", "coverage_pct")

    def errors(found: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in found.items() if key not in drop}

    parts = {part: {name: errors(found) for name, found in grouped(guesses, key).items()} for part, key in groups.items()}
    return errors(summary(guesses)) | parts


KIND = Kind(
    score=score,
    groups={
        "by_source": lambda r: r.source,
        "by_metric": lambda r: r.metric,
        "by_framework": lambda r: r.framework,
        "by_load": _by_load,
        "by_gpu": lambda r: r.gpu,
        "by_confidence": lambda r: f"{r.confidence} {r.metric}",
    },
    in_bars=lambda r: not getattr(r, "band", False) and r.outcome is None,
    extra=_extra,
)
