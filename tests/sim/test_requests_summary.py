"""Mean lengths of a file of requests."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.sim.requests_summary import summarize

ROWS = [(100, 10, 0), (300, 30, 50), (200, 80, 100)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "lengths.csv"
    lines = ["input_tokens,output_tokens,cached_tokens", *(",".join(map(str, row)) for row in ROWS)]
    out.write_text("\n".join(lines) + "\n")
    return out


def test_arrivals_may_be_missing(path: Path) -> None:
    found = summarize(path)
    assert (found.requests, found.inputs, found.outputs, found.cached) == (3, 200, 40, 50)
    assert (found.longest, found.longest_output) == (330, 80)
    assert found.input_cv == pytest.approx(statistics.pstdev([100, 300, 200]) / 200)
    assert found.output_cv == pytest.approx(statistics.pstdev([10, 30, 80]) / 40)


def test_only_the_first_ones(path: Path) -> None:
    assert summarize(path, requests=1).inputs == 100
    assert summarize(path, requests=1).input_cv == 0


def test_a_bad_line_is_named(path: Path) -> None:
    path.write_text(path.read_text() + "5,0,0\n")
    with pytest.raises(InputError, match=r"lengths\.csv:5"):
        summarize(path)
