"""The exception tree: one clear message each, and the JSON form."""

from __future__ import annotations

import json
import math
import pickle
import re

import pytest

from foretell import errors
from foretell.errors import CatalogError, ForetellError, InfeasibleError, InputError

KEYS = ["kind", "field", "value", "allowed", "where", "hint", "message"]


def test_an_input_error_says_everything_in_one_line_and_as_data() -> None:
    error = InputError("must divide 32 heads", field="tp_size", value=3, allowed=[1, 2], where="a.yaml:7", hint="Try 2")
    message = "a.yaml:7: tp_size=3 must divide 32 heads; allowed: 1, 2. Try 2"
    assert str(error) == message
    assert error.to_dict() == {
        "kind": "input",
        "field": "tp_size",
        "value": 3,
        "allowed": [1, 2],
        "where": "a.yaml:7",
        "hint": "Try 2",
        "message": message,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, 10**30, "x" * 10**6, b"\xff", object(), [1] * 10**5, True])
def test_any_value_gives_a_short_message_and_strict_json(value: object) -> None:
    error = InputError("is no good", field="size", value=value)
    assert len(str(error)) < 300
    data = json.loads(json.dumps(error.to_dict(), allow_nan=False))
    assert list(data) == KEYS
    assert data["message"] == str(error)


def test_catalog_error_lists_the_nearest_names_first() -> None:
    error = CatalogError.unknown("hardware", "H10", ["t4", "a100", "h100"])
    assert error.allowed == ["h100", "a100"]
    assert str(error) == "hardware='H10' is not in the catalog; nearest: h100, a100"
    assert str(CatalogError.unknown("hardware", "zzzz", ["t4"])) == "hardware='zzzz' is not in the catalog"


def test_infeasible_is_also_called_oom_and_ends_with_exit_code_1() -> None:
    error = InfeasibleError("needs 90 GB of 80 GB", required_bytes=90e9, available_bytes=80e9)
    assert errors.OOMError is InfeasibleError
    assert (error.exit_code, InputError.exit_code) == (1, 2)
    assert error.to_dict()["value"] == 90e9
    assert not isinstance(error, InputError)


def test_errors_cross_process_borders() -> None:
    for error in (
        InputError("is bad", field="tp", value=3, allowed=[1], where="a", hint="b"),
        CatalogError.unknown("hardware", "h10", ["h100"]),
        errors.ExtraError.missing("trace", "foretell trace"),
        InfeasibleError("no", required_bytes=2.0, available_bytes=1.0),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own bytes
        assert type(again) is type(error)
        assert again.to_dict() == error.to_dict()


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__ or ""))
    real = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ForetellError) and name not in {"ForetellError", "OOMError"}
    }
    assert drawn == real
