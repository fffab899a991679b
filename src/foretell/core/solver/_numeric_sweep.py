"""Sweeps of solvers whose answer is arithmetic on plain numbers: the same formulas, arrays in the place of numbers.

A setting is a number, checked one value at a time and then an array, or it is walked through (a name, an optimizer): the formulas
see one value of it at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foretell.core.solver._axes import Axes
from foretell.core.solver._rows import Reasons, check_axes, parts
from foretell.core.solver._table import Table
from foretell.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Numeric", "first"]

_STEP: Final = 100_000
"""Rows that are answered together, which bounds the memory."""


@dataclass(frozen=True)
class Numeric:
    """What a solver's sweep needs to know."""

    checks: Mapping[str, Callable[[Any], Any]]
    """Numeric setting -> what takes it as it may come and gives the plain number (NaN for an allowed None)."""
    defaults: Mapping[str, Any]
    """Settings that may be left out."""
    columns: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Settings (arrays, and single values of those that are walked) -> columns, `feasible` among them; InputError for a kind."""
    by: str
    """Column to choose by."""
    unfit: str
    """Reason of the rows that are not feasible."""
    walked: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Numeric settings of which those that are given, and those that are left open, are answered apart."""
    rules: Callable[[Mapping[str, Any]], Iterable[tuple[Any, str]]] = lambda _settings: ()
    """Settings of a kind -> (where they contradict one another, why that means nothing)."""
    shown: Callable[[str, Any, float], Any] = field(default=lambda _name, value, _number: value)
    """(setting, value given, its plain number) -> the value that the table shows."""

    def sweep(self, given: Mapping[str, Any], *, product: bool) -> Table:
        """Return the table of every combination of the axes."""
        known = (*self.checks, *self.walked)
        check_axes(given, known)
        for name in known:
            if name not in given and name not in self.defaults:
                raise InputError("is needed", field=name)
        # Axes asks for a batch, which these questions do not have
        axes = Axes({"batch_size": 1, **{name: _listed(value) for name, value in given.items()}}, product=product, arrays=())
        reasons = Reasons()
        checked = {
            name: reasons.checked(axes.values.get(name, [self.defaults.get(name)]), check) for name, check in self.checks.items()
        }
        n = len(axes)
        reason = np.zeros(n, np.int16)
        columns: dict[str, NDArray[Any]] = {}
        for start in range(0, n, _STEP):
            self._answer(axes, np.arange(start, min(start + _STEP, n)), checked, reasons, reason, columns)
        for name, (values, codes) in checked.items():
            if name in axes.values and not codes.any():
                axes.values[name] = [self.shown(name, *pair) for pair in zip(axes.values[name], values.tolist(), strict=True)]
        return self._table(axes, columns, reason, reasons)

    def _answer(
        self,
        axes: Axes,
        rows: NDArray[Any],
        checked: Mapping[str, tuple[NDArray[Any], NDArray[Any]]],
        reasons: Reasons,
        reason: NDArray[Any],
        columns: dict[str, NDArray[Any]],
    ) -> None:
        """Answer some rows, kind by kind."""
        at = {name: axes.index(name, rows) if name in axes.values else np.zeros(len(rows), np.int64) for name in self.checks}
        for name, (_, codes) in checked.items():
            reason[rows] = np.where(reason[rows] == 0, codes[at[name]], reason[rows])
        kind = np.zeros(len(rows), np.int64)
        for name in self.walked:
            if name in axes.values:
                kind = kind * len(axes.values[name]) + axes.index(name, rows)
        for name in self.kinds:
            if name in axes.values:
                kind = kind * 2 + np.isnan(checked[name][0][at[name]])
        for part in parts(kind):
            first = rows[part[:1]]
            settings: dict[str, Any] = {
                name: axes.values[name][int(axes.index(name, first)[0])] if name in axes.values else self.defaults[name]
                for name in self.walked
            }
            settings |= {name: values[at[name][part]] for name, (values, _) in checked.items()}
            for broken, why in self.rules(settings):
                reason[rows[part]] = np.where((reason[rows[part]] == 0) & broken, reasons.code(why), reason[rows[part]])
            try:
                found = self.columns(settings)
            except InputError as error:
                reason[rows[part]] = np.where(reason[rows[part]] == 0, reasons.code(str(error)), reason[rows[part]])
                continue
            for name, values in found.items():
                if name not in columns:
                    columns[name] = np.zeros(len(axes), bool) if name == "feasible" else np.full(len(axes), np.nan)
                columns[name][rows[part]] = values

    def _table(self, axes: Axes, columns: dict[str, NDArray[Any]], reason: NDArray[Any], reasons: Reasons) -> Table:
        """Return the table of the answers, those of rows that mean nothing left out.

        A column of what was asked stands before one of the answer that has its name: it is the same, or was left open.
        """
        columns = {name: values for name, values in columns.items() if name not in axes.values}
        valid = reason == 0
        feasible = columns.pop("feasible", np.zeros(len(axes), bool)) & valid
        for values in columns.values():
            values[~valid] = np.nan
        columns.setdefault(self.by, np.full(len(axes), np.nan))
        reason[valid & ~feasible] = reasons.code(self.unfit)
        coded = {name: column for name, column in axes.coded() if name != "batch_size"}
        coded["reason"] = (reason, list(reasons))
        return Table(columns | {"valid": valid, "feasible": feasible}, coded, by=self.by)


def first(values: NDArray[Any]) -> float | None:
    """Return one of a kind's values where all are given, None where all are left open: which of the two is the kind."""
    return None if np.isnan(values[0]) else float(values[0])


def _listed(value: Any) -> Any:  # a value or any sequence of values
    """Return a value that is a quantity as one that is not taken for a sequence."""
    return [value] if hasattr(value, "units") and not getattr(value, "ndim", 0) else value
