"""Replay of training rows: each measured step beside its forecast, how well forecasts choose, and what simpler answers say."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from foretell.core.speed import SpeedForecast, speed
from foretell.cost.software import calibration, interval_of
from foretell.errors import ForetellError
from foretell.evidence.baselines import baselines, formula_s
from foretell.evidence.kinds import Kind
from foretell.evidence.ranking import grouped_choices
from foretell.evidence.reading import read
from foretell.evidence.row_run import Skip
from foretell.evidence.row_shape import TRAINING, fault_of
from foretell.evidence.summary import Scored, summary
from foretell.evidence.training_rows import TrainingRow, training_row
from foretell.evidence.training_scored import TrainingScored, choices

__all__ = ["KIND", "predict", "score"]

APART: Final = ("drift", "replicate")
"""Splits that repeat a run that is among the others: with newer software, or by another group."""
_METRIC: Final = "step_s"


def score(row: Mapping[str, Any]) -> TrainingScored:
    """Predict one row; a row that cannot be predicted says why."""
    if fault := fault_of(row, TRAINING):
        return _skipped(row, f"underspecified: {fault}")
    try:
        ready = read(training_row, row)
        found = predict(ready)
        return _scored(row, ready, found)
    except Skip as reason:
        return _skipped(row, str(reason))
    except ForetellError as error:
        return _skipped(row, f"not-modelled: {error}")


def predict(ready: TrainingRow, **options: Any) -> SpeedForecast:
    """Forecast of a row's run."""
    return speed(
        ready.workload,
        ready.hardware,
        ready.recipe,
        ready.parallelism,
        topology=ready.topology,
        imbalance=ready.imbalance,
        **options,
    )


def _scored(row: Mapping[str, Any], ready: TrainingRow, found: SpeedForecast) -> TrainingScored:
    experts = bool(ready.workload.architecture.experts)
    regime = ("experts elsewhere" if experts else "elsewhere") if ready.stand_in else found.regime
    low, high = interval_of(regime)
    return TrainingScored(
        **_common(row),
        measured=ready.measured_s,
        predicted=found.step_s,
        low=low * found.step_s,
        high=high * found.step_s,
        note="; ".join((*ready.notes, *_assumed(row)))[:700],
        kind="experts" if experts else "dense",
        regime=regime,
        group=(
            str(row["source"]["title"]),
            str(row["model"]["name"]),
            ready.hardware.id,
            str(row["hardware"]["gpus"]),
            str(ready.global_batch),
            ready.precision,
        ),
        generation=f"{ready.generation} {ready.precision}",
        ideal_s=found.model_flops / (ready.parallelism.world * found.peak_flops_per_s),
        formula_s=_formula(ready, found),
    )


def _formula(ready: TrainingRow, found: SpeedForecast) -> float:
    """The plain formula's answer for the same run."""
    recipe, par, arch = ready.recipe, ready.parallelism, ready.workload.architecture
    top_k = arch.config.get("num_experts_per_tok") or 0
    return formula_s(
        parameters=ready.workload.parameters,
        active=ready.workload.active_parameters,
        layers=arch.layers,
        hidden=arch.hidden,
        top_k=top_k if isinstance(top_k, int) else 0,
        sequences=recipe.micro_batch * recipe.grad_accum / par.cp,
        seq_len=recipe.seq_len,
        peak=found.peak_flops_per_s,
        bytes_each=1.0 if ready.precision in ("fp8", "mxfp8", "nvfp4") else 2.0,
        dp=par.dp,
        tp=par.tp,
        pp=par.pp,
        ep=par.ep,
        vpp=par.vpp,
        micro_batches=recipe.grad_accum,
        again=recipe.recompute.mode == "full",
        adapter=recipe.adapter is not None,
        topology=ready.topology,
    )


def _assumed(row: Mapping[str, Any]) -> list[str]:
    """What the row's collector had to assume, in words: the first place to look where a prediction is far off."""
    found = [f"{a['field']}: {a['why']}" for a in row.get("assumed") or () if {"field", "why"} <= a.keys()]
    if row.get("notes"):
        found.append(f"notes: {row['notes'].partition(' [')[0]}")
    return ["".join(letter for letter in text if letter.isprintable()) for text in found]


def _skipped(row: Mapping[str, Any], reason: str) -> TrainingScored:
    measured = row.get("measured")
    value = measured.get(_METRIC) if isinstance(measured, Mapping) else None
    plain = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < sys.float_info.max
    return TrainingScored(**_common(row), measured=float(value) if plain and value else None, skipped=reason)


def _common(row: Mapping[str, Any]) -> dict[str, Any]:
    def at(part: str, key: str) -> object:
        found = row.get(part)
        return found.get(key) if isinstance(found, Mapping) else None

    confidence = row.get("confidence")
    return {
        "id": str(row["id"])[:200],
        "source": str(at("source", "title"))[:100],
        "framework": str(at("software", "framework"))[:100],
        "metric": _METRIC,
        "confidence": confidence if isinstance(confidence, int) else 0,
        "gpu": str(at("hardware", "gpu"))[:100],
        "split": str(row.get("split") or "")[:20],
    }


def _extra(scored: Sequence[Scored]) -> dict[str, Any]:
    """How well forecasts choose, the baselines, the rows that are reported apart, and sources that a fit did not see."""
    rows = [r for r in scored if isinstance(r, TrainingScored)]
    bars = [r for r in rows if r.split not in APART]
    sources = sorted({r.source for r in bars})
    picks = {name: grouped_choices(choices(r for r in bars if r.source == name)) for name in sources}
    apart = {name: some for name in APART if (some := [r for r in rows if r.split == name])}
    found = grouped_choices(choices(bars))
    return {
        "ranking_pct": found["ranking_pct"],
        "regret_pct": found["regret_pct"],
        "ranking": {"all": found} | {name: pick for name, pick in picks.items() if pick["groups"]},
        "baselines": baselines(bars),
        "apart": {name: summary(some) for name, some in apart.items()},
        "left_out": calibration().get("left_out", {}),
    }


KIND = Kind(
    score=score,
    groups={
        "by_source": lambda r: r.source,
        "by_metric": lambda r: r.metric,
        "by_framework": lambda r: r.framework,
        "by_kind": lambda r: getattr(r, "kind", "") or "unread",
        "by_gpu": lambda r: r.gpu,
        "by_confidence": lambda r: f"{r.confidence} {r.metric}",
    },
    in_bars=lambda r: getattr(r, "split", "") not in APART,
    extra=_extra,
)
