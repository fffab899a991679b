"""Runs of public threads: foretell says what docs/check-cases.md documents, right or wrong.

An answer that changes is no failure of its own: run ``python scripts/check_cases.py``, and look at what it writes.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CONTENT = json.loads((ROOT / "tests" / "check_cases" / "cases.json").read_text("utf-8"))
RUNS = CONTENT["runs"]


def script() -> ModuleType:
    """scripts/check_cases.py."""
    spec = importlib.util.spec_from_file_location("check_cases", ROOT / "scripts" / "check_cases.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def near(one: float | None, other: float | None) -> bool:
    """Whether two values are one; a new calibration may move them by little."""
    return one == other if one is None or other is None else one == pytest.approx(other, rel=0.02)


CASES = script()


@pytest.mark.parametrize("case", RUNS, ids=[case["id"] for case in RUNS])
def test_the_answer_is_the_documented_one(case: dict[str, Any]) -> None:
    said, written = CASES.found(case), case["found"]
    assert said["verdict"] == written["verdict"]
    assert all(near(one, other) for one, other in zip(said["values"], written["values"], strict=True))
    assert near(said.get("host_bytes"), written.get("host_bytes"))
    assert said.get("log") == written.get("log")
    now = case | {"found": said}
    assert (CASES.right(now), CASES.numbers(now)) == (CASES.right(case), CASES.numbers(case))


def test_the_page_says_what_was_found() -> None:
    assert (ROOT / "docs" / "check-cases.md").read_text("utf-8") == CASES.page(CONTENT)


def test_a_case_that_foretell_gets_wrong_has_its_reason() -> None:
    wrong = [case["id"] for case in RUNS if CASES.right(case) is False or not all(CASES.numbers(case))]
    assert not [case["id"] for case in RUNS if case["id"] in wrong and not (case["doubt"] or case["explanation"])]


def test_what_a_thread_leaves_out_is_named_where_a_case_is_counted() -> None:
    names = [case["id"] for case in RUNS] + [row["id"] for row in CONTENT["not_asked"]]
    assert len(names) == len(set(names))
    assert all(row["source"].startswith("https://github.com/") for row in [*RUNS, *CONTENT["not_asked"]])
    files = {path.parent.name for path in CASES.CASES.glob("*/*")}
    assert files <= {case["id"].split("-")[0] for case in RUNS}
