"""From a forecast to the `result` of `fit`: plain data, keys with their units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from foretell.core.forecast import Forecast
from foretell.cost.overheads import calibration
from foretell.plan import Launch
from foretell.plan.advice import Suggestion
from foretell.plan.inverse import Answer

__all__ = ["STAGED", "result_of", "shares"]

_ELSEWHERE = ("notes", "assumed", "sources", "suggestions")
"""Fields of a forecast that stand elsewhere in the object."""
STAGED = ("cnn", "diffusion")
"""Families whose trunk need not be one stack of layers."""


def result_of(
    launch: Launch,
    forecast: Forecast,
    suggestions: Sequence[Suggestion] = (),
    answer: Answer | None = None,
    assumed: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the answer as plain data; the schema `report/schemas/fit.json` describes it."""
    made = {key: value for key, value in forecast.to_dict().items() if key not in _ELSEWHERE}
    model = launch.workload
    return {
        "model": model.name,
        "parameters": model.parameters,
        "layers": None if model.architecture.family in STAGED else model.architecture.layers,
        "gpu": launch.hardware.name,
        **_whole(made),
        "interval_basis": interval_basis(forecast.regime),
        "assumed": list(assumed),
        "suggestions": [suggestion.to_dict() for suggestion in suggestions],
        "inverse": None if answer is None else _inverse(answer),
    }


def _whole(made: dict[str, Any]) -> dict[str, Any]:
    """Return the answer with whole bytes, terms that sum to their total, and a probability of four digits."""
    out: dict[str, Any] = _integers(made)
    out["breakdown"] = shares(made["breakdown"], out["total_bytes"])
    out["host"] = {name: round(size) for name, size in made["host"].items()}
    out["p_oom"] = round(made["p_oom"], 4)
    return out


def _integers(value: Any, name: str = "") -> Any:  # a tree of anything
    """Round what is named as bytes."""
    if isinstance(value, dict):
        return {key: _integers(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_integers(item, name) for item in value]
    return round(value) if isinstance(value, float) and name.endswith("_bytes") else value


def shares(terms: Mapping[str, float], total: int) -> dict[str, int]:
    """Round terms to whole numbers that sum to their rounded total: the largest remainders are rounded up.

    >>> shares({"a": 1.4, "b": 1.4, "c": 0.2}, 3)
    {'a': 2, 'b': 1, 'c': 0}
    """
    out = {name: math.floor(size) for name, size in terms.items()}
    left = total - sum(out.values())
    ranked = sorted(terms, key=lambda name: out[name] - terms[name])
    for name in ranked[: max(0, left)]:
        out[name] += 1
    return out


def interval_basis(regime: str) -> str:
    """Say where an interval comes from: a regime is named ``[framework/]level[-linear][/confidence]``."""
    name = regime.removesuffix(" (prior)")
    rows = calibration()["regimes"].get(name, {}).get("rows", 0)
    if not rows or name != regime:
        return "90 %, set from literature (no measured runs of this kind yet)"
    if name.startswith("process-elsewhere"):
        return f"90 % of {rows} measured runs of other set-ups, widened (process memory of this framework: no runs yet; {name})"
    parts = name.split("/")
    whose = f"with {parts[0]}" if not parts[0].startswith(("allocated", "reserved", "process")) else "of all frameworks"
    return f"90 % of {rows} measured runs {whose} ({name})"


def _inverse(answer: Answer) -> dict[str, Any]:
    """Return the answer to an inverse question."""
    return {
        "question": answer.question,
        "value": answer.value,
        "next_value": answer.next_value,
        "next_verdict": answer.next_verdict,
        "limited_by": answer.limited_by,
        "closest_value": answer.closest_value,
        "closest_verdict": answer.closest_verdict,
        "forecasts": answer.asked,
    }
