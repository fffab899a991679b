"""Checks at the door."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretell.errors import InputError
from foretell.validation import MAX_DEGREE, choice, flag, number, positive_int

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
)


@pytest.mark.parametrize("value", [8, 8.0, np.int64(8), np.float64(8.0)])
def test_whole_numbers_come_out_as_int(value: object) -> None:
    made = positive_int(value, "tp_size")
    assert (type(made), made) == (int, 8)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        2.5,
        True,
        False,
        np.bool_(1),
        math.nan,
        math.inf,
        10**30,
        1e30,
        MAX_DEGREE + 1,
        "8",
        None,
        [8],
        8j,
    ],
)
def test_everything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(InputError) as caught:
        positive_int(value, "tp_size", where="run.yaml:2")
    assert caught.value.field == "tp_size"
    assert caught.value.allowed == "1 to 1000000000"
    assert str(caught.value).startswith("run.yaml:2: tp_size")


@given(ANYTHING, st.integers(0, 5), st.integers(6, 10**9))
def test_what_comes_out_is_in_range(value: object, low: int, high: int) -> None:
    try:
        made = positive_int(value, "x", minimum=low, maximum=high)
    except InputError:
        return
    assert low <= made <= high
    assert made == value


@given(ANYTHING)
def test_numbers_are_finite_and_in_range(value: object) -> None:
    try:
        made = number(value, "x", maximum=1.0)
    except InputError:
        return
    assert 0.0 <= made <= 1.0


@pytest.mark.parametrize("value", [0, 1, "no", None])
def test_only_booleans_are_flags(value: object) -> None:
    assert flag(False, "x") is False
    with pytest.raises(InputError):
        flag(value, "x")


def test_choice_repeats_the_value_and_offers_the_nearest() -> None:
    assert choice("full", "recompute", ["none", "full"]) == "full"
    with pytest.raises(InputError, match="recompute='ful' is not known; allowed: none, full. Did you mean full"):
        choice("ful", "recompute", ["none", "full"])
    with pytest.raises(InputError):
        choice(None, "recompute", ["none"])
