"""Rows of a sweep, answered kind by kind: what the sweeps of small solvers share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretell.core.solver._table import Table
from foretell.errors import InputError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from foretell.core.solver._axes import Axes

__all__ = ["Answer", "Reasons", "check_axes", "parts", "tabulate"]

Answer = Callable[[Mapping[str, Any], "NDArray[Any]"], Mapping[str, Any]]
"""Settings of a kind and its rows -> column name -> values; `reason` holds codes of `Reasons`."""


class Reasons(list[str]):
    """Reasons that rows cannot run, by code; 0 is none, 1 that the row does not fit."""

    def __init__(self) -> None:
        """Start with the two that every sweep has."""
        super().__init__(["", "does not fit"])

    def code(self, text: str) -> int:
        """Return the code of a reason."""
        if text not in self:
            self.append(text)
        return self.index(text)

    def first(self, n: int, rules: Collection[tuple[Any, str]]) -> NDArray[Any]:
        """Return the code of the first rule that each of `n` rows breaks; a rule is where it is broken, and why."""
        out = np.zeros(n, np.int16)
        for where, why in rules:
            if np.any(where):
                out[(out == 0) & where] = self.code(why)
        return out

    def checked(self, values: Sequence[Any], check: Callable[[Any], float]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the plain numbers of an axis, and the code of the reason why each is none (0 where it is one)."""
        numbers, codes = np.ones(len(values)), np.zeros(len(values), np.int16)
        for i, value in enumerate(values):
            try:
                numbers[i] = check(value)
            except InputError as error:
                codes[i] = self.code(str(error))
        return numbers, codes


def check_axes(axes: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse an axis that the solver does not have."""
    for name, value in axes.items():
        if name not in known:
            raise InputError("is not a setting", field=name, value=value, allowed=nearest(name, known) or list(known))


def parts(key: NDArray[Any]) -> list[NDArray[Any]]:
    """Return the places of each value of a key."""
    if len(key) and (key[0] == key).all():
        return [np.arange(len(key))]
    order = np.argsort(key, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(key[order])) + 1))


def tabulate(
    axes: Axes, answer: Answer, defaults: Mapping[str, Any], reasons: Reasons, *, by: str, texts: Mapping[str, list[str]]
) -> Table:
    """Answer every row, kind by kind.  ``texts``: columns that hold codes of one of these texts."""
    n = len(axes)
    rows = np.arange(n)
    columns: dict[str, NDArray[Any]] = {}
    reason, feasible = np.zeros(n, np.int16), np.zeros(n, bool)
    for part in parts(axes.codes(rows)):
        settings = dict(defaults) | axes.walked(int(axes.codes(part[:1])[0]))
        try:
            found = dict(answer(settings, part))
        except InputError as error:
            reason[part] = reasons.code(str(error))
            continue
        why = found.pop("reason")
        reason[part] = why
        feasible[part] = found.pop("feasible", True) & (why == 0)
        for name, values in found.items():
            if name not in columns:
                columns[name] = np.full(n, np.nan) if name not in texts else np.zeros(n, np.int8)
            columns[name][part] = np.where(why == 0, values, np.nan) if name not in texts else values
    valid = reason == 0
    reason[valid & ~feasible] = 1
    coded: dict[str, tuple[NDArray[Any], list[Any]]] = dict(axes.coded())
    for name, words in texts.items():
        coded[name] = (columns.pop(name, np.zeros(n, np.int8)), words)
    coded["reason"] = (reason, list(reasons))
    columns.setdefault(by, np.full(n, np.nan))
    return Table(columns | {"valid": valid, "feasible": feasible}, coded, by=by)
