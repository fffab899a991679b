"""PUE and WUE by operator, and of a building that nobody named."""

from __future__ import annotations

import pytest

from foretell.errors import InputError
from foretell.operations._data import data
from foretell.operations.building import OPERATORS, pue_range, wue_range


@pytest.mark.parametrize(
    ("operator", "low", "point", "high"),
    [
        ("google", 1.09, 1.09, 1.10),
        ("meta", 1.08, 1.08, 1.09),
        ("aws", 1.14, 1.14, 1.15),
        ("microsoft", 1.17, 1.17, 1.18),
        ("survey", 1.54, 1.54, 1.58),  # 2.5 of 2007 and 1.65 of 2014 count no more
        ("public-cloud", 1.25, 1.25, 1.25),
        ("on-prem", 1.63, 1.63, 1.63),
    ],
)
def test_an_operator_has_its_recent_pue(operator: str, low: float, point: float, high: float) -> None:
    pue = pue_range(operator)
    assert (pue.low, pue.point, pue.high) == (low, point, high)
    assert pue.sources
    assert pue.notes


def test_a_single_figure_says_so() -> None:
    assert "a single figure" in pue_range("on-prem").notes[-1]
    assert "a single figure" in wue_range("aws").notes[-1]


def test_an_unnamed_building_lies_between_the_best_fleet_and_the_survey() -> None:
    pue = pue_range()
    assert (pue.low, pue.point, pue.high) == (pue_range("meta").low, 1.25, 1.54)
    assert all(pue_range(name).point in pue for name in ("google", "meta", "aws", "microsoft", "survey"))
    assert "name the operator" in pue.notes[0]
    wue = wue_range()
    assert wue.unit == "L/kWh"
    assert wue.point == pytest.approx((0.15 * 0.27 * 0.26 * 1.15) ** 0.25)
    assert all(wue_range(name).point in wue for name in ("google", "meta", "aws", "microsoft"))


@pytest.mark.parametrize(
    ("other", "name"), [("Azure", "microsoft"), ("GCP", "google"), (" amazon ", "aws"), ("on premises", "on-prem")]
)
def test_other_spellings_are_taken(other: str, name: str) -> None:
    assert pue_range(other) == pue_range(name)


def test_an_unknown_operator_and_an_unknown_figure_are_refused() -> None:
    with pytest.raises(InputError, match="operator='oracle' is not known; allowed: google, meta"):
        pue_range("oracle")
    with pytest.raises(InputError, match="operator='on-prem' has no known WUE; allowed: aws, google, meta, microsoft"):
        wue_range("on-prem")
    with pytest.raises(InputError, match="operator=3"):
        pue_range(3)  # type: ignore[arg-type]


def test_the_file_names_its_operators_and_sources() -> None:
    building = data("building")
    assert tuple(building["operators"]) == OPERATORS
    rows = [*building["pue"], *building["wue"]]
    assert {row["source"] for row in rows} == set(building["sources"])
    assert {row["operator"] for row in rows} == set(OPERATORS)
    assert all(row["value"] >= 1.0 for row in building["pue"])
