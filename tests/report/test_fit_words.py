"""Words of a fit report."""

import pytest

from foretell.cost.overheads import calibration
from foretell.report.fit import interval_basis


@pytest.mark.parametrize(
    ("regime", "words"),
    [
        ("peft/process/3", "runs with peft (peft/process/3)"),
        ("process-elsewhere/3", "runs of other set-ups, widened"),
        ("reserved/3", "runs of all frameworks (reserved/3)"),
        ("not-cuda", "set from literature"),
        ("peft/process/3 (prior)", "set from literature"),
    ],
)
def test_an_interval_says_whose_runs_it_rests_on(regime: str, words: str) -> None:
    assert words in interval_basis(regime)


def test_an_interval_counts_its_runs() -> None:
    assert f" {calibration()['regimes']['reserved/3']['rows']} measured" in interval_basis("reserved/3")
