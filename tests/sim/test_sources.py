"""Where requests come from: means and CVs of what is drawn, seeds, ends, and what is refused."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean, pstdev
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.sim.arrivals import ClosedLoop, Lengths, Offline, OnOff, OpenLoop
from sim.sim_costs import dice

FIXED = Lengths(512, 128)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_an_open_loop_has_its_rate_and_burstiness(cv: float) -> None:
    times = [r.arrival_s for r in OpenLoop(20.0, FIXED, cv=cv, requests=40_000).stream(1)]
    gaps = [b - a for a, b in pairwise([0.0, *times])]
    assert fmean(gaps) == pytest.approx(0.05, rel=0.05)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_a_constant_pace_is_exact() -> None:
    assert [r.arrival_s for r in OpenLoop(4.0, FIXED, cv=0.0, requests=3).stream(9)] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("law", ["lognormal", "gamma"])
@pytest.mark.parametrize("cv", [0.5, 1.5])
def test_lengths_have_their_mean_and_spread(law: str, cv: float) -> None:
    drawn = list(islice(Lengths(2000, 500, cv, cv / 2, law).pairs(dice(2)), 30_000))
    for column, mean, spread in ((0, 2000, cv), (1, 500, cv / 2)):
        tokens = [one[column] for one in drawn]
        assert min(tokens) >= 1
        assert fmean(tokens) == pytest.approx(mean, rel=0.04)
        assert pstdev(tokens) / fmean(tokens) == pytest.approx(spread, rel=0.08)


def test_lengths_keep_their_bounds() -> None:
    assert all(1 <= i <= 100 and 1 <= o <= 100 for i, o, _ in islice(Lengths(90, 2, 2, 2, longest=100).pairs(dice(0)), 2000))
    assert next(Lengths(100, 1, cached=0.999).pairs(dice(0))) == (100, 1, 99)
    assert next(Lengths(1, 1, cached=0.999).pairs(dice(0))) == (1, 1, 0)


def test_bursts_keep_to_their_time() -> None:
    source = OnOff(peak_per_s=50.0, on_s=2.0, period_s=10.0, lengths=FIXED, requests=20_000)
    times = [r.arrival_s for r in source.stream(3)]
    assert all(time % 10.0 <= 2.0 + 1e-9 for time in times)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(20_000 / 100 * 10, rel=0.03)


def test_between_bursts_the_base_rate_goes_on() -> None:
    source = OnOff(50.0, 2.0, 10.0, FIXED, base_per_s=5.0, requests=20_000)
    times = [r.arrival_s for r in source.stream(4)]
    inside = sum(time % 10.0 <= 2.0 for time in times)
    assert inside / len(times) == pytest.approx(100 / 140, rel=0.02)
    assert times[-1] == pytest.approx(20_000 / 140 * 10, rel=0.03)


def test_equal_seeds_are_equal_and_a_rate_leaves_the_lengths() -> None:
    lengths = Lengths(512, 128, 1.0, 1.0)
    one, again, other, faster = (
        list(OpenLoop(rate, lengths, cv=2.0, requests=50).stream(seed)) for rate, seed in ((2, 7), (2, 7), (2, 8), (4, 7))
    )
    assert one == again
    assert one != other
    assert [r.input_tokens for r in one] == [r.input_tokens for r in faster]
    assert [r.arrival_s for r in one] == pytest.approx([2 * r.arrival_s for r in faster])


def test_sources_know_whether_they_end() -> None:
    assert not OpenLoop(1.0, FIXED).finite
    assert OpenLoop(1.0, FIXED, requests=1).finite
    assert not ClosedLoop(1, FIXED).finite
    assert len(list(Offline(7, FIXED).stream(0))) == 7


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: OpenLoop(0.0, FIXED), "rate_per_s"),
        (lambda: OpenLoop(-1.0, FIXED), "rate_per_s"),
        (lambda: OpenLoop(float("nan"), FIXED), "rate_per_s"),
        (lambda: OpenLoop(1.0, FIXED, cv=-1.0), "cv"),
        (lambda: OpenLoop(1.0, FIXED, requests=0), "requests"),
        (lambda: Lengths(0, 1), "input_mean"),
        (lambda: Lengths(1, 0), "output_mean"),
        (lambda: Lengths(1, 1, cached=1.0), "cached"),
        (lambda: Lengths(1, 1, cached=-0.1), "cached"),
        (lambda: Lengths(1, 1, law="normal"), "law"),
        (lambda: ClosedLoop(0, FIXED), "users"),
        (lambda: ClosedLoop(1, FIXED, think_s=-1.0), "think_s"),
        (lambda: OnOff(1.0, 3.0, 2.0, FIXED), "on_s"),
        (lambda: Offline(None, FIXED), "requests"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, field: str) -> None:
    with pytest.raises(InputError) as raised:
        make()
    assert raised.value.field == field
