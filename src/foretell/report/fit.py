"""From a forecast to the `result` of `fit`: plain data, keys with their units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretell.core.forecast import Forecast
from foretell.cost.overheads import calibration
from foretell.plan import Launch
from foretell.plan.advice import Suggestion
from foretell.plan.inverse import Answer

__all__ = ["result_of"]

_ELSEWHERE = ("notes", "assumed", "sources", "suggestions")
"""Fields of a forecast that stand elsewhere in the object."""


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
        "gpu": launch.hardware.name,
        **made,
        "interval_basis": interval_basis(forecast.regime),
        "assumed": list(assumed),
        "suggestions": [suggestion.to_dict() for suggestion in suggestions],
        "inverse": None if answer is None else _inverse(answer),
    }


def interval_basis(regime: str) -> str:
    """Say where an interval comes from."""
    name = regime.removesuffix(" (prior)")
    rows = calibration()["regimes"].get(name, {}).get("rows", 0)
    if not rows or name != regime:
        return "90 %, set from literature (no measured runs of this kind yet)"
    return f"90 % of {rows} measured runs of this kind ({name})"


def _inverse(answer: Answer) -> dict[str, Any]:
    """Return the answer to an inverse question."""
    return {
        "question": answer.question,
        "value": answer.value,
        "next_value": answer.next_value,
        "next_verdict": answer.next_verdict,
        "forecasts": answer.asked,
    }
