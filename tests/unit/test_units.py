"""Quantities at the door."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretell as ft
from foretell.errors import InputError
from foretell.units import BASE_UNITS, fmt_bytes, fmt_gb, parse, quantity


@pytest.mark.parametrize(
    ("text", "unit", "expected"),
    [
        ("80 GB", "byte", 80e9),
        ("80GiB", "byte", 80 * 2**30),
        ("1,024 KiB", "byte", 2**20),
        ("8 Gbit", "byte", 1e9),
        ("100 GB/s", "byte/s", 100e9),
        ("400 Gb/s", "byte/s", 50e9),
        ("400Gbps", "byte/s", 50e9),
        ("3.35 TB / s", "byte/s", 3.35e12),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("989 TFLOPS", "FLOP/s", 989e12),
        ("1979 TOPS", "FLOP/s", 1979e12),
        ("6e21 FLOP", "FLOP", 6e21),
        ("2 h", "s", 7200.0),
        ("250 us", "s", 250e-6),
        ("1.5 days", "s", 129600.0),
        ("350 W", "W", 350.0),
        ("0.7 kW", "W", 700.0),
        ("2 kWh", "J", 7.2e6),
        ("2e12", "byte/s", 2e12),
        (80, "byte", 80.0),
        (np.float32(2.5), "s", 2.5),
        (0, "byte", 0.0),
    ],
)
def test_what_is_taken(text: object, unit: str, expected: float) -> None:
    assert parse(text, unit, "x") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "unit", "says"),
    [
        ("80 gb", "byte", "Did you mean"),
        ("80 G", "byte", "Did you mean GB?"),
        ("80 GB", "byte/s", "is a size, not a data rate"),
        ("100 GB/s", "byte", "is a data rate, not a size"),
        ("2 h", "W", "is a time, not a power"),
        ("5 parsecs", "s", "unknown unit"),
        ("5 byte/byte", "byte/s", "unknown unit"),
        ("eighty", "byte", "is not a number"),
        ("", "byte", "is not a number"),
        ("9" * 10**6, "byte", "is not a number"),
        ("1e999", "byte", "must be finite"),
        ("-1 GB", "byte", "not negative"),
        (-1, "s", "not negative"),
        (math.nan, "s", "must be finite"),
        (math.inf, "s", "must be finite"),
        (10**400, "byte", "can be used"),
        (True, "byte", "not a number"),
        (None, "byte", "not a number"),
        ([80], "byte", "not a number"),
    ],
)
def test_what_is_refused_with_its_reason(value: object, unit: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        parse(value, unit, "memory", where="a.yaml:3")
    assert str(caught.value).startswith("a.yaml:3: memory")
    assert caught.value.allowed


@given(st.text(max_size=80))
def test_no_text_gives_anything_but_a_number_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        assert 0 <= parse(text, "byte", "x") < math.inf


@given(st.floats(min_value=0, max_value=1e30))
def test_a_number_written_out_reads_back_as_itself(amount: float) -> None:
    assert parse(amount, "s", "x") == parse(repr(amount), "s", "x") == parse(f"{amount!r} s", "s", "x") == amount


@pytest.mark.parametrize("unit", BASE_UNITS)
def test_a_pint_quantity_goes_out_and_comes_back(unit: str) -> None:
    made = quantity(3.0, unit)
    assert isinstance(made, ft.Quantity)
    assert parse(made, unit, "x") == pytest.approx(3.0)


def test_pint_quantities_of_another_registry_and_of_wrong_dimension() -> None:
    theirs: pint.UnitRegistry[Any] = pint.UnitRegistry()
    assert parse(theirs.Quantity(80, "GiB"), "byte", "x") == 80 * 2**30
    assert parse(theirs.Quantity(2, "hour"), "s", "x") == 7200
    for amount, unit in ((theirs.Quantity(5, "radian"), "byte"), (theirs.Quantity(5, "meter"), "s")):
        with pytest.raises(InputError, match="is not a"):
            parse(amount, unit, "x")


def test_gib_and_gb_are_never_mixed_up() -> None:
    assert fmt_bytes(80 * 2**30) == "80.00 GiB"
    assert fmt_gb(80 * 2**30) == "85.90 GB"
    assert (fmt_bytes(None), fmt_gb(None)) == ("unknown", "unknown")
