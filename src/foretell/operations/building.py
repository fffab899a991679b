"""Power and water usage effectiveness of buildings: ranges over what operators and surveys report, by year.

Fleets of the largest operators report a PUE of 1.08 to 1.18, a survey of all kinds of buildings 1.54 to 1.58, and neither stands
for the other. The values stand in `catalog/data/operations/building.json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from foretell.errors import InputError
from foretell.operations._data import data, sources
from foretell.operations.ranges import Range, merged
from foretell.validation import choice

__all__ = ["OPERATORS", "operator_id", "pue_range", "reported", "wue_range"]

OPERATORS: Final = ("google", "meta", "aws", "microsoft", "public-cloud", "survey", "on-prem")
"""Whose figures are known: four operators' fleets, two averages of IDC, the survey of the Uptime Institute."""
_RECENT: Final = 5
"""Years before the newest value of an operator within which its values still count."""


def pue_range(operator: str | None = None) -> Range:
    """Return the PUE (ISO/IEC 30134-2: energy of the building over that of its IT) of an operator, or of a building nobody named.

    Of an operator: its values of the five years up to its newest, which is the point. Of an unknown building: from the best fleet
    of a large operator (1.08) to the newest mean of the survey (1.54), with the mean of public clouds (1.25) as the point, since
    rented accelerators stand in a cloud more often than in a building of the largest four or in one's own.

    >>> google = pue_range("google")
    >>> google.low, google.point, google.high
    (1.09, 1.09, 1.1)
    >>> anyone = pue_range()
    >>> anyone.low, anyone.point, anyone.high
    (1.08, 1.25, 1.54)
    """
    if operator is not None:
        return _of("pue", operator)
    fleets = [_of("pue", name) for name in _class("hyperscale")]
    middle, survey = _of("pue", "public-cloud"), _of("pue", "survey")
    note = (
        "building not named: from the best fleet of a large operator to the newest survey, with the mean of public clouds as the"
        " point; name the operator, or give the PUE"
    )
    known = merged(*(one.sources for one in (*fleets, middle, survey)))
    return Range(min(one.low for one in fleets), middle.point, survey.point, "", (note,), known)


def wue_range(operator: str | None = None) -> Range:
    """Return the WUE (ISO/IEC 30134-9), litres on site for each kWh of *IT* energy.

    Of an unknown building: over the fleets of the large operators, whose geometric mean is the point: they differ eightfold with
    climate and cooling. Water of the power stations is not in it.

    >>> anyone = wue_range()
    >>> anyone.low, round(anyone.point, 3), anyone.high
    (0.15, 0.332, 1.15)
    """
    if operator is not None:
        return _of("wue", operator)
    fleets = [_of("wue", name) for name in _class("hyperscale")]
    point = math.exp(math.fsum(math.log(one.point) for one in fleets) / len(fleets))
    note = (
        "building not named: over the fleets of large operators, their geometric mean as the point; it goes with climate and"
        " cooling: name the operator, or give the WUE"
    )
    ends = min(one.low for one in fleets), max(one.high for one in fleets)
    return Range(ends[0], point, ends[1], "L/kWh", (note,), merged(*(one.sources for one in fleets)))


def reported(what: str, operator: str) -> bool:
    """Whether an operator's PUE ("pue") or WUE ("wue") is known.

    >>> reported("pue", "survey"), reported("wue", "survey")
    (True, False)
    """
    name = operator_id(operator)
    return any(row["operator"] == name for row in data("building")[what])


def _class(name: str) -> list[str]:
    """Return the operators of a class."""
    return [operator for operator, row in data("building")["operators"].items() if row["class"] == name]


def _of(what: str, operator: str) -> Range:
    """Return the range of one operator's recent values."""
    name = operator_id(operator)
    rows: list[Mapping[str, Any]] = [row for row in data("building")[what] if row["operator"] == name]
    if not rows:
        allowed = sorted({row["operator"] for row in data("building")[what]})
        raise InputError(
            f"has no known {what.upper()}", field="operator", value=operator, allowed=allowed, hint=f"Or give the {what.upper()}"
        )
    newest = max(rows, key=lambda row: row["year"])
    counted = [row for row in rows if row["year"] > newest["year"] - _RECENT]
    values = [row["value"] for row in counted]
    notes = [f"{name} {row['year']}: {row['value']:g}" + (f", {row['note']}" if "note" in row else "") for row in counted]
    if len(counted) == 1:
        notes.append("a single figure: its spread is not known")
    known = sources("building", merged(row["source"] for row in counted))
    return Range(min(values), newest["value"], max(values), "" if what == "pue" else "L/kWh", tuple(notes), known)


def operator_id(operator: str) -> str:
    """Return the operator that a name or another spelling of it means, or raise an InputError with the known ones.

    >>> operator_id("Amazon"), operator_id("Google Cloud")
    ('aws', 'google')
    """
    known = data("building")["operators"]
    text = operator.strip().casefold().replace(" ", "-").replace("_", "-") if isinstance(operator, str) else operator
    for name, row in known.items():
        if text in row["aliases"]:
            return str(name)
    return choice(text, "operator", OPERATORS)
