"""A training row with what was predicted for it, and what it is compared by: work, group, kind and split."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foretell.evidence.ranking import Choice
from foretell.evidence.summary import Scored

__all__ = ["TrainingScored", "choices"]


@dataclass(frozen=True, slots=True)
class TrainingScored(Scored):
    """One measured step."""

    split: str = ""
    """``drift`` and ``replicate`` are reported apart."""
    kind: str = ""
    """dense or experts."""
    regime: str = ""
    """Whose residuals the interval was set from."""
    group: tuple[str, ...] = ()
    """Runs that compete have the same: source, model, accelerator, their number, global batch, precision."""
    generation: str = ""
    """Of the accelerator, with the format of its products: rows of a constant share of the peak."""
    ideal_s: float | None = None
    """Seconds of the model's own FLOP (causal, nothing computed again) at the peak of all accelerators."""
    formula_s: float | None = None
    """Seconds by the plain formula with one efficiency (:mod:`foretell.evidence.baselines`)."""

    @property
    def measured_mfu(self) -> float | None:
        """Share of the peak that the run reached."""
        return self.ideal_s / self.measured if self.ideal_s and self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """The contract's row, and what it is grouped by."""
        row = Scored.to_dict(self)
        row |= {"kind": self.kind, "split": self.split, "gpu": self.gpu, "regime": self.regime}
        if self.ideal_s and self.predicted and self.measured:
            row |= {"mfu": self.ideal_s / self.predicted, "measured_mfu": self.ideal_s / self.measured}
        return row


def choices(rows: Iterable[TrainingScored]) -> list[Choice]:
    """Rows that were predicted, as runs that compete within their groups."""
    return [Choice(r.group, r.measured, r.predicted) for r in rows if r.predicted is not None and r.measured is not None]
