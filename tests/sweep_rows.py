"""Rows of a sweep beside the answers of `solve`, and texts: what the tests of the operations solvers share."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import foretell as ft

TODAY = dt.date(2026, 11, 30)


def agree(model: Any, args: Sequence[Any], axes: Mapping[str, Any], *, within: float = 1e-9) -> int:
    """Check every row against `solve`, the refused ones by their reason; return how many were answered."""
    table = model.sweep(*args, **axes)
    answered = 0
    for i in range(len(table)):
        row = table.row(i)
        asked = {name: row[name] for name in axes}
        refused: ft.InputError | None = None
        try:
            one = model.solve(*args, **asked)
        except ft.InputError as error:
            refused = error
        if refused is not None:
            assert (row["valid"], row["feasible"]) == (False, False), (asked, str(refused))
            named = row["reason"].split("=")[0].split()[0]  # a row that is wrong twice may name either
            assert named != refused.field or refused.problem in row["reason"], (row["reason"], str(refused))
            continue
        answered += 1
        assert row["valid"], (asked, row["reason"])
        assert row["feasible"] == getattr(one, "feasible", True), asked
        assert bool(row["reason"]) != row["feasible"], asked
        for name in table.columns:
            if name in one and name not in axes and name not in ("valid", "feasible", "reason"):
                same(row[name], getattr(one, name), (name, asked), within)
    return answered


def same(found: float, expected: float | None, what: object, within: float) -> None:
    """Check one number, NaN in a table for None."""
    if expected is None:
        assert found != found, what  # noqa: PLR0124  # NaN
    else:
        assert found == pytest.approx(expected, rel=within, abs=1e-290), what


def unsaid(text: str) -> bool:
    """Whether a text holds the name of a number that is none."""
    return re.search(r"\b(nan|none|inf)\b", text.casefold()) is not None
