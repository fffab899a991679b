"""Replay of operations questions: published anchors and reference values beside what the library's formulas give.

A row is right when its value is within the row's own tolerance; a bound (`one_sided`) when the answer is on its side, and a range
when the value lies in it.  Bounds and ranges are reported apart: their distance from the value is no error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foretell.errors import ForetellError
from foretell.evidence.kinds import Kind
from foretell.evidence.operations_answers import ANSWERS
from foretell.evidence.operations_given import OUTPUT, Given
from foretell.evidence.operations_queueing import ANSWERS as QUEUES
from foretell.evidence.reading import labels, plain, read
from foretell.evidence.row_run import Skip
from foretell.evidence.summary import Scored, summary

__all__ = ["KIND", "OperationsScored", "score"]

_SLACK: Final = 1e-9
"""Relative slack of a tolerance: a value printed with ten digits is not refused for the eleventh."""


@dataclass(frozen=True, slots=True)
class OperationsScored(Scored):
    """One question."""

    solver: str = ""
    unit: str = ""
    basis: str = ""
    bound: str = ""
    """lower, upper or inside-predicted-range; empty where the value itself is asked for."""
    tolerance_pct: float = 0.0
    within: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """The contract's row, with what the row allows."""
        about: dict[str, Any] = {"solver": self.solver, "unit": self.unit, "basis": self.basis}
        about |= {"tolerance_pct": self.tolerance_pct, "within_tolerance": self.within}
        return Scored.to_dict(self) | about | ({"bound": self.bound} if self.bound else {})


def score(row: Mapping[str, Any]) -> OperationsScored:
    """Answer one row; one that cannot be answered says why."""
    try:
        return read(_scored, row)
    except Skip as reason:
        return _row(row, skipped=str(reason))
    except ForetellError as error:
        return _row(row, skipped=f"not-modelled: {error}")


def _scored(row: Mapping[str, Any]) -> OperationsScored:
    question, measured = row["question"], row["measured"]
    solver, unit = str(question["solver"]), str(measured["unit"])
    if unit not in OUTPUT:
        raise Skip(f"not-modelled: answers have no unit {unit[:40]!r}")
    found = _answered(solver, question["inputs"])
    scale = OUTPUT[unit]
    low, point, high = (value / scale for value in found) if isinstance(found, tuple) else (None, float(found) / scale, None)
    if not math.isfinite(point):
        raise Skip(f"not-modelled: {solver} has no finite answer here")
    return _row(row, predicted=point, low=low, high=high)


def _answered(solver: str, inputs: Mapping[str, Any]) -> Any:  # a number, or a low end, a point and a high end
    """Return the answer to a question; an input that nothing asks for leaves the row out."""
    if solver in QUEUES:
        return QUEUES[solver](inputs)
    if solver not in ANSWERS:
        raise Skip(f"not-modelled: no formula answers {solver[:80]}")
    given = Given(inputs)
    found = ANSWERS[solver](given)
    if left := given.left():
        raise Skip(f"not-modelled: {solver} has no use for {', '.join(left)[:120]}")
    return found


def _row(row: Mapping[str, Any], **answer: Any) -> OperationsScored:
    """Return the scored row, with the verdict on its tolerance."""
    measured, question = row.get("measured"), row.get("question")
    measured = measured if isinstance(measured, Mapping) else {}
    question = question if isinstance(question, Mapping) else {}
    value, allowed = plain(measured.get("value")), plain(measured.get("tolerance_pct")) or 0.0
    bound = str(measured.get("one_sided") or "")
    within = None
    if answer.get("predicted") is not None and value is not None:
        room = abs(value) * (allowed / 100.0 + _SLACK) + (plain(measured.get("tolerance_abs")) or 0.0)
        within = _within(value, answer, bound, room)
    about = labels(row) | {"confidence": {"A": 2, "B": 1}.get(str(row.get("confidence")), 0)}
    return OperationsScored(
        **about,
        framework=str(row.get("topic"))[:40],
        metric=str(measured.get("name"))[:60],
        measured=value,
        solver=str(question.get("solver"))[:80],
        unit=str(measured.get("unit"))[:40],
        basis=str(row.get("basis"))[:60],
        bound=bound[:40],
        tolerance_pct=allowed,
        within=within,
        **answer,
    )


def _within(value: float, answer: Mapping[str, Any], bound: str, room: float) -> bool:
    """Whether an answer is as close as the row asks for."""
    point, low, high = answer["predicted"], answer.get("low"), answer.get("high")
    if bound == "inside-predicted-range":
        return low is not None and high is not None and low - room <= value <= high + room
    if bound == "lower":
        return bool(point >= value - room)
    if bound == "upper":
        return bool(point <= value + room)
    return bool(abs(point - value) <= room)


def _extra(rows: Sequence[Scored]) -> dict[str, Any]:
    """Return how many answers are within their rows' tolerance, those that are not, and the bounds apart."""
    judged = [row for row in rows if isinstance(row, OperationsScored) and row.within is not None]
    bounds = [row for row in judged if row.bound]
    wrong = [row for row in judged if not row.within]
    return {
        "judged": len(judged),
        "within_tolerance": len(judged) - len(wrong),
        "within_tolerance_pct": round(100.0 * (len(judged) - len(wrong)) / len(judged), 3) if judged else None,
        "outside": [f"{row.id} ({row.solver}): {row.predicted:.6g} for {row.measured:.6g} {row.unit}" for row in wrong],
        "apart": {"bounds and ranges": summary(bounds)} if bounds else {},
    }


KIND = Kind(
    score=score,
    groups={
        "by_source": lambda r: r.source,
        "by_metric": lambda r: r.metric,
        "by_framework": lambda r: r.framework,
        "by_kind": lambda r: r.solver if isinstance(r, OperationsScored) else "",
    },
    in_bars=lambda r: not (isinstance(r, OperationsScored) and r.bound),
    extra=_extra,
)
